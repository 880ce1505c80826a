"""Two versions of a flow save one partition side by side: neither takes away what the other needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from saving_kit import (
    RUN,
    SHELF,
    P,
    Saver,
    bucket,
    files_of,
    no_tick,
    objects,
    once_before,
    restored,
    sealed,
    set_aside,
    snapshots,
    state,
)

from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving import cleaning
from understudy.runtime.saving.layout import partition_folder, snapshots_folder, version_of
from understudy.runtime.saving.manifest import decode
from understudy.runtime.saving.places import Place, digest_of
from understudy.runtime.saving.store import SnapshotStore

KEPT = [bucket(1, b"one")]


def savers(place: Place, folder: Path, *, keep: int = 2) -> tuple[Saver, Saver]:
    """One of version 1 and one of version 2."""
    return (
        Saver(place, folder / "1", keep=keep),
        Saver(place, folder / "2", keep=keep, version=2),
    )


def path_of(place: Place, at: int, *, version: int) -> str:
    return f"{SHELF}/{snapshots_folder(version)}/{snapshots(place, version=version)[at]}"


def named(place: Place, *, version: int) -> set[str]:
    """The objects that a version's snapshots name."""
    found = (path_of(place, at, version=version) for at in range(len(snapshots(place, version=version))))
    return {each.digest for path in found for each in decode(place.read(path, no_tick)).objects()}


def rewrite(place: Place, path: str, contents: bytes) -> None:
    place.delete(path)
    place.write(path, [contents], no_tick)


