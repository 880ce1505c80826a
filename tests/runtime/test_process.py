"""The end of a process: in bounded time, with its reason, even if threads hang or the disk is full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.process import (
    BUG_EXIT_CODE,
    OVERDUE_EXIT_CODE,
    Ending,
    failure_file,
    kill_with_last_words,
)

#: A process under `run_process` whose body is the test's; it says "up" once it has come so far.
PROGRAM = """
import subprocess, sys, threading, time
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.process import leave_at_once, run_process
from understudy.runtime.settings import RunSettings

settings = RunSettings("run", "flow.py", sys.argv[1], "")

def up(*words):
    print("up", *words, flush=True)

def body(ending):
{body}

leave_at_once(run_process("node-1", settings, body, with_parent=True, end_timeout_s=1))
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(body: str) -> subprocess.Popen[str]:
        program = PROGRAM.format(body=textwrap.indent(textwrap.dedent(body), "    "))
        with (tmp_path / "errors").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", program, str(tmp_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def words_of(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    said, *words = process.stdout.readline().split()
    assert said == "up"
    return words


HANGS = """
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    up(child.pid)
    ending.wait()
    time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["its parent is gone", "SIGTERM", "SIGHUP"])
def test_a_process_that_hangs_while_ending_leaves_with_all_that_it_started(start: Start, how: str) -> None:
    process = start(HANGS)
    child = psutil.Process(int(words_of(process)[0]))
    if how.startswith("SIG"):
        process.send_signal(signal.Signals[how])
    else:
        assert process.stdin is not None
        process.stdin.close()
    assert process.wait(20) == OVERDUE_EXIT_CODE
    child.wait(5)


def test_a_process_that_hangs_after_a_failure_still_says_why(start: Start, tmp_path: Path) -> None:
    process = start("""
        up()
        ending.fail(EnvironmentFailed("The disk is full."))
        time.sleep(1000)
    """)
    assert process.wait(20) == EnvironmentFailed.exit_code
    assert failure_file(tmp_path, "node-1").read_text() == "The disk is full.\n"


def test_a_reason_may_name_a_file_whose_name_is_not_utf_8(start: Start, tmp_path: Path) -> None:
    process = start(r"""
        ending.fail(EnvironmentFailed("There is no b\udcff2.jsonl."))
        time.sleep(1000)
    """)
    assert process.wait(20) == EnvironmentFailed.exit_code
    assert failure_file(tmp_path, "node-1").read_text() == "There is no b\\udcff2.jsonl.\n"
    assert "There is no b\\udcff2.jsonl." in (tmp_path / "logs" / "node-1.log").read_text()


def test_a_process_in_which_no_thread_gets_its_turn_says_where_it_is(start: Start, tmp_path: Path) -> None:
    process = start("""
        up()
        import ctypes
        while True:
            # The library is called without letting other threads of Python run.
            ctypes.PyDLL(None).sleep(1000)
    """)
    words_of(process)
    time.sleep(0.1)
    kill_with_last_words(process)  # type: ignore[arg-type]
    assert process.returncode == -signal.SIGKILL
    assert "in body" in (tmp_path / "errors").read_text()


def test_a_process_ends_when_any_of_its_threads_fails(start: Start, tmp_path: Path) -> None:
    process = start("""
        def fail():
            raise OSError("No space left on device")

        threading.Thread(target=fail, name="tick").start()
        ending.wait(1000)
    """)
    assert process.wait(20) == BUG_EXIT_CODE
    assert "No space left on device" in failure_file(tmp_path, "node-1").read_text()


def test_a_process_that_cannot_say_why_it_fails_still_ends(start: Start, tmp_path: Path) -> None:
    process = start("""
        (settings.path / "failed").write_text("a file where the folder should be")
        threading.Thread(target=time.sleep, args=(1000,)).start()
        raise EnvironmentFailed("The disk is full.")
    """)
    assert process.wait(20) == EnvironmentFailed.exit_code


def test_a_process_whose_output_cannot_be_written_still_ends(tmp_path: Path) -> None:
    program = PROGRAM.format(body='    sys.stdout.write("lost")\n')
    # Python must have something left to write when the process leaves.
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", program, str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(command, stdout=full, stderr=full, env=env)
    assert process.wait(20) == 0


def test_a_signal_is_heard_while_the_main_thread_holds_a_lock_of_the_ending(start: Start) -> None:
    process = start("""
        # As in the moment when the main thread begins or ends to wait.
        with ending._event._cond:
            up()
            time.sleep(1)
        ending.wait()
    """)
    words_of(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_the_first_word_about_an_end_counts() -> None:
    ending = Ending()
    ending.ask()
    ending.fail(OSError("too late"))
    assert ending.failure is None


def test_every_process_of_a_run_gives_free_memory_back(start: Start) -> None:
    names = words_of(start("up(*(thread.name for thread in threading.enumerate()))"))
    assert "memory" in names
