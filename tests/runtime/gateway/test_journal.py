"""The journal of one sink's deliveries is whole on disk, and its position never falls back."""

from __future__ import annotations

from pathlib import Path

import pytest

import understudy as us
from disk_kit import DiskRecord
from understudy.runtime.gateway.journal import DeliveredRange, Journal


def test_a_position_is_on_disk_with_its_name_before_copies_may_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskRecord(tmp_path, monkeypatch)
    journal = Journal(tmp_path / "one.json")
    journal.write(5, None)
    assert disk.steps == ["sync one.half", "rename one.half to one.json", "sync ."]
    assert disk.synced["one.half"] == (tmp_path / "one.json").read_bytes()
    assert journal.read() == (5, None)


def test_the_folder_of_the_journals_is_on_disk_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskRecord(tmp_path, monkeypatch)
    Journal(tmp_path / "delivery" / "one.json").write(5, None)
    assert disk.steps[0] == "sync ."


def test_an_intent_is_whole_on_disk_before_it_replaces_a_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskRecord(tmp_path, monkeypatch)
    intent = DeliveredRange(5, 7, ((6, 2, "digest"),))
    Journal(tmp_path / "one.json").write(5, intent)
    assert disk.steps[:2] == ["sync one.half", "rename one.half to one.json"]
    assert disk.synced["one.half"] == (tmp_path / "one.json").read_bytes()
    assert Journal(tmp_path / "one.json").read() == (5, intent)


def test_the_name_of_a_journal_is_synced_when_its_position_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskRecord(tmp_path, monkeypatch)
    written = Journal(tmp_path / "one.json")
    for position, done in ((5, None), (5, DeliveredRange(5, 6, ())), (6, DeliveredRange(5, 6, ()))):
        written.write(position, done)
    file = ["sync one.half", "rename one.half to one.json"]
    assert disk.steps == [*file, "sync .", *file, *file, "sync ."]


@pytest.mark.parametrize(
    "text",
    [
        '{"position": 3',
        "{}",
        "null",
        '{"position": null, "intent": null}',
        '{"position": 3, "intent": {}}',
        '{"position": 3, "intent": {"after": 1, "through": 3, "buckets": [[2, 1]]}}',
    ],
)
def test_a_journal_that_cannot_be_read_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text(text)
    with pytest.raises(us.EnvironmentFailed, match=r"journal .*two\.json cannot be read"):
        Journal(tmp_path / "two.json").read()


def test_a_journal_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "delivery").write_text("a file, where the folder should be")
    with pytest.raises(
        us.EnvironmentFailed, match=r"journal .*two\.json cannot be written: .* Free or repair"
    ):
        Journal(tmp_path / "delivery" / "two.json").write(3, None)
