"""Java that cannot be used is named, with what to do about it."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from understudy.core.bucket import NOTHING
from understudy.engine.horizon import horizon_of
from understudy.engine.jvm import JAVA_HOME_VARIABLE, find_java, start_jvm, sweep
from understudy.flow.errors import EnvironmentFailed


def test_a_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JAVA_HOME_VARIABLE, str(tmp_path))
    with pytest.raises(EnvironmentFailed, match=rf"no Java at {tmp_path}.*{JAVA_HOME_VARIABLE}"):
        find_java()


def test_an_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = find_java(None)
    monkeypatch.setenv(JAVA_HOME_VARIABLE, "/nowhere")
    assert find_java(installed.home) == installed
    assert installed.version().split(".")[0].isdigit()


def test_a_java_that_does_not_start_says_its_last_words_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fake = tmp_path / "bin" / "java"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'no heap for you' >&2\nexit 7\n")
    fake.chmod(0o755)
    with pytest.raises(EnvironmentFailed, match=r"exit code 7.*no heap for you"):
        start_jvm(java=find_java(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["bin"]


@pytest.mark.timeout(20)
def test_a_command_that_no_process_can_have_is_refused_at_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="null byte"):
        start_jvm(options=["-Da=\0"])
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = tmp_path / f"understudy-{gone.pid}-abc"
    kept = [
        tmp_path / f"understudy-{os.getpid()}-abc",
        tmp_path / "understudy-study-abc",
        tmp_path / "others",
    ]
    for folder in (left, *kept):
        (folder / "inside").mkdir(parents=True)
    sweep()
    assert sorted(tmp_path.iterdir()) == sorted(kept)


@pytest.mark.parametrize(
    ("through", "extent_us", "horizon"),
    [
        (9, 0, 10),
        (9, 1_000, 9),
        (9, 100_000, 9),
        (9, 100_001, 8),
        (9, math.inf, NOTHING),
        (NOTHING, 5, NOTHING),
    ],
)
def test_the_horizon_is_the_oldest_bucket_the_state_reaches_back_to(
    through: int, extent_us: float, horizon: int
) -> None:
    assert horizon_of(through, extent_us, width_us=100_000) == horizon
