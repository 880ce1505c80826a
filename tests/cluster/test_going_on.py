"""Runs that lose all that lives go on from saved state and the log: every row counts once, in its order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commanding import (
    SNAPSHOT_EVERY_S,
    Commanded,
    assert_right,
    delivers,
    every_state_is_saved,
    saved_partitions,
)
from counting import PUSHED, Flowing
from owning import Owner

from understudy.runtime.trial import Trial

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


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
