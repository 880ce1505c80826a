"""A store that fails in the middle of a save: the save says so, nothing is listed, and the next one works."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from saving_kit import RUN, SHELF, P, Saver, bucket, files_of, objects, restored, sealed, snapshots, state

from disk_kit import DiskRecord
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving import store as store_module
from understudy.runtime.saving.local import LocalPlace
from understudy.runtime.saving.places import Place
from understudy.runtime.saving.store import SnapshotStore

KEPT = [bucket(1, b"one" * 1000)]


def failing_at(place: Place, call: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every write from this one on fails. Returns what was written, as it grows."""
    written: list[str] = []
    for method in ("write", "upload"):
        honest = getattr(place, method)

        def write(name: str, *rest: Any, honest: Any = honest) -> None:
            if len(written) >= call:
                raise OSError(errno.EIO, "the cable is out")
            written.append(name)
            honest(name, *rest)

        monkeypatch.setattr(place, method, write)
    return written


@pytest.mark.parametrize("writes", range(8))
def test_a_save_that_fails_after_some_writes_has_not_happened(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    saver = Saver(place, tmp_path)
    saver.save(40)
    before = snapshots(place)
    with monkeypatch.context() as patch:
        written = failing_at(place, writes, patch)
        # Two new files of the engine, its manifest, a run, and the snapshot's manifest.
        if writes < 5:
            with pytest.raises(EnvironmentFailed) as failed:
                saver.save(60, KEPT)
            assert "the cable is out" in str(failed.value)
            assert f"{place.url}/{SHELF}" in str(failed.value)
            assert snapshots(place) == before
            assert restored(place, tmp_path / "into").state.through == 40
        else:
            saver.save(60, KEPT)
            assert len(written) == 5
    again = saver.save(60, KEPT)
    if writes < 5:
        assert again.files_written == 5 - writes, "what the failed save wrote is used"
    found = restored(place, tmp_path / "into")
    assert found.state == state(60, KEPT)


def test_a_save_succeeds_if_only_cleaning_fails(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saver = Saver(place, tmp_path, keep=1)
    saver.save(40)

    def refuse(_name: str) -> None:
        raise PermissionError("not allowed")

    with monkeypatch.context() as patch:
        patch.setattr(place, "delete", refuse)
        saved = saver.save(60)
    assert (saved.through, saved.floor, saved.kept) == (60, 40, 2), "the old one may still be restored"
    assert "not allowed" in caplog.text
    assert saver.save(80).floor == 80
    assert len(snapshots(place)) == 1


def test_a_store_that_never_answers_fails_in_bounded_time(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.silence_s = 0.3
    saver = Saver(place, tmp_path)
    saver.save(40)
    forever = threading.Event()

    def hang(*_: object) -> None:
        forever.wait(60)

    for through, method in enumerate(("write", "upload", "files", "read", "delete"), 60):
        with monkeypatch.context() as patch:
            patch.setattr(place, method, hang)
            began = time.monotonic()
            if method == "delete":
                assert Saver(place, tmp_path, keep=1).save(through).kept == 2
            elif method == "read":
                with pytest.raises(EnvironmentFailed, match=r"there was no answer for 0\.3 s"):
                    restored(place, tmp_path / "into")
            else:
                with pytest.raises(EnvironmentFailed, match=r"there was no answer for 0\.3 s"):
                    saver.save(through, KEPT)
            assert time.monotonic() - began < 5
    forever.set()
    assert saver.save(80, KEPT).kept == 2


def test_a_second_save_of_a_partition_does_not_wait_for_ever_for_the_first(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(place, tmp_path)
    begun, go_on = threading.Event(), threading.Event()
    honest = place.files

    def slow(folder: str) -> Any:
        begun.set()
        go_on.wait(30)
        return honest(folder)

    with monkeypatch.context() as patch:
        patch.setattr(place, "files", slow)
        first = threading.Thread(target=saver.save, args=(40,), daemon=True)
        first.start()
        assert begun.wait(10)
        place.silence_s = 0.2
        with pytest.raises(
            EnvironmentFailed, match=r"An earlier snapshot of sessions/0 is still being saved"
        ):
            saver.save(60)
        go_on.set()
        first.join(30)
    assert saver.save(60).kept == 2


def test_a_file_that_is_not_what_its_snapshot_says_is_not_saved(place: Place, tmp_path: Path) -> None:
    folder = sealed(tmp_path / "s", 40, files_of(40))
    (folder / "checkpoint/offsets/40").write_bytes(b"longer than it was")
    with pytest.raises(EnvironmentFailed, match="offsets/40 is not what its snapshot says"):
        SnapshotStore(place, RUN).save(P, folder, state(40))
    assert snapshots(place) == []


def test_a_folder_that_is_no_snapshot_is_not_saved(place: Place, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="is not a snapshot"):
        SnapshotStore(place, RUN).save(P, tmp_path, state(40))
    folder = sealed(tmp_path / "s", 40, files_of(40))
    (folder / "checkpoint/offsets/40").unlink()
    with pytest.raises(EnvironmentFailed, match="offsets/40"):
        SnapshotStore(place, RUN).save(P, folder, state(40))


def test_the_probe_tries_all_and_leaves_nothing(place: Place) -> None:
    SnapshotStore(place, RUN).probe()
    assert place.files(RUN) == []


@pytest.mark.parametrize(
    ("method", "said"), [("write", "written"), ("read", "read"), ("delete", "deleted from")]
)
def test_the_probe_says_what_cannot_be_done(
    place: Place, monkeypatch: pytest.MonkeyPatch, method: str, said: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "not allowed")

    monkeypatch.setattr(place, method, refuse)
    with pytest.raises(EnvironmentFailed) as failed:
        SnapshotStore(place, RUN).probe()
    assert f"The store of snapshots {place.url} cannot be {said}" in str(failed.value)
    assert "not allowed" in str(failed.value)


def test_the_probe_waits_a_bounded_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "OPENING_S", 0.2)
    monkeypatch.setattr(place, "write", lambda *_: time.sleep(3))
    with pytest.raises(EnvironmentFailed, match=r"there was no answer for 0\.2 s"):
        SnapshotStore(place, RUN).probe()


def test_a_file_is_not_seen_before_it_is_whole(place: Place) -> None:
    class Parts(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            for part in super().__iter__():
                yield part
                seen.extend(entry.name for entry in place.files("folder"))

    seen: list[str] = []
    place.make_folder("folder")
    place.write("folder/file", Parts([b"a" * 2**20] * 2), lambda: None)
    assert "file" not in seen
    assert [(entry.name, entry.size_bytes) for entry in place.files("folder")] == [("file", 2**21)]


# --- local disks -----------------------------------------------------------------------------------------


@pytest.fixture
def one_user_is_not_root() -> Iterator[Path]:
    """A folder that this process may read and not write."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_folder_is_found_out_by_the_probe(one_user_is_not_root: Path) -> None:
    with pytest.raises(EnvironmentFailed) as failed:
        SnapshotStore(LocalPlace(one_user_is_not_root), RUN).probe()
    assert f"{one_user_is_not_root} cannot be written: [Errno 13]" in str(failed.value)


def test_a_full_disk_ends_a_save_and_not_the_next(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path / "store")
    saver = Saver(place, tmp_path)
    saver.save(40)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    many = [bucket(1, b"x" * 100_000)]
    # No file may grow beyond this, as if the disk were full.
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(EnvironmentFailed, match=r"File too large\. Free the disk\."):
            saver.save(60, many)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [name for name in objects(place) if name.startswith(".")], "no half file stays on a full disk"
    assert restored(place, tmp_path / "into").state.through == 40
    saver.save(60, many)
    assert restored(place, tmp_path / "into").state == state(60, many)


@pytest.mark.parametrize("when", ["objects", "snapshots"])
def test_a_disk_that_is_full_when_files_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    place = LocalPlace(tmp_path / "store")
    saver = Saver(place, tmp_path)
    saver.save(40)
    record = DiskRecord(tmp_path / "store" / SHELF, monkeypatch)

    def full(name: str) -> None:
        if name.startswith(f"{when}/"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    record.during_sync = full
    with pytest.raises(EnvironmentFailed, match=r"No space left on device\. Free the disk\."):
        saver.save(60)
    record.during_sync = lambda _name: None
    assert len(snapshots(place)) == 1
    assert saver.save(60).kept == 2
    assert restored(place, tmp_path / "into").state.through == 60


def test_everything_is_on_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contents before their names, names before the manifest, and its removal before that of its objects."""
    place = LocalPlace(tmp_path / "store")
    (tmp_path / "store").mkdir()
    record = DiskRecord(tmp_path / "store", monkeypatch)
    honest = place.delete

    def delete(name: str) -> None:
        record.steps.append(f"delete {name}")
        honest(name)

    monkeypatch.setattr(place, "delete", delete)
    saver = Saver(place, tmp_path, keep=1)
    saver.save(40, KEPT)
    assert record.steps[:2] == ["sync .", f"sync {RUN}"], "the new folders"
    renamed = [step.split(" to ")[1] for step in record.steps if step.startswith("rename")]
    assert set(renamed[:-1]) == {f"{SHELF}/objects/{name}" for name in objects(place)}
    assert renamed[-1] == f"{SHELF}/snapshots/{snapshots(place)[0]}"
    for step in (step for step in record.steps if step.startswith("rename")):
        unfinished = step.split()[1]
        assert record.steps.index(f"sync {unfinished}") < record.steps.index(step)
    manifest_at = record.steps.index(next(s for s in record.steps if s.endswith(renamed[-1])))
    last_object_at = max(
        at for at, s in enumerate(record.steps) if s.startswith("rename") and "/objects/" in s
    )
    assert f"sync {SHELF}/objects" in record.steps[last_object_at:manifest_at]
    assert record.steps[-1] == f"sync {SHELF}/snapshots"
    record.steps.clear()
    saver.save(60)
    deleted = [step for step in record.steps if step.startswith("delete")]
    assert "/snapshots/" in deleted[0]
    first_object_at = record.steps.index(next(step for step in deleted if "/objects/" in step))
    assert f"sync {SHELF}/snapshots" in record.steps[record.steps.index(deleted[0]) : first_object_at]


def test_files_are_linked_both_ways(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path / "store")
    saver = Saver(place, tmp_path)
    saver.save(40)
    restored(place, tmp_path / "into")
    name = "checkpoint/state/0/0/1.snapshot"
    saved, back = (tmp_path / "snapshot-40" / name).stat(), (tmp_path / "into" / name).stat()
    assert saved.st_ino == back.st_ino
    assert saved.st_nlink == 3


def test_a_link_to_an_old_file_is_not_an_old_left_over(tmp_path: Path) -> None:
    """Another process may be about to name it."""
    place = LocalPlace(tmp_path / "store")
    saver = Saver(place, tmp_path)
    saver.save(40)
    (tmp_path / "old").write_bytes(b"old")
    os.utime(tmp_path / "old", (1, 1))
    place.upload(f"{SHELF}/objects/{'0' * 32}", tmp_path / "old", lambda: None)
    saver.save(60)
    assert "0" * 32 in objects(place)


def test_files_are_copied_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    place = LocalPlace(tmp_path / "store")
    Saver(place, tmp_path).save(40, KEPT)
    assert restored(place, tmp_path / "into").state == state(40, KEPT)
    assert (tmp_path / "into/checkpoint/metadata").stat().st_nlink == 1
