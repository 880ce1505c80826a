"""Ctrl-C and SIGTERM while processes are being looked after."""

from __future__ import annotations

import os
import signal

import pytest

from understudy.cli.interruption import Interruption


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
