"""Two processes save one partition: one of them was declared dead and does not know it yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from saving_kit import P, Saver, bucket, objects, once_before, restored, set_aside, snapshots, state

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving import cleaning, partition_saves
from understudy.runtime.saving.cleaning import clean
from understudy.runtime.saving.opening import open_place
from understudy.runtime.saving.places import Place
from understudy.runtime.saving.remote import RemotePlace

KEPT = [bucket(1, b"one")]


def test_they_save_the_same_bucket_under_two_names(place: Place, tmp_path: Path) -> None:
    one, two = Saver(place, tmp_path / "1"), Saver(place, tmp_path / "2")
    one.save(40, KEPT)
    two.save(40, KEPT)
    assert len(snapshots(place)) == 2
    assert restored(place, tmp_path / "into").state == state(40, KEPT)


def test_in_turns_they_leave_whole_snapshots(place: Place, tmp_path: Path) -> None:
    one, two = Saver(place, tmp_path / "1"), Saver(place, tmp_path / "2")
    for at in range(6):
        saver = (one, two)[at % 2]
        kept = [bucket(number, b"payload %d" % number) for number in range(at, at + 3)]
        saver.save(40 + 10 * at, kept, gone_through=at - 1)
        found = restored(place, tmp_path / "into")
        assert found.state == state(40 + 10 * at, kept, gone_through=at - 1)
        assert found.passed_over == ()
    assert set_aside(place) == set()


def test_one_that_lags_behind_expires_its_own_snapshot_and_nothing_of_the_other(
    place: Place, tmp_path: Path
) -> None:
    ahead, behind = Saver(place, tmp_path / "1"), Saver(place, tmp_path / "2")
    ahead.save(80, KEPT)
    ahead.save(100, KEPT)
    saved = behind.save(60, KEPT)
    assert (saved.through, saved.floor, saved.kept) == (60, 80, 2)
    assert [each.through for each in ahead.store.listed(P)] == [100, 80]
    assert restored(place, tmp_path / "into").passed_over == ()


def test_objects_that_expire_while_a_save_counts_on_them_are_written_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process deletes, just before the manifest is written, what this save had found."""
    saver = Saver(place, tmp_path)
    saver.save(40, KEPT)

    def delete_all() -> None:
        for name in objects(place):
            place.delete(f"run-1/sessions@0/objects/{name}")

    once_before(place, "write", delete_all, monkeypatch, where="/snapshots/")
    saver.save(41, [*KEPT, bucket(2, b"two")])
    found = restored(place, tmp_path / "into")
    assert found.state == state(41, [*KEPT, bucket(2, b"two")])
    assert found.passed_over == ()


def test_a_save_gives_up_if_its_objects_go_every_time(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(place, tmp_path)
    honest = place.write

    def write(name: str, *rest: Any) -> None:
        if "/snapshots/" in name:
            for each in objects(place):
                place.delete(f"run-1/sessions@0/objects/{each}")
        honest(name, *rest)

    monkeypatch.setattr(place, "write", write)
    with pytest.raises(EnvironmentFailed, match="another process deletes what this one writes"):
        saver.save(40)
    assert snapshots(place) == [], "it is taken back"


def test_a_process_that_slept_deletes_nothing_by_an_old_look(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(place, tmp_path, keep=1)
    saver.save(40)

    def late(*arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(cleaning, "FRESH_S", 0.0)
            return clean(*arguments)

    before = objects(place)
    with monkeypatch.context() as patch:
        patch.setattr(partition_saves, "clean", late)
        saved = saver.save(60)
    assert (saved.floor, saved.kept) == (40, 2)
    assert before <= objects(place)


def test_both_at_once_leave_a_whole_snapshot(place: Place, tmp_path: Path) -> None:
    """Each saves on its own; whatever races they run, the newest that is restored is one of the last."""
    failures: list[Exception] = []

    def save(saver: Saver, offset: int) -> None:
        try:
            for at in range(8):
                saver.save(40 + 10 * at + offset, [bucket(at, b"payload %d" % at)], gone_through=at - 1)
        except Exception as problem:
            failures.append(problem)

    savers = [Saver(place, tmp_path / str(at)) for at in range(2)]
    threads = [threading.Thread(target=save, args=(saver, at)) for at, saver in enumerate(savers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert restored(place, tmp_path / "into").state.through >= 110
    savers[0].save(200)
    found = restored(place, tmp_path / "into")
    assert (found.state.through, found.passed_over) == (200, ())


class Overtaken:
    """A file system in which another process deletes each file just before it is read or moved."""

    def __init__(self, files: pafs.FileSystem) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open_input_stream(self, path: str, **options: Any) -> Any:
        opened = self._files.open_input_stream(path, **options)
        self._files.delete_file(path)
        return opened

    def move(self, path: str, to: str) -> None:
        self._files.delete_file(path)
        self._files.move(path, to)


def test_a_remote_file_that_goes_in_the_middle_counts_as_gone(s3_url: str, tmp_path: Path) -> None:
    place = open_place(s3_url)
    assert isinstance(place, RemotePlace)
    uses: list[Callable[[], object]] = [
        lambda: place.read("one", lambda: None),
        lambda: place.download("one", tmp_path / "one", lambda: None),
        lambda: place.move("one", "two"),
    ]
    for use in uses:
        place.write("one", [b"contents"], lambda: None)
        with pytest.MonkeyPatch.context() as overtaken:
            overtaken.setattr(place, "_files", Overtaken(place._files))
            with pytest.raises(FileNotFoundError):
                use()
