"""Ctrl-C and SIGTERM while processes are being looked after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from understudy.cli.interruption import Interrupted, Interruption


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_is_a_flag_and_decides_the_exit_code(number: signal.Signals, code: int) -> None:
    with Interruption() as interruption:
        assert not interruption.wait(0)
        os.kill(os.getpid(), number)
        assert interruption.wait(5)
        assert interruption.exit_code == code


def test_the_first_signal_decides_and_later_ones_do_no_harm() -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.wait(5)
        assert interruption.exit_code == 143


def test_afterwards_ctrl_c_is_what_it_was_before() -> None:
    # Whoever starts the tests may have had it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interruption():
            pass
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_under_nohup_does_not_end_with_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not interruption.wait(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.wait(5)
        assert interruption.exit_code == 143


def test_work_is_abandoned_when_the_user_asks_to_end() -> None:
    begun, never = threading.Event(), threading.Event()

    def endless() -> None:
        begun.set()
        os.kill(os.getpid(), signal.SIGINT)
        never.wait(60)

    with Interruption() as interruption, pytest.raises(Interrupted):
        interruption.unless(endless)
    assert begun.is_set()
    never.set()


def test_asking_again_counts_from_the_moment_that_more_time_was_granted() -> None:
    with Interruption() as interruption:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert interruption.wait(5)
        interruption.grant(1)
        assert not interruption.asked_again, "those were the ones that ended the run"
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.asked_again
        assert interruption.exit_code == 130


def test_the_first_ctrl_c_of_a_command_that_ends_by_itself_is_another_one() -> None:
    with Interruption() as interruption:
        interruption.grant(1)
        assert not interruption.asked_again
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.asked_again


GRANTED = """
import time
from understudy.cli.interruption import Interruption

with Interruption(end_timeout_s=0.5) as interruption:
    print("ready", flush=True)
    interruption.wait(1000)
    interruption.grant(3)
    time.sleep(2)
    print("saved", flush=True)
    time.sleep(1000)
"""


def test_a_command_that_was_granted_more_time_has_it_and_is_ended_then() -> None:
    command = subprocess.Popen([sys.executable, "-c", GRANTED], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    try:
        assert command.stdout.readline() == "ready\n"
        command.send_signal(signal.SIGINT)
        assert command.stdout.readline() == "saved\n"
        assert command.wait(20) == 130
    finally:
        command.kill()
        command.communicate()


SLOW = """
import subprocess, sys, time
from understudy.cli.interruption import Interruption

with Interruption(end_timeout_s=1):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print(child.pid, flush=True)
    time.sleep(1000)
"""


def test_a_command_that_does_not_end_in_time_is_ended_with_all_that_it_started() -> None:
    command = subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    child = psutil.Process(int(command.stdout.readline()))
    command.send_signal(signal.SIGTERM)
    try:
        assert command.wait(20) == 143
        child.wait(5)
    finally:
        command.kill()
        if child.is_running():
            child.kill()
        command.communicate()


@pytest.mark.timeout(20)
def test_a_signal_that_comes_while_the_flag_is_looked_at_does_no_harm() -> None:
    with Interruption() as interruption:
        # As in the moment when the main thread begins or ends to wait.
        with interruption._event._cond:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.wait(5)


def test_without_a_signal_work_gives_its_result_or_its_error() -> None:
    with Interruption() as interruption:
        assert interruption.unless(lambda: 6 * 7) == 42
        with pytest.raises(ZeroDivisionError):
            interruption.unless(lambda: 1 // 0)
