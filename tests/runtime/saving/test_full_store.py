"""A store without room: what a save that failed has left must not keep later ones from fitting."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from saving_kit import RUN, SHELF, P, Saver, bucket, no_tick, objects, restored, sealed, snapshots, state

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving import cleaning
from understudy.runtime.saving.local import LocalPlace
from understudy.runtime.saving.partition_saves import Saved
from understudy.runtime.saving.places import Parts, Place
from understudy.runtime.saving.store import SnapshotStore

ROOM_BYTES = 100_000
WAIT_S = 30.0


class Small:
    """Makes a place one of so much room. What does not fit fails with this error."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch, *, code: int | None) -> None:
        self._place = place
        self._code = code
        self._one_at_a_time = threading.RLock()
        #: Refuse whatever is written, from this call on.
        self.writes_left: float = float("inf")
        honest_write, honest_upload = place.write, place.upload

        def write(name: str, parts: Parts, tick: Any) -> None:
            with self._one_at_a_time:
                self._require_room(sum(memoryview(part).nbytes for part in parts))
                honest_write(name, parts, tick)

        def upload(name: str, source: Path, tick: Any) -> None:
            with self._one_at_a_time:
                self._require_room(source.stat().st_size)
                honest_upload(name, source, tick)

        monkeypatch.setattr(place, "write", write)
        monkeypatch.setattr(place, "upload", upload)

    def _require_room(self, size_bytes: int) -> None:
        self.writes_left -= 1
        if self.used + size_bytes > ROOM_BYTES or self.writes_left < 0:
            raise OSError(self._code, "no room") if self._code else OSError("the quota is exceeded")

    @property
    def used(self) -> int:
        folders = ("objects", "snapshots")
        return sum(entry.size_bytes for each in folders for entry in self._place.files(f"{SHELF}/{each}"))


class Process:
    """Saves snapshots of so many files of so many bytes, whose contents no other has."""

    def __init__(self, place: Place, folder: Path, *, version: int = 1) -> None:
        self.store = SnapshotStore(place, RUN, version=version)
        self._folder = folder

    def sealed(self, through: int, files: int, size_bytes: int) -> Path:
        contents = {f"{at}.snapshot": os.urandom(size_bytes) for at in range(files)}
        return sealed(self._folder / f"snapshot-{through}", through, contents)

    def save(self, through: int, files: int, size_bytes: int) -> Saved:
        return self.store.save(P, self.sealed(through, files, size_bytes), state(through))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, None])
def test_a_save_that_did_not_fit_leaves_room_for_one_that_does(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    """Also where the file system does not say in so many words that it is full."""
    small = Small(place, monkeypatch, code=code)
    process = Process(place, tmp_path)
    process.save(1, 4, 10_000)
    process.save(2, 4, 10_000)
    with pytest.raises(EnvironmentFailed, match=r"no room|quota"):
        process.save(3, 6, 10_000)
    assert process.save(4, 1, 9_000).kept == 2
    assert [each.through for each in process.store.listed(P)] == [4, 2]
    assert small.used < 60_000


def test_a_save_that_finds_a_disk_full_leaves_nothing_on_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may need that room, and links to a checkpoint's files would keep those from going."""
    Small(place, monkeypatch, code=errno.ENOSPC)
    process = Process(place, tmp_path)
    process.save(1, 4, 10_000)
    before = objects(place)
    with pytest.raises(EnvironmentFailed, match="Free the disk"):
        process.save(2, 9, 10_000)
    assert objects(place) == before
    assert len(snapshots(place)) == 1


def test_a_manifest_that_does_not_fit_leaves_nothing_either(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Small(place, monkeypatch, code=errno.ENOSPC)
    process = Process(place, tmp_path)
    process.save(1, 1, 10)
    before = objects(place)
    small.writes_left = 2
    with pytest.raises(EnvironmentFailed, match=f"{SHELF}/snapshots"):
        process.save(2, 1, 10)
    assert small.writes_left < 0
    assert objects(place) == before


@pytest.mark.parametrize("version", [1, 2])
def test_what_another_process_has_named_meanwhile_stays(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """It found the objects of a save that then had no room for its manifest."""
    small = Small(place, monkeypatch, code=errno.ENOSPC)
    one, two = Process(place, tmp_path / "1"), Process(place, tmp_path / "2", version=version)
    folder = one.sealed(2, 2, 10)
    honest = place.write

    def write(name: str, parts: Parts, tick: Any) -> None:
        if "/snapshots/" in name and small.writes_left == 1:
            monkeypatch.setattr(place, "write", honest)
            small.writes_left = float("inf")
            two.store.save(P, folder, state(2))
            small.writes_left = 0
        honest(name, parts, tick)

    monkeypatch.setattr(place, "write", write)
    small.writes_left = 4
    with pytest.raises(EnvironmentFailed, match=f"{SHELF}/snapshots"):
        one.store.save(P, folder, state(2))
    small.writes_left = float("inf")
    found = two.store.restore(P, tmp_path / "into")
    assert found is not None
    assert (found.state.through, found.passed_over) == (2, ())


def test_a_failure_of_another_kind_costs_no_object_that_the_next_save_goes_on_from(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large state would never get through a line that breaks now and then."""
    small = Small(place, monkeypatch, code=errno.EIO)
    process = Process(place, tmp_path)
    process.save(1, 1, 10)
    folder = process.sealed(2, 5, 10)
    small.writes_left = 3
    with pytest.raises(EnvironmentFailed):
        process.store.save(P, folder, state(2))
    small.writes_left = float("inf")
    # Of five files, the engine's manifest and the snapshot's.
    assert process.store.save(P, folder, state(2)).files_written == 7 - 3


def test_what_an_earlier_process_has_left_on_a_full_disk_grows_old(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed in a save. No new file comes on such a disk that would show what time it is."""
    small = Small(place, monkeypatch, code=errno.ENOSPC)
    process = Process(place, tmp_path)
    process.save(1, 1, 10)
    place.write(f"{SHELF}/objects/{'0' * 32}", [b"left"], no_tick)
    small.writes_left = 0
    monkeypatch.setattr(cleaning, "GRACE_S", 2.0)
    with pytest.raises(EnvironmentFailed):
        process.save(2, 1, 10)
    assert "0" * 32 in objects(place), "another process may be about to name it"
    deadline = time.monotonic() + WAIT_S
    while "0" * 32 in objects(place):
        assert time.monotonic() < deadline
        with pytest.raises(EnvironmentFailed):
            process.save(2, 1, 10)


def test_links_to_files_of_a_checkpoint_go_with_the_save_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = LocalPlace(tmp_path / "store")
    small = Small(place, monkeypatch, code=errno.ENOSPC)
    process = Process(place, tmp_path)
    folder = process.sealed(1, 2, 10)
    small.writes_left = 2
    with pytest.raises(EnvironmentFailed):
        process.store.save(P, folder, state(1))
    assert {file.stat().st_nlink for file in folder.glob("*.snapshot")} == {1}


def test_a_state_that_is_saved_again_and_again_on_a_full_disk_comes_back_whole(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write does not fit, and with runs of buckets that earlier saves wrote."""
    small = Small(place, monkeypatch, code=errno.ENOSPC)
    saver = Saver(place, tmp_path)
    kept = []
    for at in range(12):
        kept.append(bucket(at, b"payload %d" % at))
        small.writes_left = at % 6
        try:
            saver.save(40 + at, kept)
        except EnvironmentFailed:
            small.writes_left = float("inf")
            saver.save(40 + at, kept)
        found = restored(place, tmp_path / "into")
        assert (found.state, found.passed_over) == (state(40 + at, kept), ())
