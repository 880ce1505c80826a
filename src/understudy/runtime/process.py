"""What every process of a run does around its work: a log file, orderly ends, and errors that a person can
read.

A process ends in one of these ways. Its work is done, or it was asked to stop (SIGTERM, SIGINT): exit code
0. The user's flow or the environment is at fault: the sentence that says so goes to the log and into
`failed/<name>.txt` in the run's folder, where whoever started the process finds it, and the exit code is
the error's. Anything else is our bug: the log has the stack trace, the exit code is 70.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.settings import RunSettings

log = logging.getLogger(__name__)

BUG_EXIT_CODE = 70


def failure_file(folder: Path, name: str) -> Path:
    """Where a process leaves the sentence that says why it failed."""
    return folder / "failed" / f"{name}.txt"


def finished_file(folder: Path) -> Path:
    """What a gateway leaves when its work is done: every source has ended and everything is delivered."""
    return folder / "finished"


def ready_file(folder: Path, name: str) -> Path:
    """What a node leaves once it has come up: it is a member and could take a seat."""
    return folder / "ready" / name


class Ending:
    """The end of a process: asked for, or forced by a failure. The first word counts."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self.failure: BaseException | None = None

    def ask(self) -> None:
        """End in good order."""
        self._event.set()

    def fail(self, failure: BaseException) -> None:
        """End because of this."""
        with self._lock:
            if self.failure is None and not self._event.is_set():
                self.failure = failure
            self._event.set()

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._event.wait(timeout_s)


def run_process(
    name: str, settings: RunSettings, body: Callable[[Ending], None], *, with_parent: bool = False
) -> int:
    """Run `body` as the main thread of this process; returns the exit code.

    `with_parent` ends the process when its standard input closes, that is, when whoever started it is gone.
    """
    _log_to(settings.log_file(name))
    ending = Ending()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.ask())
    if with_parent:
        threading.Thread(target=_end_with_parent, args=(ending,), name="parent", daemon=True).start()
    failure_file(settings.path, name).unlink(missing_ok=True)
    log.info("%s begins, process %d", name, os.getpid())
    try:
        body(ending)
        if ending.failure is not None:
            raise ending.failure  # noqa: TRY301
    except (UserError, EnvironmentFailed) as problem:
        log.error("%s", problem)  # noqa: TRY400
        _leave_word(settings.path, name, str(problem))
        return problem.exit_code
    except BaseException as problem:
        log.exception("%s fails", name)
        last = "".join(traceback.format_exception_only(problem)).strip()
        _leave_word(settings.path, name, f"{last} (see {settings.log_file(name)})")
        return BUG_EXIT_CODE
    log.info("%s ends", name)
    return 0


def _end_with_parent(ending: Ending) -> None:
    while os.read(0, 4096):
        pass
    ending.ask()


def leave_at_once(code: int) -> None:
    """End this process without waiting for threads that Flight or Spark may hold."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _log_to(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.captureWarnings(True)


def _leave_word(folder: Path, name: str, text: str) -> None:
    file = failure_file(folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
