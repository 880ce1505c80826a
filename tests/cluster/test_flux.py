"""Partition pairs on real processes: kills and moves do not change the output."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import PUSH_ROWS, PUSHED, account, push_all

from understudy.cli.main import main
from understudy.history.judging import judge
from understudy.runtime.trial import Trial, all_active, ready_processes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PUSH_PAUSE_S = 0.1
#: On a busy machine a run of so many engines is never quite steady.
PATIENCE_S = 15.0


class Pushing:
    """Pushes rows at an even pace until it is stopped."""

    def __init__(self, address: str) -> None:
        self._enough = threading.Event()
        self._pushed = threading.Semaphore(0)
        self.pushes = 0
        self._thread = threading.Thread(target=push_all, args=(address, self._numbers(), self._pushed))
        self._thread.start()

    def _numbers(self) -> Iterator[int]:
        for number in itertools.count():
            if self._enough.wait(PUSH_PAUSE_S):
                return
            self.pushes = number + 1
            yield number

    def end(self) -> int:
        """No more rows; returns how many there were."""
        self._enough.set()
        self._thread.join()
        return self.pushes * PUSH_ROWS


@pytest.fixture
def flux(start: Any) -> Iterator[tuple[Trial, Pushing]]:
    trial: Trial = start(PUSHED, standby=1, policy="flux")
    trial.wait("every node", lambda status: len(status["members"]) == 3)
    pushing = Pushing(f"127.0.0.1:{trial.run.settings.gateway_port}")
    yield trial, pushing
    pushing.end()


def assert_output_is_right(folder: Path, rows: int) -> None:
    assert account(folder) == (rows, rows * (rows - 1) // 2)
    verdict = judge(sorted((folder / "run" / "history").glob("*.jsonl")))
    assert verdict.findings == []
    assert verdict.partitions == 4


def holders(status: dict[str, Any]) -> list[str]:
    """The processes that hold copies."""
    seats = status["seats"].values()
    return sorted({seat["node"].split(".")[0] for seat in seats if seat["status"] != "DEAD"})


def test_two_nodes_and_the_gateway_die_and_nothing_is_lost_or_repeated(
    flux: tuple[Trial, Pushing], tmp_path: Path
) -> None:
    trial, pushing = flux
    first, second = holders(trial.wait_running(patience_s=PATIENCE_S))
    trial.kill(first)
    status = trial.wait("every copy again", lambda s: first not in holders(s) and all_active(s))
    assert len(holders(status)) == 2
    trial.kill("gateway")
    trial.restart("gateway")
    trial.wait_output(20)
    trial.kill(second)
    trial.wait_output(20)
    rows = pushing.end()
    trial.wait_finished()
    assert_output_is_right(tmp_path, rows)


def test_a_node_is_drained_and_another_one_sleeps_while_rows_flow(
    flux: tuple[Trial, Pushing], tmp_path: Path
) -> None:
    trial, pushing = flux
    drained, other = holders(trial.wait_running(patience_s=PATIENCE_S))
    assert main(["drain", drained, str(tmp_path / "run")]) == 0
    status = trial.wait("a status", lambda _status: True)
    assert drained not in holders(status)
    assert drained in ready_processes(status), "it is still there, only empty"
    trial.kill(other, signal.SIGSTOP)
    trial.wait_decided()
    trial.wait_output(20)
    trial.kill(other, signal.SIGCONT)
    trial.wait("the sleeper's return", lambda s: other in holders(s) and all_active(s))
    rows = pushing.end()
    trial.wait_finished()
    assert_output_is_right(tmp_path, rows)
