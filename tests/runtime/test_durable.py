"""What is left on disk is there after a loss of power."""

from __future__ import annotations

from pathlib import Path

import pytest

from disk_kit import DiskRecord
from understudy.runtime.durable import leave_mark


def test_a_mark_is_on_disk_with_its_name_and_that_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskRecord(tmp_path, monkeypatch)
    leave_mark(tmp_path / "closing" / "clicks")
    assert (tmp_path / "closing" / "clicks").exists()
    assert disk.steps == ["sync closing", "sync ."]
