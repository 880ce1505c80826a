"""The code of the last upgrade that did not take over: it was taken back, or cut off while it was on trial.

The flow file may well be that code still, and whoever starts the run again, a service manager after a loss of
power for example, starts it with that file. The run must not go on with code that has failed, or that nobody
has seen the end of. So the code of each upgrade is written down before it begins, and counts as not taken
until the run's settings name its version, or the run was told to take it. Until then a run that is started
with it goes on with the code that it had, and says so.
"""

from __future__ import annotations

import json
from pathlib import Path

from understudy.runtime.durable import write_whole, written
from understudy.runtime.pinning import is_code, is_pinned, pinned_code
from understudy.runtime.settings import RunSettings

FILE = "untaken.json"


def begin_untaken(settings: RunSettings) -> None:
    """This version is about to begin beside the run's own. Raises `EnvironmentFailed` if the disk is full."""
    file = _file(settings)
    with written(file):
        write_whole(file, json.dumps({"version": settings.version, "code": pinned_code(settings)}) + "\n")


def untaken_version(former: RunSettings, flow_path: str | Path) -> int | None:
    """The version whose upgrade did not take over, if this file is its code; None if it is not.

    A run without a code of its own, which has let that change, has nothing else to go on with.
    """
    try:
        values = json.loads(_file(former).read_text())
        version, code = int(values["version"]), values["code"]
        untaken = version != former.version and is_pinned(former) and is_code(flow_path, code)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        # None, or one that a disk has damaged: then the file is what it is.
        return None
    return version if untaken else None


def forget_untaken(former: RunSettings) -> None:
    """The run has taken that code now: it is a change like any other from here on."""
    _file(former).unlink(missing_ok=True)


def _file(settings: RunSettings) -> Path:
    return settings.path / FILE
