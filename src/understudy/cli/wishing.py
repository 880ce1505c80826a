"""An operator's wish from the command line: sent to the run's leader, answered, and followed.

Following only looks at views. The wish goes on when the following stops.
"""

from __future__ import annotations

import queue
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from understudy.cli.folders import run_in
from understudy.cli.interruption import Interruption
from understudy.core.view.view import Status, View
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.candidate import candidate_in
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.reports import Wish
from understudy.runtime.coordination.wishes import asked
from understudy.runtime.process import finished_file
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import started_as

DONE, DECLINED = 0, 1
ANSWER_TIMEOUT_S = 10.0
#: When no copy is catching up and no view was published for this long, the wish is stalled.
STALLED_S = 5.0
_CONNECT_TIMEOUT_S = 3.0
_POLL_S = 0.1


@dataclass(frozen=True)
class WishProgress:
    """How far a wish has come, in a sentence; `done` says how it ended, None while it goes on."""

    sentence: str
    done: bool | None = None


@contextmanager
def connected(arguments: Namespace) -> Iterator[tuple[RunSettings, Coordination]]:
    """The run that a command names, and a connection to it. Raises `UserError` if nothing can move there."""
    settings = run_in(arguments.folder)
    if settings.policy.replicas == 1:
        raise UserError(
            f"Run {settings.run} has policy {settings.policy.name!r}, which runs one copy of everything; a "
            "copy moves only while another one goes on with the flow. Start it with --policy pair or flux."
        )
    _require_of_this_version(settings, arguments.node)
    with Coordination(
        settings.zookeeper, settings.coordinates, connect_timeout_s=_CONNECT_TIMEOUT_S
    ) as coordination:
        yield settings, coordination


def _require_of_this_version(settings: RunSettings, node: str) -> None:
    candidate = candidate_in(settings.path)
    if candidate is not None and {node, started_as(node)} & set(candidate.settings.node_names):
        raise UserError(
            f"{node} works for version {candidate.version} of the flow, which is not yet the run's own. Its "
            "copies can be moved when the upgrade is done."
        )


def answered(coordination: Coordination, wish: Wish) -> dict[str, Any] | None:
    """What the leader answers to a wish; None if it declines, and the reason is printed here."""
    answer = asked(coordination, wish, ANSWER_TIMEOUT_S)
    if answer is None:
        raise EnvironmentFailed(
            f"No process leads run {coordination.run} now: no answer within {ANSWER_TIMEOUT_S:.0f} s. "
            "The wish waits until a process leads again."
        )
    if answer["ok"]:
        return answer
    why = str(answer["why"])
    print(f"declined: {why}{'' if why.endswith('.') else '.'}", file=sys.stderr)
    return None


def follow(
    settings: RunSettings, coordination: Coordination, since: int, look: Callable[[View], WishProgress]
) -> int:
    """Tell how a wish goes on from the view of that epoch, until it is done or hopeless; the exit code."""
    finished = finished_file(settings.path)
    views: queue.SimpleQueue[View] = queue.SimpleQueue()
    coordination.watch_view(views.put)
    said, moving = "", True
    news_s = time.monotonic()
    with Interruption() as interruption:
        while not interruption.asked:
            try:
                view = views.get(timeout=_POLL_S)
            except queue.Empty:
                if finished.exists():
                    print("The run has finished: every source has ended and everything is delivered.")
                    return DECLINED
                if RunSettings.load(settings.path).version != settings.version:
                    print("The run was upgraded: it goes on with other nodes, and the wish is void.")
                    return DECLINED
                if not moving and time.monotonic() - news_s > STALLED_S:
                    print(
                        "Nothing is moving: no node can take the next copy. Add a node, or ask again later."
                    )
                    return DECLINED
                continue
            if view.epoch < since:
                continue
            news_s = time.monotonic()
            moving = any(seat.status is Status.STDBY for seat in view.seats.values())
            seen = look(view)
            if seen.sentence != said:
                said = seen.sentence
                print(f"{said} (epoch {view.epoch})", flush=True)
            if seen.done is not None:
                return DONE if seen.done else DECLINED
    print("No longer following; the wish goes on.")
    return interruption.exit_code
