"""What the processes of a run agree on, written once and read by each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from understudy.flow.errors import EnvironmentFailed
from understudy.flow.policy import POLICIES
from understudy.runtime.settings import RunSettings


def made(folder: Path, **changes: Any) -> RunSettings:
    return RunSettings("run", "flow.py", str(folder), "127.0.0.1:1", **changes)


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    settings = made(tmp_path, silence_ms=700, gateway_port=7)
    settings.save()
    assert RunSettings.load(tmp_path) == settings


@pytest.mark.parametrize("policy", POLICIES.values())
def test_without_a_word_a_run_is_as_patient_as_its_policy(policy: type, tmp_path: Path) -> None:
    assert made(tmp_path).silence_ms == policy().silence_ms == 2_000


@pytest.mark.parametrize("silence_ms", [500, 2_000, 10_000])
def test_several_beats_fit_into_the_silence(silence_ms: int, tmp_path: Path) -> None:
    settings = made(tmp_path, silence_ms=silence_ms)
    assert settings.silence_s == silence_ms / 1_000
    assert settings.beat_s <= settings.silence_s / 8


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"run\.json is missing"):
        RunSettings.load(tmp_path)


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
    settings = made(tmp_path, policy=policy, nodes=nodes, partitions=partitions)
    assert settings.partition_count == count
