"""How a candidate begins at the gateway: with the newest saved states of the version before, and then with a
part in its coordination. Both may have to wait for others, so a thread of its own does this.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from understudy.core.errors import BrokenInvariant
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.durable import leave_mark
from understudy.runtime.gateway.leading import Leading
from understudy.runtime.node.saving import store_of
from understudy.runtime.settings import RunSettings

if TYPE_CHECKING:
    from understudy.runtime.gateway.versions import Edition

log = logging.getLogger(__name__)

RETRY_S = 0.5
RETRY_S_MAX = 15.0
#: The mark that the candidate's shelf has its first states: from then on it has its own.
ADOPTED = "adopted"


def begin_candidate(edition: Edition, before: RunSettings, address: str) -> Leading | None:
    """Its part in the coordination, once its saved states are there; None if it is not wanted any more."""
    pause_s = RETRY_S
    while not edition.over.is_set():
        try:
            adopt_states(edition, before)
            leading = Leading(edition.settings, edition.dataflow.topology)
            leading.begin(address)
        except (EnvironmentFailed, UserError, BrokenInvariant, OSError) as problem:
            log.warning("version %d cannot begin yet: %s", edition.settings.version, problem)
            edition.trouble = str(problem)
            edition.over.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
        else:
            edition.trouble = ""
            return leading
    return None


def adopt_states(edition: Edition, before: RunSettings) -> None:
    """Let the candidate's shelf begin with the newest states of the version before, producers first.

    Only once: when its copies have saved states of their own, none of the version before may be among them.
    """
    settings = edition.settings
    mark = settings.version_path / ADOPTED
    if mark.exists():
        return
    store = store_of(settings)
    known = set(store.partitions())
    for partition in edition.dataflow.topology.partitions:
        listed = store.adopt(partition, before.version) if partition in known else None
        through = "nothing" if listed is None else f"bucket {listed.through}"
        log.info("version %d of %s begins with %s", settings.version, partition, through)
    settings.version_path.mkdir(parents=True, exist_ok=True)
    leave_mark(mark)
