"""A changed flow goes live while rows flow, or is taken back: every row counts once, in its order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commanding import PATIENCE_S, Commanded, assert_right, delivers, every_state_is_saved, said_by
from owning import Owner

import understudy as us

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

LAST_AGGREGATE = 'F.sum("value").alias("total")\n    )'
RAISES = 'F.raise_error(F.lit("this version is wrong")).cast("int")'


def give_a_column(flow: Path, column: str) -> None:
    """Edit the flow's file: its output has another column."""
    text = flow.read_text()
    assert text.count(LAST_AGGREGATE) == 1
    flow.write_text(text.replace(LAST_AGGREGATE, f'{LAST_AGGREGATE}.withColumn("made_by", {column})'))


def made_by(folder: Path) -> list[Any]:
    """The versions that made the rows of the output, in its order, each once."""
    column = us.read_output(folder / "out").column("made_by").to_pylist()
    return [made for at, made in enumerate(column) if at == 0 or made != column[at - 1]]


def flows(status: dict[str, Any]) -> bool:
    return delivers(status) and every_state_is_saved(status)


def test_a_changed_flow_goes_live_although_the_gateway_is_killed_on_trial_and_is_the_one_that_goes_on(
    owner: Callable[..., Owner], tmp_path: Path
) -> None:
    run = Commanded(owner, tmp_path, "pair")
    with run.rows as rows:
        run.wait(flows)
        give_a_column(run.flow, "F.lit(2)")
        upgrade = run.upgrade(trial_s=8.0)
        killed = run.wait(
            lambda status: status["candidate"] is not None and status["candidate"]["live"], 2 * PATIENCE_S
        )
        run.kill_gateway()
        again = run.wait(lambda status: status["gateway"] != killed["gateway"])
        assert again["version"] == 1, "it was killed on trial"
        assert said_by(upgrade).endswith("done\n")
        assert upgrade.process.returncode == 0
        run.wait(lambda status: status["version"] == 2 and status["candidate"] is None)
        assert "the run goes on with version 2" in run.stop()
        run.go_on()
        run.wait(delivers)
    run.said()
    assert made_by(tmp_path) == [None, 2]
    assert_right(tmp_path, rows)


def test_a_version_that_fails_is_taken_back_also_by_a_gateway_that_was_killed_meanwhile(
    owner: Callable[..., Owner], tmp_path: Path
) -> None:
    run = Commanded(owner, tmp_path, "none")
    with run.rows as rows:
        run.wait(flows)
        give_a_column(run.flow, RAISES)
        upgrade = run.upgrade(trial_s=60.0)
        run.wait(lambda status: status["candidate"] is not None)
        run.kill_gateway()
        said = said_by(upgrade)
        assert "taken back" in said.splitlines()[-1]
        assert "this version is wrong" in said
        assert upgrade.process.returncode == 1
        before = run.wait(delivers)
        run.wait(lambda status: status["rows_out"] > before["rows_out"])
        assert before["version"] == 1
        assert before["candidate"] is None
    run.said()
    assert_right(tmp_path, rows)
