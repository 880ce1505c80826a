"""`understudy stop`: end a run in good order, from anywhere on its machine.

The process that started the run does it, as on Ctrl-C. It holds the folder's lock, which tells its number.
"""

from __future__ import annotations

import os
import signal
import time
from argparse import Namespace

from understudy.cli.folders import run_in
from understudy.cli.output import output_may_fail
from understudy.cli.saved import LAST_SAVE_S
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.folder_lock import lock_of_run
from understudy.runtime.stopped import stopped_in

#: Beside the last snapshots: every process ends within a few seconds.
_END_S = 20.0
_POLL_S = 0.1


@output_may_fail()
def execute(arguments: Namespace) -> int:
    settings = run_in(arguments.folder)
    lock = lock_of_run(settings.path)
    launcher = lock.holder()
    if launcher is None:
        if lock.is_held():
            raise EnvironmentFailed(
                f"Run {settings.run} is running, but {lock.file} does not say which process started it: the "
                "disk was full then. Press Ctrl-C where it was started, or end that process."
            )
        raise UserError(f"Run {settings.run} in {settings.folder} is not running on this machine.")
    print(f"stopping run {settings.run}", flush=True)
    try:
        os.kill(launcher, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise UserError(
            f"Run {settings.run} is another user's, so this user cannot stop it: its process is {launcher}."
        ) from None
    deadline = time.monotonic() + LAST_SAVE_S + _END_S
    while lock.is_held():
        if time.monotonic() > deadline:
            raise EnvironmentFailed(
                f"Run {settings.run} has not ended within {LAST_SAVE_S + _END_S:.0f} s. "
                f"Its logs are in {settings.path / 'logs'}."
            )
        time.sleep(_POLL_S)
    stopped = stopped_in(settings.path)
    saved = "stopped, and every state is saved" if stopped is not None and stopped.all_saved else "stopped"
    print(f"{saved}; go on with: understudy run {settings.flow_path} --folder {settings.folder}")
    return 0
