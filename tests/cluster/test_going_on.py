"""Runs that lose all that lives go on from saved state and the log: every row counts once, in its order."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting import PUSHED, Flowing, expected, results, write_flow
from owning import Owner, until

from understudy.flow.errors import EnvironmentFailed
from understudy.history.judging import judge
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import status_of
from understudy.runtime.trial import Trial

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SNAPSHOT_EVERY_S = 1
PATIENCE_S = 120.0


class Commanded:
    """`understudy run` in one folder and on one port, as often as it is started."""

    def __init__(
        self, owner: Callable[..., Owner], folder: Path, policy: str, snapshot_every_s: int = SNAPSHOT_EVERY_S
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        self._folder = folder / "run"
        flow = str(write_flow(folder, PUSHED, chain=policy == "flux"))
        self._command = ["-m", "understudy.cli.main", "run", flow, "--folder", str(self._folder), "--plain"]
        self._options = [
            *["--policy", policy, "--nodes", "2", "--standby", "0", "--heap", "512"],
            *["--port", str(self.port), "--snapshot-every", str(snapshot_every_s)],
        ]
        self._owner = owner
        self._process = owner(*self._command, *self._options)

    @property
    def rows(self) -> Flowing:
        return Flowing(f"127.0.0.1:{self.port}")

    def status(self) -> dict[str, Any] | None:
        try:
            return status_of(RunSettings.load(self._folder), 2.0)
        except EnvironmentFailed:
            return None

    def wait(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        until(lambda: (status := self.status()) is not None and condition(status), PATIENCE_S)

    def stop(self) -> str:
        """Ctrl-C; returns what it said."""
        self._process.process.send_signal(signal.SIGINT)
        return self.said()

    def lose_power(self) -> None:
        self._process.lose_power()

    def go_on(self) -> None:
        """The same command without options: they are in the folder."""
        self._process = self._owner(*self._command)

    def said(self) -> str:
        """What it says until it ends."""
        return self._process.process.communicate(timeout=PATIENCE_S)[0]


def delivers(status: dict[str, Any]) -> bool:
    return bool(status["rows_out"] > 0)


def every_state_is_saved(status: dict[str, Any]) -> bool:
    """Whether a state of each partition is saved."""
    partitions = {copy.rpartition(":")[0] for copy in status["seats"]}
    return bool(partitions) and saved_partitions(status).keys() == partitions


def saved_partitions(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is told of the partitions of which anything is saved, by the copies that save them."""
    return {
        copy.rpartition(":")[0]: facts
        for node in status["nodes"].values()
        for copy, facts in node.get("copies", {}).items()
        if facts.get("saved_through") is not None
    }


def assert_right(folder: Path, rows: Flowing, *, chain: bool = False) -> None:
    pushed, _ = rows.account()
    delivered = results(folder)
    assert sorted(delivered) == expected(pushed, chain=chain)
    assert [end for end, *_ in delivered] == sorted(end for end, *_ in delivered)
    verdict = judge(sorted((folder / "run" / "history").glob("*.jsonl")))
    assert verdict.findings == []
    assert verdict.delivered > 0


def test_a_run_that_was_stopped_goes_on_and_its_client_notices_nothing(
    owner: Callable[..., Owner], tmp_path: Path
) -> None:
    # None but the last snapshots, which the stop asks for.
    run = Commanded(owner, tmp_path, "pair", snapshot_every_s=3_600)
    with run.rows as rows:
        run.wait(delivers)
        assert "every state is saved" in run.stop()
        run.go_on()
        run.wait(delivers)
    said = run.said()
    assert "goes on from the state of 1 partition" in said
    assert "every source has ended and everything is delivered" in said
    assert_right(tmp_path, rows)


def test_a_flow_of_two_fragments_goes_on_after_the_loss_of_power(
    owner: Callable[..., Owner], tmp_path: Path
) -> None:
    run = Commanded(owner, tmp_path, "flux")
    with run.rows as rows:
        run.wait(lambda status: delivers(status) and every_state_is_saved(status))
        run.lose_power()
        run.go_on()
        run.wait(delivers)
    assert "goes on from the state of 4 partitions" in run.said()
    assert_right(tmp_path, rows, chain=True)


def test_a_pair_that_loses_both_replicas_goes_on_by_itself_with_a_standby(start: Any, tmp_path: Path) -> None:
    trial: Trial = start(PUSHED, standby=1, snapshot_every_ms=SNAPSHOT_EVERY_S * 1_000)
    trial.wait("a standby", lambda status: len(status["members"]) == 3)
    with Flowing(f"127.0.0.1:{trial.run.settings.gateway_port}") as rows:
        trial.wait("saved state", lambda status: delivers(status) and every_state_is_saved(status))
        standby = trial.process_in("standby")
        before = trial.wait("a status", lambda _: True)
        assert before["restored"] == {}
        trial.kill_at_once(["sender", "holder"])
        status = trial.wait("the saved state in another seat", lambda status: bool(status["restored"]))
        assert status["restored"].keys() == {"counts/0"}
        assert status["restored"]["counts/0"] > before["epoch"]
        trial.wait_output(20)
        assert trial.process_in("sender") == standby
    trial.wait_finished()
    assert_right(tmp_path, rows)


def test_a_run_whose_store_cannot_be_written_goes_on_and_says_since_when(start: Any, tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    every_ms = SNAPSHOT_EVERY_S * 1_000
    trial: Trial = start(PUSHED, nodes=1, policy="none", snapshot_every_ms=every_ms, store=str(store))

    def saving(status: dict[str, Any]) -> dict[str, Any]:
        return saved_partitions(status).get("counts/0", {})

    trial.wait("a node", lambda status: len(status["members"]) == 1)
    with Flowing(f"127.0.0.1:{trial.run.settings.gateway_port}") as rows:
        saved = saving(trial.wait("saved state", every_state_is_saved))
        assert saved["not_saved_since_s"] is None
        store.rename(away)
        store.write_text("a file where the folder was")
        failing = saving(trial.wait("trouble", lambda status: bool(saving(status).get("saving_trouble"))))
        assert failing["not_saved_since_s"] >= saved["saved_at_s"]
        assert str(store) in failing["saving_trouble"]
        trial.wait_output(50)
        store.unlink()
        away.rename(store)
        again = saving(trial.wait("no trouble", lambda status: saving(status).get("saving_trouble") == ""))
        assert again["not_saved_since_s"] is None
        assert again["saved_through"] > failing["saved_through"]
    trial.wait_finished()
    assert_right(tmp_path, rows)