def all_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an hour had passed since every object was written."""
    monkeypatch.setattr(cleaning, "GRACE_S", -5.0)


def test_each_version_has_a_folder_of_its_own_and_the_first_keeps_its_old_one() -> None:
    assert [snapshots_folder(version) for version in (1, 2, 13)] == [
        "snapshots",
        "snapshots@2",
        "snapshots@13",
    ]
    for version in (1, 2, 13):
        assert version_of(snapshots_folder(version)) == version
    for other in (
        "objects",
        "set-aside",
        "snapshots@",
        "snapshots@0",
        "snapshots@1",
        "snapshots@02",
        "snapshots@x",
    ):
        assert version_of(other) is None


def test_versions_count_from_one(place: Place) -> None:
    with pytest.raises(BrokenInvariant, match="there is no version 0"):
        SnapshotStore(place, RUN, version=0)
    with pytest.raises(BrokenInvariant, match="there is no version 0"):
        SnapshotStore(place, RUN).drop_version(0)


def test_each_version_lists_and_restores_its_own(place: Place, tmp_path: Path) -> None:
    one, two = savers(place, tmp_path)
    one.save(60, KEPT)
    assert two.store.restore(P, tmp_path / "into") is None
    assert two.store.listed(P) == []
    two.save(40)
    assert [each.through for each in one.store.listed(P)] == [60]
    assert [each.through for each in two.store.listed(P)] == [40]
    assert restored(place, tmp_path / "into").state == state(60, KEPT)
    assert restored(place, tmp_path / "into", version=2).state == state(40)


def test_the_store_tells_which_versions_have_saved_any_partition(place: Place, tmp_path: Path) -> None:
    one, two = savers(place, tmp_path)
    assert one.store.versions() == set()
    one.save(40)
    assert one.store.versions() == two.store.versions() == {1}
    other = Partition("others", 3)
    two.store.save(other, sealed(tmp_path / "s", 1, files_of(1)), state(1))
    assert one.store.versions() == two.store.versions() == {1, 2}
    assert one.store.partitions() == two.store.partitions() == sorted([other, P])


def test_an_object_is_written_once_for_both(place: Place, tmp_path: Path) -> None:
    one, two = savers(place, tmp_path)
    one.save(40, KEPT)
    before = objects(place)
    assert two.save(40, KEPT).files_written == 1, "its manifest"
    assert objects(place) == before


@pytest.mark.parametrize("busy", [1, 2])
def test_a_save_expires_only_snapshots_of_its_own_version(place: Place, tmp_path: Path, busy: int) -> None:
    both = savers(place, tmp_path, keep=1)
    working, resting = both[busy - 1], both[2 - busy]
    resting.save(40, KEPT)
    for through in (60, 80, 100):
        saved = working.save(through)
        assert (saved.floor, saved.kept) == (through, 1)
    assert [each.through for each in working.store.listed(P)] == [100]
    assert [each.through for each in resting.store.listed(P)] == [40]
    assert objects(place) == named(place, version=1) | named(place, version=2), "the others went"
    found = restored(place, tmp_path / "into", version=3 - busy)
    assert (found.state, found.passed_over) == (state(40, KEPT), ())


@pytest.mark.parametrize("busy", [1, 2])
def test_objects_of_an_expired_snapshot_stay_if_the_other_version_names_them(
    place: Place, tmp_path: Path, busy: int
) -> None:
    both = savers(place, tmp_path, keep=1)
    for saver in both:
        saver.save(40, KEPT)
    both[busy - 1].save(60)
    found = restored(place, tmp_path / "into", version=3 - busy)
    assert (found.state, found.passed_over) == (state(40, KEPT), ())
    both[2 - busy].save(60)
    assert objects(place) == named(place, version=1), "they went with the second"


def test_old_objects_stay_if_the_other_version_names_them(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_is_old(monkeypatch)
    one, two = savers(place, tmp_path)
    one.save(40, KEPT)
    two.save(60)
    found = restored(place, tmp_path / "into")
    assert (found.state, found.passed_over) == (state(40, KEPT), ())


# --- damage ----------------------------------------------------------------------------------------------


def cut(place: Place, path: str) -> None:
    rewrite(place, path, place.read(path, no_tick)[:-3])


def in_another_layout(place: Place, path: str) -> None:
    said = {**json.loads(place.read(path, no_tick)), "layout": 99}
    said.pop("digest")
    digest = digest_of([json.dumps(said, sort_keys=True).encode()])
    rewrite(place, path, json.dumps({**said, "digest": digest}).encode())


@pytest.mark.parametrize(
    "damaged_by", [(cut, "its manifest is cut off or is none"), (in_another_layout, "layout 99")]
)
def test_no_object_is_deleted_while_a_snapshot_of_the_other_version_cannot_be_read(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damaged_by: tuple[Callable[[Place, str], None], str],
) -> None:
    damage, said = damaged_by
    one, two = savers(place, tmp_path, keep=1)
    two.save(40, KEPT)
    one.save(40)
    damage(place, path_of(place, 0, version=2))
    before = objects(place)
    all_is_old(monkeypatch)
    saved = one.save(60)
    assert (saved.floor, saved.kept) == (60, 1), "its own snapshot expires nevertheless"
    assert before <= objects(place)
    assert said in caplog.text
    assert len(snapshots(place, version=2)) == 1, "it is for its own version to set it aside"
    two.store.drop_version(2)
    one.save(80)
    assert objects(place) == named(place, version=1)


def test_a_snapshot_that_is_set_aside_was_one_of_its_version_only(place: Place, tmp_path: Path) -> None:
    one, two = savers(place, tmp_path)
    one.save(40)
    cut(place, path_of(place, 0, version=1))
    with pytest.raises(EnvironmentFailed, match="No snapshot of sessions/0"):
        one.store.restore(P, tmp_path / "into")
    assert two.store.restore(P, tmp_path / "into") is None, "it never had any"
    two.save(40)
    cut(place, path_of(place, 0, version=2))
    for _ in range(2):
        with pytest.raises(EnvironmentFailed, match=r"No snapshot of sessions/0 in .*/snapshots@2 is whole"):
            two.store.restore(P, tmp_path / "into")
    assert len(set_aside(place)) == 2


# --- at once ---------------------------------------------------------------------------------------------


def test_what_replaced_a_snapshot_while_it_was_read_counts(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 lists a snapshot of version 2; before it is read, the next one of version 2 has replaced it,
    which names some of the objects that version 1 is about to delete.
    """
    one, two = savers(place, tmp_path, keep=1)
    one.save(40)
    two.save(40)
    once_before(place, "read", lambda: two.save(41), monkeypatch, where="/snapshots@2/")
    one.save(60)
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state.through, found.passed_over) == (41, ())
    assert objects(place) == named(place, version=1) | named(place, version=2), "the others went"


