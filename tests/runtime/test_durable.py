"""What is left on disk is there after a loss of power."""

from __future__ import annotations

from pathlib import Path

import pytest

from disk_kit import DiskRecord
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.durable import leave_mark, make_folder, write_once, write_whole


def test_a_folder_is_on_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskRecord(tmp_path, monkeypatch)
    make_folder(tmp_path / "closing")
    assert (tmp_path / "closing").is_dir()
    assert disk.steps == ["sync ."]
    make_folder(tmp_path / "closing")


def test_a_private_file_is_never_readable_by_others(tmp_path: Path) -> None:
    """Also not in the place of one that they could read, or while it is half written."""
    file = tmp_path / "run.json"
    for each in (file, tmp_path / "run.half"):
        each.write_text("before")
        each.chmod(0o644)
    write_whole(file, "keys", private=True)
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("keys", 0o600)


def test_every_new_folder_of_a_path_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskRecord(tmp_path, monkeypatch)
    make_folder(tmp_path / "versions" / "2")
    assert disk.steps == ["sync .", "sync versions"]


def test_a_file_is_written_once_and_then_on_disk_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskRecord(tmp_path, monkeypatch)
    write_once(tmp_path / "flow.json", "first")
    assert disk.steps[-1] == "sync ."
    assert any("flow.json" in step for step in disk.steps[:-1])
    write_once(tmp_path / "flow.json", "second")
    assert disk.steps[-1] == "sync ."
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("flow.json", "first")]


def test_a_mark_asks_nothing_of_the_folder_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one may not even be readable."""
    (tmp_path / "run").mkdir()
    disk = DiskRecord(tmp_path, monkeypatch)
    leave_mark(tmp_path / "run" / "finished")
    assert disk.steps == ["sync run"]


def test_a_mark_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "closing").touch()
    with pytest.raises(EnvironmentFailed, match=r"mark .*closing/clicks cannot be made: "):
        leave_mark(tmp_path / "closing" / "clicks")
    with pytest.raises(EnvironmentFailed, match=r"folder .*/closing cannot be made: "):
        make_folder(tmp_path / "closing")
