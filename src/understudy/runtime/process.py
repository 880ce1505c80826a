"""What every process of a run does around its work: a log file, an end in bounded time, and errors that a
person can read.

A process ends in one of these ways. Its work is done, or it was asked to stop (by a signal, or its parent is
gone): exit code 0. The user's flow or the environment is at fault: the sentence that says so goes to the log
and into `failed/<name>.txt` in the run's folder, where the process that started it finds it, and the exit
code is the error's. Anything else is our bug: the log has the stack trace, the exit code is 70. An exception
that leaves any thread is such a failure: a process without one of its threads would be half alive.

**An end never waits for others.** ZooKeeper, a peer or Spark may never answer again. So from the moment an
end is asked for, the process has `END_TIMEOUT_S`; after that it leaves as it is, exit code 75. Everything it
keeps on disk can take that, as it can take a SIGKILL. Processes that it started are killed with it: a JVM
ends with its owner's pipe, but one that is still starting does not look at it yet.

**Signals are heard by a thread.** A handler runs between two instructions of the main thread, which may hold
the very lock that the handler needs. So the signal only writes a byte to a pipe.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.memory import keep_giving_back
from understudy.runtime.process_tree import kill_descendants, signal_tree
from understudy.runtime.pulse import keep_beating, pulse_file
from understudy.runtime.settings import RunSettings

log = logging.getLogger(__name__)

BUG_EXIT_CODE = 70
OVERDUE_EXIT_CODE = 75
#: How long a process may take to end in good order.
END_TIMEOUT_S = 5.0
#: A process's log: the size of one part, and how many earlier ones are kept.
LOG_BYTES_MAX = 16 * 2**20
LOG_PARTS = 2
#: Of prctl(2).
PR_SET_PDEATHSIG = 1
#: To a process of a run: write what all threads are at to the standard error.
SAY_WHERE = signal.SIGUSR2
#: Written by then.
SAYING_S = 1.0


def failure_file(folder: Path, name: str) -> Path:
    """Where a process leaves the sentence that says why it failed."""
    return folder / "failed" / f"{name}.txt"


def leave_failure(folder: Path, name: str, why: str) -> None:
    """Leave the sentence that says why a process, or the `flow`, failed, as far as the disk lets it."""
    file = failure_file(folder, name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # A name of a file that is not UTF-8 may be part of it.
        file.write_text(why + "\n", errors="backslashreplace")
    except OSError as trouble:
        log.error("why %s failed could not be left in %s: %s", name, file.parent, trouble)  # noqa: TRY400


def failures(folder: Path) -> dict[str, str]:
    """Why processes of a run, or its `flow`, failed and have not begun again, by name."""
    files = sorted(failure_file(folder, "*").parent.glob("*.txt"))
    return {file.stem: file.read_text().strip() for file in files}


def finished_file(folder: Path) -> Path:
    """What a gateway leaves when its work is done: every source has ended and everything is delivered."""
    return folder / "finished"


def seated_file(folder: Path) -> Path:
    """The mark that a gateway of this run has seen a view: copies have state from here on."""
    return folder / "seated"


def begun_file(folder: Path) -> Path:
    """The mark that an earlier generation of this run had a view: there may be state since."""
    return folder / "begun"


def opened_file(folder: Path) -> Path:
    """The mark that a gateway of this run has come up: there is a log from here on."""
    return folder / "opened"


def ready_file(folder: Path, name: str) -> Path:
    """What a process leaves once it has come up: a node could take a seat, a gateway answers. Its launcher
    takes it away before it starts the process again.
    """
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
    name: str,
    settings: RunSettings,
    body: Callable[[Ending], None],
    *,
    with_parent: bool = False,
    end_timeout_s: float = END_TIMEOUT_S,
) -> int:
    """Run `body` as the main thread of this process; returns the exit code, or leaves if that takes too long.

    `with_parent` ends the process when its standard input closes, that is, when its parent is gone.
    """
    ending, over = Ending(), threading.Event()
    try:
        _log_to(settings.log_file(name))
        _listen(ending, with_parent)
        threading.excepthook = lambda thread: _thread_failed(ending, thread)
        threading.Thread(
            target=_leave_when_overdue,
            args=(name, settings, ending, over, end_timeout_s),
            name="deadline",
            daemon=True,
        ).start()
        keep_giving_back(ending.wait)
        keep_beating(pulse_file(settings.path, name), ending.wait)
        failure_file(settings.path, name).unlink(missing_ok=True)
        log.info("%s begins, process %d", name, os.getpid())
        body(ending)
        if ending.failure is not None:
            raise ending.failure  # noqa: TRY301
    except BaseException as problem:
        return _failed(name, settings, problem)
    finally:
        over.set()
    log.info("%s ends", name)
    return 0


def leave_at_once(code: int) -> None:
    """End this process and all that it started, without waiting for threads that Flight or Spark hold."""
    try:
        # Each of these may fail on a full disk, which must not keep the process alive.
        for last in (kill_descendants, logging.shutdown, sys.stdout.flush, sys.stderr.flush):
            with suppress(Exception):
                last()
    finally:
        os._exit(code)


def kill_with_last_words(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of a run that does nothing any more, and all that it started; it says where it is."""
    process.send_signal(SAY_WHERE)
    with suppress(subprocess.TimeoutExpired):
        process.wait(SAYING_S)
    signal_tree(process.pid, signal.SIGKILL)
    process.wait()


