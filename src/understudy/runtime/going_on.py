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
from dataclasses import replace
from pathlib import Path

from understudy.flow.errors import UserError
from understudy.runtime.process import finished_file, seated_file
from understudy.runtime.settings import RunSettings

#: Of processes that live, or of the ZooKeeper that they met in.
_OF_THE_LIVING = ("ready", "failed", "pulse", "state", "zookeeper")
_INCARNATION = re.compile(r"\.(\d+)\.")


def require_able(former: RunSettings) -> None:
    """Raise `UserError` if there is nothing to go on with."""
    if finished_file(former.path).exists():
        raise UserError(
            f"{former.path} holds a run that is finished: every source has ended and everything is "
            "delivered. Start the flow again in a new folder."
        )
    if not former.saves:
        raise UserError(
            f"{former.path} holds a run that saved no state, so it cannot go on. Start the flow again in a "
            "new folder, with --snapshot-every."
        )


def next_generation(former: RunSettings) -> RunSettings:
    """The settings of the next generation. Only for the holder of the folder's lock."""
    seated_file(former.path).unlink(missing_ok=True)
    for name in _OF_THE_LIVING:
        shutil.rmtree(former.path / name, ignore_errors=True)
    return replace(former, generation=former.generation + 1)


def next_incarnation(settings: RunSettings, name: str) -> int:
    """The first incarnation of a node that no earlier generation had."""
    histories = settings.history_file(name).parent
    found = [_INCARNATION.search(file.name) for file in histories.glob(f"{name}.*")]
    return max([settings.generation - 1, *(int(match[1]) for match in found if match)]) + 1


def moved(former: RunSettings, folder: Path) -> RunSettings:
    """The settings of a run whose folder may have been moved since."""
    return replace(former, folder=str(folder))
