"""How a candidate begins at the gateway: with the newest saved states of the version before, and then with a
part in its coordination. Both may have to wait for others, so a thread of its own does this.

Whatever goes wrong here is the candidate's trouble. It is told and tried again, and costs the version that
works beside it nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from understudy.core.bucket import NOTHING
from understudy.core.shape.partition import Partition
from understudy.core.view.view import View
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.durable import leave_mark, make_folder
from understudy.runtime.gateway.edition import Edition
from understudy.runtime.gateway.leading import Leading
from understudy.runtime.saving.needed import Needed
from understudy.runtime.saving.of_run import store_of
from understudy.runtime.settings import RunSettings

log = logging.getLogger(__name__)

RETRY_S = 0.5
RETRY_S_MAX = 15.0
#: The mark that the candidate's shelf has its first states: from then on it has its own.
ADOPTED = "adopted"


def begin_candidate(
    edition: Edition, before: RunSettings, address: str, on_view: Callable[[View], None]
) -> None:
    """Give it its saved states, and have it take part in its coordination; then it hears of every view.

    Returns when that is done, or when the candidate is not wanted any more.
    """
    pause_s = RETRY_S
    while not edition.over.is_set():
        try:
            adopt_states(edition, before)
            if edition.over.is_set():
                return
            _take_part(edition, address, on_view)
            return  # noqa: TRY300
        except Exception as problem:
            if edition.over.is_set():
                # Its session was closed while it waited for ZooKeeper, as a rule.
                return
            log.warning("version %d cannot begin yet: %s", edition.version, problem)
            log.debug("the reason", exc_info=problem)
            edition.trouble = str(problem) or type(problem).__name__
            _take_part_no_more(edition)
            edition.over.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)


def _take_part(edition: Edition, address: str, on_view: Callable[[View], None]) -> None:
    leading = edition.leading = Leading(edition.settings, edition.dataflow.topology)
    if edition.over.is_set():
        # Whoever said so may have looked before there was anything to end.
        leading.end()
        return
    leading.begin(address)
    # With its first view it may get trouble of another kind.
    edition.trouble = ""
    leading.follow(on_view)


def _take_part_no_more(edition: Edition) -> None:
    leading, edition.leading = edition.leading, None
    if leading is not None:
        leading.end()


def adopt_states(edition: Edition, before: RunSettings) -> None:
    """Let the candidate's shelf begin with the newest states of the version before, producers first. If it is
    not wanted any more meanwhile, it keeps none.

    Only once: when its copies have saved states of their own, none of the version before may be among them.
    """
    settings, topology = edition.settings, edition.dataflow.topology
    mark = settings.version_path / ADOPTED
    if mark.exists():
        return
    store = store_of(settings)
    # An attempt that did not get to its end has left states that are older than what is adopted now. All
    # copies of a partition must begin with the same one, and no consumer with one from before its producers'.
    store.drop_version(settings.version)
    needed = Needed(before.version_path)
    adopted: list[Partition] = []
    for partition in topology.partitions:
        if edition.over.is_set():
            break
        # Whether there is a state is asked now: the first one may have been saved since the last partition.
        listed = store.adopt(partition, before.version)
        if listed is None:
            if needed.has(partition):
                # Its producers have let go of what is in there.
                raise EnvironmentFailed(
                    f"The store of snapshots {store.shown} holds no state of {partition}, although version "
                    f"{before.version} has saved it there. Check that it is the right disk or bucket, and "
                    "bring the files back."
                )
            read = [name for name in topology.inputs[partition.name] if name in topology.sources]
            gone = [name for name in read if edition.forgotten[name] > NOTHING]
            if gone:
                raise EnvironmentFailed(
                    f"Version {before.version} has saved no state of {partition}, and the log of "
                    f"{', '.join(gone)} does not go back to its beginning: version {settings.version} would "
                    f"lack what came before."
                )
        else:
            adopted.append(partition)
        through = "nothing" if listed is None else f"bucket {listed.through}"
        log.info("version %d of %s begins with %s", settings.version, partition, through)
    if edition.over.is_set():
        # What was left of this version may be gone already.
        store.drop_version(settings.version)
        return
    make_folder(settings.version_path)
    for partition in adopted:
        Needed(settings.version_path).note(partition)
    leave_mark(mark)