def test_no_object_is_deleted_while_snapshots_are_replaced_faster_than_they_are_read(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = savers(place, tmp_path, keep=1)
    one.save(40)
    two.save(40)
    before = objects(place)
    honest = place.read

    def read(name: str, *rest: Any) -> bytes:
        if "/snapshots@2/" in name:
            raise FileNotFoundError(name)
        return honest(name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(place, "read", read)
        assert one.save(60).kept == 1
    assert before <= objects(place)
    assert "replaced faster than they can be read" in caplog.text


def test_objects_that_the_other_version_deletes_during_a_save_are_written_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 has found the objects of version 1, which expires them before version 2 names them."""
    one, two = savers(place, tmp_path, keep=1)
    one.save(40, KEPT)
    once_before(place, "write", lambda: one.save(60), monkeypatch, where="/snapshots@2/")
    two.save(40, KEPT)
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, found.passed_over) == (state(40, KEPT), ())
    assert len(snapshots(place, version=2)) == 1, "the first attempt was taken back"


def test_objects_that_the_other_version_names_just_before_they_go_stay(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 saves the bucket whose snapshot version 1 has decided, and not yet begun, to delete."""
    one, two = savers(place, tmp_path, keep=1)
    one.save(40, KEPT)
    once_before(place, "delete", lambda: two.save(40, KEPT), monkeypatch, where="/snapshots/")
    one.save(60)
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, found.passed_over) == (state(40, KEPT), ())


# --- dropping --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", [1, 2])
def test_a_dropped_version_has_no_snapshot_left_and_the_other_has_all(
    place: Place, tmp_path: Path, dropped: int
) -> None:
    one, two = savers(place, tmp_path)
    other = Partition("others", 3)
    for saver, through in ((one, 40), (two, 60)):
        saver.save(through, KEPT)
        saver.save(through + 1, KEPT)
        saver.store.save(other, sealed(tmp_path / "s", through, files_of(through)), state(through))
    stays = (two, one)[dropped - 1]
    before = objects(place), snapshots(place, version=3 - dropped), stays.store.listed(other)
    for _ in range(2):
        stays.store.drop_version(dropped)
        assert stays.store.versions() == {3 - dropped}
        assert snapshots(place, version=dropped) == []
        assert (objects(place), snapshots(place, version=3 - dropped), stays.store.listed(other)) == before
    gone = SnapshotStore(place, RUN, version=dropped)
    for partition in (P, other):
        assert gone.restore(partition, tmp_path / "into") is None
    found = restored(place, tmp_path / "into", version=3 - dropped)
    assert (found.state, found.passed_over) == (state((61, 41)[dropped - 1], KEPT), ())


def test_nothing_is_dropped_of_a_version_that_never_saved(place: Place, tmp_path: Path) -> None:
    one, _ = savers(place, tmp_path)
    one.store.drop_version(7)
    one.save(40)
    one.store.drop_version(7)
    assert [each.through for each in one.store.listed(P)] == [40]


def test_a_snapshot_that_goes_while_its_version_is_dropped_is_no_trouble(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = savers(place, tmp_path)
    one.save(40)
    once_before(place, "delete", lambda: two.store.drop_version(1), monkeypatch, where="/snapshots/")
    one.store.drop_version(1)
    assert snapshots(place) == []


def test_the_objects_of_a_dropped_version_go_with_a_later_save_once_they_are_old(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = savers(place, tmp_path)
    one.save(40, KEPT)
    two.save(60)
    only_ones = named(place, version=1) - named(place, version=2)
    two.store.drop_version(1)
    two.save(61)
    assert only_ones < objects(place), "a save of version 1 may be about to name them"
    all_is_old(monkeypatch)
    two.save(62)
    assert objects(place) == named(place, version=2)
    assert only_ones.isdisjoint(objects(place))
    assert restored(place, tmp_path / "into", version=2).state.through == 62


def test_of_a_partition_that_the_flow_has_no_more_nothing_is_kept(place: Place, tmp_path: Path) -> None:
    one, two = savers(place, tmp_path)
    other = Partition("others", 3)
    for saver, through in ((one, 40), (two, 60)):
        saver.save(through, KEPT)
        saver.store.save(other, sealed(tmp_path / "s", through, files_of(through)), state(through))
    before = objects(place), snapshots(place), snapshots(place, version=2)
    two.store.keep_only({P.name, other.name}, 2)
    assert two.store.listed(other) != []
    two.store.keep_only({P.name}, 1)
    assert two.store.listed(other) != [], "a version after the first is being begun with it"
    for _ in range(2):
        two.store.keep_only({P.name}, 2)
        assert (objects(place), snapshots(place), snapshots(place, version=2)) == before
        for store in (one.store, two.store):
            assert store.restore(other, tmp_path / "into") is None
        folder = f"{RUN}/{partition_folder(other)}"
        assert [place.files(f"{folder}/{each}") for each in place.folders(folder)] == [[], [], []]


def test_a_dropped_version_may_save_again_as_if_it_never_had(place: Place, tmp_path: Path) -> None:
    _, two = savers(place, tmp_path)
    two.save(80)
    cut(place, path_of(place, 0, version=2))
    with pytest.raises(EnvironmentFailed, match="No snapshot of sessions/0"):
        two.store.restore(P, tmp_path / "into")
    assert len(set_aside(place)) == 1
    two.store.drop_version(2)
    assert set_aside(place) == set()
    assert two.store.restore(P, tmp_path / "into") is None
    two.save(40, KEPT)
    assert restored(place, tmp_path / "into", version=2).state == state(40, KEPT)