def _listen(ending: Ending, with_parent: bool) -> None:
    if sys.__stderr__ is not None:
        # Answered even if no thread of Python gets its turn any more: what froze them is seen nowhere else.
        faulthandler.register(SAY_WHERE, sys.__stderr__, all_threads=True)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if with_parent:
        _wake_with_parent()
    sources = [reading, sys.__stdin__.fileno()] if with_parent and sys.__stdin__ is not None else [reading]
    threading.Thread(target=_await_signal, args=(ending, sources), name="signals", daemon=True).start()


def _wake_with_parent() -> None:
    """Go on when the parent is gone: a process that is stopped would not notice, and stay for ever."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def _await_signal(ending: Ending, sources: list[int]) -> None:
    """A signal writes to the first source; the second one stays silent and closes with the parent."""
    while True:
        readable, _, _ = select.select(sources, [], [])
        if sources[0] in readable or not os.read(sources[1], 4096):
            ending.ask()
            return


def _leave_when_overdue(
    name: str, settings: RunSettings, ending: Ending, over: threading.Event, timeout_s: float
) -> None:
    ending.wait()
    if over.wait(timeout_s):
        return
    log.warning("%s did not end within %g s and leaves as it is; %s", name, timeout_s, _main_thread_at())
    code = OVERDUE_EXIT_CODE
    try:
        if ending.failure is not None:
            code = _failed(name, settings, ending.failure)
    finally:
        leave_at_once(code)


def _main_thread_at() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = traceback.extract_stack(frame)[-3:] if frame is not None else []
    return "it was at " + " < ".join(f"{Path(s.filename).name}:{s.lineno} {s.name}" for s in reversed(stack))


def _thread_failed(ending: Ending, thread: threading.ExceptHookArgs) -> None:
    if ending.asked or thread.exc_value is None:
        return
    name = thread.thread.name if thread.thread is not None else "a thread"
    log.error("%s failed, and this process ends with it", name)
    ending.fail(thread.exc_value)


def _failed(name: str, settings: RunSettings, problem: BaseException) -> int:
    """Say why the process fails, as far as the disk lets it; the exit code."""
    if isinstance(problem, UserError | EnvironmentFailed):
        log.error("%s", problem)
        text, code = str(problem), problem.exit_code
    else:
        log.error("%s fails", name, exc_info=problem)
        last = "".join(traceback.format_exception_only(problem)).strip()
        text, code = f"{last} (see {settings.log_file(name)})", BUG_EXIT_CODE
    leave_failure(settings.path, name, text)
    return code


def _log_to(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(
        file, maxBytes=LOG_BYTES_MAX, backupCount=LOG_PARTS, errors="backslashreplace"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.captureWarnings(True)
