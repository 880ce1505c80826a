"""Ctrl-C and SIGTERM while processes are being looked after."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from understudy.cli.interruption import Interrupted, Interruption


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
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


def test_afterwards_ctrl_c_is_an_exception_again() -> None:
    with Interruption():
        pass
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_work_is_abandoned_when_somebody_asks_to_end() -> None:
    begun, never = threading.Event(), threading.Event()

    def endless() -> None:
        begun.set()
        os.kill(os.getpid(), signal.SIGINT)
        never.wait(60)

    with Interruption() as interruption, pytest.raises(Interrupted):
        interruption.unless(endless)
    assert begun.is_set()
    never.set()


def test_without_a_signal_work_gives_its_result_or_its_error() -> None:
    with Interruption() as interruption:
        assert interruption.unless(lambda: 6 * 7) == 42
        with pytest.raises(ZeroDivisionError):
            interruption.unless(lambda: 1 // 0)
