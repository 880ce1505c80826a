"""What is saved comes back as it was, a save writes what is new, and only the newest snapshots stay."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from saving_kit import (
    RUN,
    SHELF,
    C,
    P,
    Saver,
    bucket,
    files_of,
    no_tick,
    objects,
    outlet,
    restored,
    sealed,
    snapshots,
    state,
)

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Partition
from understudy.runtime.saving import chains, cleaning
from understudy.runtime.saving.layout import SnapshotName
from understudy.runtime.saving.places import Place
from understudy.runtime.saving.store import SnapshotStore


def test_a_snapshot_comes_back_with_its_state(place: Place, tmp_path: Path) -> None:
    kept = [bucket(5, b"five"), bucket(7), bucket(9, b"")]
    saved = Saver(place, tmp_path).save(40, kept, gone_through=4)
    found = restored(place, tmp_path / "into")
    assert found.state == state(40, kept, gone_through=4)
    assert [each.empty for each in found.state.outlets[0][1].kept] == [False, True, False]
    assert found.snapshot.directory == tmp_path / "into"
    assert found.passed_over == ()
    assert (saved.through, saved.floor, saved.kept) == (40, NOTHING, 1)
    assert saved.size_bytes == saved.bytes_written - place.files(f"{SHELF}/snapshots")[0].size_bytes


def test_nothing_is_restored_where_nothing_was_saved(place: Place, tmp_path: Path) -> None:
    store = SnapshotStore(place, RUN)
    assert store.restore(P, tmp_path / "into") is None
    assert store.listed(P) == []
    assert store.partitions() == []


def test_payloads_may_be_bytes_views_or_buffers(place: Place, tmp_path: Path) -> None:
    payloads = [b"one", memoryview(b"xtwo")[1:], pa.py_buffer(b"three")]
    kept = [Bucket(at, payload, 3) for at, payload in enumerate(payloads)]
    Saver(place, tmp_path).save(1, kept)
    found = restored(place, tmp_path / "into").state.outlets[0][1].kept
    assert [each.payload for each in found] == [b"one", b"two", b"three"]
    assert [each.size_bytes for each in found] == [3, 3, 3]


def test_a_state_without_outlets_and_one_before_all_buckets(place: Place, tmp_path: Path) -> None:
    folder = sealed(tmp_path / "s", NOTHING, files_of(0))
    SnapshotStore(place, RUN).save(P, folder, CopyState(0, NOTHING, ()))
    found = SnapshotStore(place, RUN).restore(P, tmp_path / "into")
    assert found is not None
    assert found.state == CopyState(0, NOTHING, ())


def test_names_of_partitions_and_runs_are_quoted(place: Place, tmp_path: Path) -> None:
    partitions = [Partition(name, 3) for name in ("..", ".", "a/b", "ä b+2", "100%=")]
    store = SnapshotStore(place, "../run of/today")
    for partition in partitions:
        store.save(partition, sealed(tmp_path / "s", 1, files_of(1)), state(1))
    assert store.partitions() == sorted(partitions)
    assert all(len(store.listed(partition)) == 1 for partition in partitions)
    assert len(place.folders("")) == 1


def test_runs_and_partitions_do_not_see_each_other(place: Place, tmp_path: Path) -> None:
    Saver(place, tmp_path).save(40)
    assert SnapshotStore(place, "run-2").restore(P, tmp_path / "into") is None
    assert SnapshotStore(place, RUN).restore(Partition(P.name, 1), tmp_path / "into") is None


# --- what is written -------------------------------------------------------------------------------------


def test_a_save_writes_what_is_new(place: Place, tmp_path: Path) -> None:
    saver = Saver(place, tmp_path)
    first = saver.save(40, [bucket(1, b"a" * 1000)])
    again = saver.save(41, [bucket(1, b"a" * 1000), bucket(2, b"b" * 500)])
    # Offsets, the engine's manifest, a run with the second bucket, and the snapshot's manifest.
    assert again.files_written == 4
    assert again.files_written < first.files_written
    manifest = place.read(f"{SHELF}/snapshots/{snapshots(place)[-1]}", no_tick)
    assert 500 < again.bytes_written - len(manifest) < 1500


def test_a_successor_finds_the_files_that_its_predecessor_saved(place: Place, tmp_path: Path) -> None:
    Saver(place, tmp_path).save(40)
    # The same files, but a manifest of its own.
    assert Saver(place, tmp_path).save(40).files_written == 1


def test_equal_files_are_kept_once(place: Place, tmp_path: Path) -> None:
    folder = sealed(tmp_path / "s", 1, {"a": b"same", "b/c": b"same"})
    saved = SnapshotStore(place, RUN).save(P, folder, state(1))
    assert saved.files_written == 3
    found = SnapshotStore(place, RUN).restore(P, tmp_path / "into")
    assert found is not None
    assert (tmp_path / "into/b/c").read_bytes() == b"same"


def test_a_run_stays_as_long_as_one_of_its_buckets_is_kept(place: Place, tmp_path: Path) -> None:
    saver = Saver(place, tmp_path, keep=1)
    one, two, three = bucket(1, b"one"), bucket(2, b"two"), bucket(3, b"three")
    saver.save(40, [one, two])
    with_two = len(objects(place))
    saver.save(40, [two, three], gone_through=1)
    assert len(objects(place)) == with_two + 1, "bucket 2 is in the first run"
    assert restored(place, tmp_path / "into").state.outlets[0][1].kept == (two, three)
    saver.save(40, [three], gone_through=2)
    assert len(objects(place)) == with_two
    assert restored(place, tmp_path / "into").state.outlets[0][1].kept == (three,)


def test_a_long_chain_of_runs_becomes_one(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "RUNS_MAX", 4)
    saver = Saver(place, tmp_path, keep=1)
    kept: list[Bucket] = []
    counts = []
    for number in range(10):
        kept.append(bucket(number, b"payload %d" % number))
        saver.save(40, kept)
        counts.append(len(objects(place)))
    assert max(counts) - min(counts) == 3, counts
    assert restored(place, tmp_path / "into").state.outlets[0][1].kept == tuple(kept)


def test_a_copy_that_cuts_its_buckets_differently_is_saved_as_it_is(place: Place, tmp_path: Path) -> None:
    saver = Saver(place, tmp_path)
    saver.save(40, [bucket(1), bucket(3, b"x")])
    other = [bucket(2), bucket(3, b"x"), bucket(4)]
    saver.save(41, other)
    assert restored(place, tmp_path / "into").state.outlets[0][1].kept == tuple(other)
    same_numbers = [bucket(2), bucket(3, b"y"), bucket(4)]
    saver.save(42, same_numbers)
    assert restored(place, tmp_path / "into").state.outlets[0][1].kept == tuple(same_numbers)


def test_several_outlets_have_their_own_runs(place: Place, tmp_path: Path) -> None:
    d = Partition("d", 1)
    to_c, to_d = outlet([bucket(1, b"c")]), outlet([bucket(2, b"d")], produced_through=9)
    wanted = CopyState(7, 40, ((C, to_c), (d, to_d)))
    store = SnapshotStore(place, RUN)
    store.save(P, sealed(tmp_path / "s", 40, files_of(40)), wanted)
    found = store.restore(P, tmp_path / "into")
    assert found is not None
    assert found.state == wanted


# --- what stays ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_stay_and_with_them_their_objects(place: Place, tmp_path: Path, keep: int) -> None:
    saver = Saver(place, tmp_path, keep=keep)
    kept = [saver.save(through).kept for through in range(40, 90, 10)]
    listed = saver.store.listed(P)
    newest = [80, 70, 60][:keep]
    assert [each.through for each in listed] == newest
    assert kept == [min(keep, count) for count in range(1, 6)]
    # Three files that all have, the deltas, and of each: its offsets and the engine's manifest.
    deltas = {through // 20 for through in newest}
    assert len(objects(place)) == 3 + len(deltas) + 2 * keep
    assert restored(place, tmp_path / "into").state.through == 80


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_floor_counts_only_once_as_many_snapshots_are_kept_as_should_be(
    place: Place, tmp_path: Path, keep: int
) -> None:
    saver = Saver(place, tmp_path, keep=keep)
    floors = [saver.save(through).floor for through in range(40, 90, 10)]
    # A single snapshot may be damaged, and then the partition begins with nothing.
    assert floors == [*[NOTHING] * (keep - 1), *range(40, 100 - 10 * keep, 10)]


def test_snapshots_of_one_bucket_rank_by_when_they_were_saved(place: Place, tmp_path: Path) -> None:
    saver = Saver(place, tmp_path)
    for payload in (b"a", b"b", b"c"):
        saver.save(40, [bucket(1, payload)])
    assert restored(place, tmp_path / "into").state.outlets[0][1].kept == (bucket(1, b"c"),)
    assert len(snapshots(place)) == 2


def test_snapshots_rank_by_number_not_by_name(place: Place, tmp_path: Path) -> None:
    saver = Saver(place, tmp_path, keep=3)
    for through in (-5, -40, 7):
        saver.save(through)
    assert [each.through for each in saver.store.listed(P)] == [7, -5, -40]


def test_names_of_snapshots_are_read_as_they_are_written() -> None:
    for name in (SnapshotName(NOTHING, 1, "ab"), SnapshotName(17_000_000_000, 2_000_000, "0f")):
        assert SnapshotName.of(str(name)) == name
    assert SnapshotName.of("readme.json") is None


def test_listed_facts_are_those_of_the_save(place: Place, tmp_path: Path) -> None:
    saver = Saver(place, tmp_path)
    saved = saver.save(40, [bucket(1, b"payload")])
    (listed,) = SnapshotStore(place, RUN).listed(P)
    assert (listed.through, listed.size_bytes) == (40, saved.size_bytes)
    assert listed.saved_at == restored(place, tmp_path / "into").saved_at


def test_left_overs_go_once_they_are_old(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(place, tmp_path)
    saver.save(40)
    before = objects(place)
    left = ["objects/" + "0" * 32, "objects/.unfinished-1", "snapshots/.unfinished-2"]
    for name in left:
        place.write(f"{SHELF}/{name}", [b"left"], no_tick)
    saver.save(40)
    assert all(place.read(f"{SHELF}/{name}", no_tick) == b"left" for name in left)
    # As if an hour had passed.
    monkeypatch.setattr(cleaning, "GRACE_S", -5.0)
    saver.save(40)
    assert objects(place) == before
    assert len(place.files(f"{SHELF}/snapshots")) == 2
