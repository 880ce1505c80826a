"""What the processes of a run agree on, written once and read by each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from understudy.core.host.limits import Limits
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.policy import POLICIES, Policy, policy_named
from understudy.runtime.settings import RunSettings


def made(folder: Path, **changes: Any) -> RunSettings:
    return RunSettings("run", "flow.py", str(folder), "127.0.0.1:1", **changes)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_what_was_saved_is_what_is_loaded(tmp_path: Path, policy: Policy) -> None:
    settings = made(tmp_path, policy=policy, gateway_port=7, crowd=1.5, partitions=3)
    settings.save()
    assert RunSettings.load(tmp_path) == settings


def test_every_setting_is_carried(tmp_path: Path) -> None:
    """None of them is at its default here, so one that gets lost shows."""
    limits = Limits(*(each.default + 1 for each in fields(Limits)))
    policy = replace(POLICIES["flux"], silence_ms=700)
    changes: dict[str, Any] = {"crowd": 0.5, "policy": policy, "limits": limits}
    for each in fields(RunSettings):
        default = each.default
        if isinstance(default, bool):
            changes[each.name] = not default
        elif isinstance(default, int):
            changes[each.name] = default + 1
        elif isinstance(default, str):
            changes[each.name] = f"another {default}"
    settings = made(tmp_path, **changes)
    plain = made(tmp_path)
    settings.save()
    assert RunSettings.load(tmp_path) == settings
    same = [f.name for f in fields(RunSettings) if getattr(settings, f.name) == getattr(plain, f.name)]
    assert same == ["run", "flow_path", "folder", "zookeeper"]


def test_a_policy_is_carried_with_the_parameters_that_its_user_chose(tmp_path: Path) -> None:
    policy = policy_named("pair", replicas=5, silence_ms=700)
    made(tmp_path, policy=policy).save()
    loaded = RunSettings.load(tmp_path).policy
    assert loaded == policy
    assert (loaded.replicas, loaded.silence_ms, loaded.parameters) == (5, 700, ("silence_ms", "replicas"))


def test_a_policy_that_this_program_does_not_list_is_carried_too(tmp_path: Path) -> None:
    """It is data: a run goes on under the policy that it was created with."""
    policy = replace(POLICIES["flux"], name="mine", summary="Of my own.", replicas=3, isolated=True, nodes=6)
    made(tmp_path, policy=policy, nodes=6).save()
    loaded = RunSettings.load(tmp_path)
    assert loaded.policy == policy
    assert loaded.partition_count == 2


@pytest.mark.parametrize("silence_ms", [500, 2_000, 10_000])
def test_several_beats_fit_into_the_silence(silence_ms: int, tmp_path: Path) -> None:
    settings = made(tmp_path, policy=policy_named("pair", silence_ms=silence_ms))
    assert settings.silence_s == silence_ms / 1_000
    assert settings.beat_s <= settings.silence_s / 8


@pytest.mark.parametrize(
    ("policy", "nodes", "partitions", "count"),
    [
        ("none", 1, 0, 1),
        ("pair", 2, 0, 1),
        ("flux", 4, 0, 4),
        ("flux", 4, 6, 6),
        ("cluster", 4, 0, 2),
        ("cluster", 4, 3, 3),
    ],
)
def test_there_are_as_many_partitions_as_nodes_for_one_dataflow_unless_said(
    policy: str, nodes: int, partitions: int, count: int, tmp_path: Path
) -> None:
    settings = made(tmp_path, policy=POLICIES[policy], nodes=nodes, partitions=partitions)
    assert settings.partition_count == count


# --- what is in the way of a run ---------------------------------------------------------------------------


def test_a_folder_without_a_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"There is no run in .*run\.json is missing"):
        RunSettings.load(tmp_path)


def change(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def spoil(file: Path) -> None:
        saved = json.loads(file.read_text())
        change(saved)
        file.write_text(json.dumps(saved))

    return spoil


def make_it_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


SPOILED: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_text(file.read_text()[:40]),
    "empty": lambda file: file.write_text(""),
    "no text": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda file: file.write_text("[]"),
    "deep": lambda file: file.write_text("[" * 100_000),
    "a folder": make_it_a_folder,
    "no policy": change(lambda saved: saved.pop("policy")),
    "a policy by its name alone": change(lambda saved: saved.update(policy="pair")),
    "a policy without its replicas": change(lambda saved: saved["policy"].pop("replicas")),
    "a policy that makes no sense": change(lambda saved: saved["policy"].update(silence_ms=3)),
    "a silence that is no number": change(lambda saved: saved["policy"].update(silence_ms="2 s")),
    "no run": change(lambda saved: saved.pop("run")),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_settings_that_cannot_be_read_are_named(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    made(tmp_path).save()
    spoil(tmp_path / "run.json")
    with pytest.raises(EnvironmentFailed, match=f"{tmp_path}/run.json cannot be read: "):
        RunSettings.load(tmp_path)


def test_a_setting_of_another_version_of_this_program_is_passed_over(tmp_path: Path) -> None:
    made(tmp_path).save()
    change(lambda saved: saved.update(flavour="sweet", policy={**saved["policy"], "colour": "red"}))(
        tmp_path / "run.json"
    )
    assert RunSettings.load(tmp_path) == made(tmp_path)


@pytest.mark.parametrize("format", [None, 1, 99])
def test_a_run_of_another_version_is_said_to_be_one(format: int | None, tmp_path: Path) -> None:
    made(tmp_path).save()
    change(lambda saved: saved.update(format=format) if format else saved.pop("format"))(
        tmp_path / "run.json"
    )
    with pytest.raises(EnvironmentFailed, match=f"another version of Understudy.*has format {format or 1}, "):
        RunSettings.load(tmp_path)


def test_settings_are_replaced_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, nodes=2).save()

    def full(_file: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        made(tmp_path, nodes=9).save()
    assert RunSettings.load(tmp_path).nodes == 2
