"""The mark of a run that was stopped in good order."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.stopped import Stopped, forget_stopped, leave_stopped, stopped_in


@pytest.mark.parametrize("all_saved", [True, False])
def test_a_run_that_was_stopped_says_so_until_it_goes_on(tmp_path: Path, all_saved: bool) -> None:
    assert stopped_in(tmp_path) is None
    leave_stopped(tmp_path, Stopped(all_saved))
    assert stopped_in(tmp_path) == Stopped(all_saved)
    for _ in range(2):
        forget_stopped(tmp_path)
        assert stopped_in(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"all_saved": "yes"}', "{}"])
def test_a_damaged_mark_promises_nothing(tmp_path: Path, text: str) -> None:
    leave_stopped(tmp_path, Stopped(all_saved=True))
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert stopped_in(tmp_path) == Stopped(all_saved=False)


def test_a_full_disk_keeps_no_run_from_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        leave_stopped(tmp_path / "gone", Stopped(all_saved=True))
    assert "cannot be written down" in caplog.text


def test_a_mark_that_cannot_be_removed_keeps_a_run_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would say of a run that broke off later that every state is saved."""

    def read_only(_: Path) -> None:
        raise OSError("Read-only file system")

    leave_stopped(tmp_path, Stopped(all_saved=True))
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(EnvironmentFailed, match="Read-only file system"):
        forget_stopped(tmp_path)
