"""Which nodes start at once when a run goes on, and which a little later.

Rows wait, so what counts is how soon the first result comes. Several Sparks that start side by side on few
cores all start slowly: a pair on two cores took three times as long as one node. So a machine that has no
core to spare starts the nodes first that the first view waits for (`core.view.controller`). The others follow
when output flows, or when that takes too long.
"""

from __future__ import annotations

from collections.abc import Sequence

from understudy.runtime.settings import RunSettings

#: Java compiles what Spark runs while Spark runs it.
CORES_PER_START = 2
#: The others start by then, whatever comes of the first.
HELD_BACK_S_MAX = 20.0


def start_order(settings: RunSettings, names: Sequence[str], cores: int) -> tuple[list[str], list[str]]:
    """The nodes that start at once, and those that are held back."""
    if settings.generation == 1 or not settings.saves or cores >= CORES_PER_START * len(names):
        return list(names), []
    needed = 1 if settings.nodes == settings.policy.replicas else settings.nodes
    return list(names[:needed]), list(names[needed:])
