"""Going on with a run that was stopped, or that broke: its next generation, in the same folder.

What stays is what is durable: the log, what the sinks hold and their journals, the saved states, the history.
What the processes of the last generation had agreed on is void: views, members and reports in ZooKeeper, and
the marks in the folder that speak of living processes. Every copy then begins from its partition's saved
state, and the log gives it what came after.

Names of processes go on counting, so that histories of two generations do not mix.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

from understudy.flow.errors import UserError
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.durable import leave_mark
from understudy.runtime.pinning import unpin
from understudy.runtime.process import begun_file, finished_file, seated_file
from understudy.runtime.settings import RunSettings

#: Of processes that live, or of the ZooKeeper that they met in.
_OF_THE_LIVING = ("ready", "failed", "pulse", "state", "zookeeper")
_INCARNATION = re.compile(r"\.(\d+)\.")
#: ZooKeeper takes a process that was killed for a member until its session is over, however long it lets a
#: session be.
LEAVING_S = 10.0
_POLL_S = 0.2


def has_begun(former: RunSettings) -> bool:
    """Whether copies of this run ever had a seat: before that there is no state, only a log."""
    # A later version took over from copies that had state.
    later = former.version > 1
    return later or seated_file(former.version_path).exists() or begun_file(former.path).exists()


def require_able(former: RunSettings) -> None:
    """Raise `UserError` if there is nothing to go on with."""
    if finished_file(former.path).exists():
        raise UserError(
            f"{former.path} holds a run that is finished: every source has ended and everything is "
            "delivered. Start the flow again in a new folder."
        )
    if has_begun(former) and not former.saves:
        raise UserError(
            f"{former.path} holds a run that saved no state, so it cannot go on. Start the flow again in a "
            "new folder, with --snapshot-every."
        )


def await_departure(former: RunSettings, wait_s: float = LEAVING_S) -> None:
    """Wait until every process of the last generation has left the ZooKeeper that it shared with others.

    Raises `UserError` if some live on, on another machine as a rule.
    """
    with Coordination(former.zookeeper, former.coordinates) as coordination:
        deadline = time.monotonic() + wait_s
        while living := [member.name for member in coordination.members()]:
            if time.monotonic() > deadline:
                raise UserError(
                    f"The run in {former.path} is still running elsewhere: {', '.join(living)}. "
                    "Stop these processes first."
                )
            time.sleep(_POLL_S)


def next_generation(former: RunSettings) -> RunSettings:
    return replace(former, generation=former.generation + 1)


def drop_marks(former: RunSettings) -> None:
    """Drop what the last generation left. Only for the holder of the folder's lock.

    A process that is killed in here leaves a run that can go on as before.
    """
    if has_begun(former):
        leave_mark(begun_file(former.path))
    else:
        # No state was made with that code, which may be what had to be mended.
        unpin(former)
    seated_file(former.version_path).unlink(missing_ok=True)
    for name in _OF_THE_LIVING:
        shutil.rmtree(former.path / name, ignore_errors=True)


def next_incarnation(settings: RunSettings, name: str) -> int:
    """The first incarnation of a node that no earlier generation had."""
    histories = settings.history_file(name).parent
    found = [_INCARNATION.search(file.name) for file in histories.glob(f"{name}.*")]
    return max([settings.generation - 1, *(int(match[1]) for match in found if match)]) + 1


def moved(former: RunSettings, folder: Path) -> RunSettings:
    """The settings of a run whose folder may have been moved since."""
    return replace(former, folder=str(folder))
