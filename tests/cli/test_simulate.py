"""`understudy simulate` for runs that are upgraded: what it sums up, says of a failure, and refuses."""

from __future__ import annotations

import pytest

from understudy.cli.main import main
from understudy.sim import seeds
from understudy.sim.checkers import Violation


def test_simulate_sums_up_what_upgrades_led_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--policy", "none", "--upgrades", "--seeds", "20"]) == 0
    out = capsys.readouterr().out
    assert "policy none with upgrades: 20 seeds" in out
    assert "no failing" in out
    for what in ("upgrades", "turns back", "deliveries of a candidate", "commits"):
        assert f" {what}" in out


def test_simulate_says_how_a_failing_schedule_of_an_upgrade_is_run_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(policy: str, seed: int, *, replicas: int | None) -> None:
        raise Violation("one-awake", f"{policy} of {replicas} with seed {seed}")

    monkeypatch.setattr(seeds, "run_upgrade_seed", failing)
    asked = ["simulate", "--policy", "pair", "--replicas", "3", "--upgrades", "--seed", "7", "--seeds", "2"]
    assert main(asked) == 1
    out = capsys.readouterr().out
    assert "seed 7 fails:\none-awake: pair of 3 with seed 7" in out
    assert "understudy simulate --policy pair --replicas 3 --upgrades --seed 7 --seeds 1" in out


def test_simulate_explores_an_upgrade(capsys: pytest.CaptureFixture[str]) -> None:
    explore = ["simulate", "--policy", "none", "--explore", "1", "--upgrades"]
    assert main([*explore, "--gateway-crashes", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 buckets while a flow is upgraded and taken back, with 1 gateway crashes at any point" in out
    assert "no violation" in out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--policy", "cluster"], "an upgrade has nothing to begin with"),
        (["--explore", "1", "--kills", "1"], "Leave out --kills"),
        (["--explore", "1", "--saves", "2"], "Leave out --kills, --saves"),
    ],
)
def test_simulate_refuses_upgrades_that_it_cannot_try(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--upgrades", "--seeds", "1", *arguments]) == 2
    assert why in capsys.readouterr().err
