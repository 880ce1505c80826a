"""A version goes on from the newest whole snapshot of an earlier one, whatever that one does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from saving_kit import RUN, SHELF, P, Saver, bucket, no_tick, objects, once_before, restored, snapshots, state

from understudy.core.errors import BrokenInvariant
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving import cleaning
from understudy.runtime.saving.layout import SnapshotName
from understudy.runtime.saving.manifest import decode
from understudy.runtime.saving.places import Entry, Place
from understudy.runtime.saving.store import Listed, SnapshotStore

KEPT = [bucket(1, b"one")]


def later(place: Place, *, version: int = 2, keep: int = 2) -> SnapshotStore:
    return SnapshotStore(place, RUN, keep=keep, version=version)


def newest(place: Place, *, version: int = 1) -> str:
    folder = "snapshots" if version == 1 else f"snapshots@{version}"
    return f"{SHELF}/{folder}/{snapshots(place, version=version)[-1]}"


def own_object(place: Place) -> str:
    """An object that only the newest snapshot names, which is that of bucket 60."""
    files = dict(decode(place.read(newest(place), no_tick)).files)
    return f"{SHELF}/objects/{files['checkpoint/offsets/60'].digest}"


def cut(place: Place, name: str) -> None:
    contents = place.read(name, no_tick)[:-3]
    place.delete(name)
    place.write(name, [contents], no_tick)


def remove(place: Place, name: str) -> None:
    place.delete(name)


def test_the_newest_is_adopted_by_its_manifest_alone(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Saver(place, tmp_path)
    one.save(40)
    one.save(60, KEPT)
    before = objects(place), snapshots(place)
    written: list[str] = []
    for method in ("write", "upload", "move"):
        honest = getattr(place, method)

        def write(name: str, *rest: Any, honest: Any = honest) -> None:
            written.append(name)
            honest(name, *rest)

        monkeypatch.setattr(place, method, write)
    adopted = later(place).adopt(P, 1)
    assert adopted == one.store.listed(P)[0]
    assert later(place).listed(P) == [adopted]
    assert (objects(place), snapshots(place)) == before
    assert {name.rpartition("/")[0] for name in written} == {f"{SHELF}/snapshots@2"}
    assert place.read(newest(place, version=2), no_tick) == place.read(newest(place), no_tick)
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, found.passed_over) == (state(60, KEPT), ())


def test_there_may_be_nothing_to_adopt(place: Place, tmp_path: Path) -> None:
    assert later(place).adopt(P, 1) is None
    assert later(place).versions() == set()
    Saver(place, tmp_path).save(40)
    assert later(place, version=3).adopt(P, 2) is None
    assert later(place, version=3).versions() == {1}


def test_only_an_earlier_version_is_adopted_from(place: Place) -> None:
    for version in (0, 2, 3):
        with pytest.raises(BrokenInvariant, match="version 2 of a flow adopts from an earlier one"):
            later(place).adopt(P, version)


@pytest.mark.parametrize(("which", "damage"), [(newest, cut), (own_object, cut), (own_object, remove)])
def test_a_damaged_one_is_skipped_and_left_to_its_version(
    place: Place, tmp_path: Path, which: Callable[[Place], str], damage: Callable[[Place, str], None]
) -> None:
    one = Saver(place, tmp_path)
    one.save(40, KEPT)
    one.save(60)
    damage(place, which(place))
    before = snapshots(place)
    adopted = later(place).adopt(P, 1)
    assert adopted is not None
    assert adopted.through == 40
    assert snapshots(place) == before
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, found.passed_over) == (state(40, KEPT), ())


def test_it_fails_if_none_is_whole(place: Place, tmp_path: Path) -> None:
    one = Saver(place, tmp_path)
    one.save(60)
    remove(place, own_object(place))
    for _ in range(2):
        with pytest.raises(EnvironmentFailed) as failed:
            later(place).adopt(P, 1)
        assert f"No snapshot of sessions/0 in {place.url}/{SHELF}/snapshots is whole" in str(failed.value)
        assert snapshots(place, version=2) == []
        # The second time, it is set aside.
        with pytest.raises(EnvironmentFailed):
            one.store.restore(P, tmp_path / "into")
    assert snapshots(place) == []


def test_a_store_that_does_not_answer_fails_the_adoption(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Saver(place, tmp_path).save(40)

    def broken(*_: object) -> None:
        raise OSError("the network is down")

    for method in ("files", "read", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(place, method, broken)
            with pytest.raises(EnvironmentFailed, match="the network is down"):
                later(place).adopt(P, 1)
    assert snapshots(place, version=2) == []


def test_an_adopted_snapshot_ranks_below_the_next_save_of_its_bucket(place: Place, tmp_path: Path) -> None:
    one = Saver(place, tmp_path / "1")
    for payload in (b"a", b"b", b"c"):
        one.save(40, [bucket(1, payload)])
    two = Saver(place, tmp_path / "2", keep=4, version=2)
    two.store.adopt(P, 1)
    two.save(40, [bucket(1, b"d")])
    later(place).adopt(P, 1)
    Saver(place, tmp_path / "2", keep=4, version=2).save(40, [bucket(1, b"e")])
    assert restored(place, tmp_path / "into", version=2).state.outlets[0][1].kept == (bucket(1, b"e"),)
    names = [SnapshotName.of(each) for each in snapshots(place, version=2)]
    assert [name and name.sequence for name in names] == [1, 2, 3, 4]


def test_an_adopted_snapshot_counts_among_those_that_are_kept(place: Place, tmp_path: Path) -> None:
    Saver(place, tmp_path / "1").save(40)
    two = Saver(place, tmp_path / "2", version=2)
    two.store.adopt(P, 1)
    saved = two.save(60)
    assert (saved.floor, saved.kept) == (40, 2)
    assert two.save(80).floor == 60


def test_it_stays_when_the_earlier_version_expires_its_own(place: Place, tmp_path: Path) -> None:
    one = Saver(place, tmp_path, keep=1)
    one.save(40, KEPT)
    later(place).adopt(P, 1)
    one.save(60)
    Saver(place, tmp_path, keep=1).save(80)
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, found.passed_over) == (state(40, KEPT), ())


def test_it_stays_when_the_earlier_version_is_dropped_and_its_objects_are_old(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "GRACE_S", -5.0)
    one = Saver(place, tmp_path / "1")
    one.save(20)
    one.save(40, KEPT)
    two = Saver(place, tmp_path / "2", version=2)
    two.store.adopt(P, 1)
    two.store.drop_version(1)
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, found.passed_over) == (state(40, KEPT), ())
    before = objects(place)
    two.save(60)
    assert not before <= objects(place), "what only bucket 20 needed is gone"
    cut(place, newest(place, version=2))
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, len(found.passed_over)) == (state(40, KEPT), 1)


# --- while the earlier version saves ---------------------------------------------------------------------


class Adoption:
    """Version 2 adopts in a thread of its own, which waits before it writes its first manifest."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.adopted: Listed | None = None
        self._chosen = threading.Event()
        self._go_on = threading.Event()
        self._place = place
        self._thread = threading.Thread(target=self._adopt, daemon=True)
        once_before(place, "write", self._wait, monkeypatch, where="/snapshots@2/")

    def _wait(self) -> None:
        self._chosen.set()
        assert self._go_on.wait(20)

    def _adopt(self) -> None:
        self.adopted = later(self._place).adopt(P, 1)

    def begin(self) -> None:
        self._thread.start()
        assert self._chosen.wait(20)

    def finish(self) -> None:
        self._go_on.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


def test_it_adopts_the_next_if_the_first_choice_expires(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Saver(place, tmp_path, keep=1)
    one.save(40)
    once_before(place, "write", lambda: one.save(60, KEPT), monkeypatch, where="/snapshots@2/")
    adopted = later(place).adopt(P, 1)
    assert adopted is not None
    assert adopted.through == 60
    assert len(snapshots(place, version=2)) == 1, "the first choice was taken back"
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, found.passed_over) == (state(60, KEPT), ())


def test_it_adopts_the_next_if_only_an_object_vanishes(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Saver(place, tmp_path)
    one.save(40, KEPT)
    one.save(60)
    culprit = own_object(place)
    once_before(place, "write", lambda: remove(place, culprit), monkeypatch, where="/snapshots@2/")
    adopted = later(place).adopt(P, 1)
    assert adopted is not None
    assert adopted.through == 40
    assert [each.through for each in later(place).listed(P)] == [40]


def test_it_gives_up_if_every_choice_expires(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Saver(place, tmp_path, keep=1)
    one.save(40)
    honest = place.write
    throughs = iter(range(60, 1000, 20))

    def write(name: str, *rest: Any) -> None:
        if "/snapshots@2/" in name:
            one.save(next(throughs))
        honest(name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(place, "write", write)
        with pytest.raises(EnvironmentFailed, match="expire faster than version 2 of the flow can adopt one"):
            later(place).adopt(P, 1)
    assert next(throughs) <= 200, "after a few attempts"
    assert snapshots(place, version=2) == []
    assert later(place).adopt(P, 1) is not None


def test_one_that_expires_between_two_listings_is_no_damaged_one(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Saver(place, tmp_path, keep=1)
    one.save(40)
    once_before(place, "files", lambda: one.save(60), monkeypatch, where="/objects")
    adopted = later(place).adopt(P, 1)
    assert adopted is not None
    assert adopted.through == 60


def test_one_that_expires_before_it_is_read_is_not_taken_for_nothing_saved(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Saver(place, tmp_path, keep=1)
    one.save(40)
    once_before(place, "read", lambda: one.save(60), monkeypatch, where="/snapshots/")
    adopted = later(place).adopt(P, 1)
    assert adopted is not None
    assert adopted.through == 60


def test_one_that_is_adopted_just_before_its_manifest_goes_keeps_its_objects(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 has looked and seen no adopted snapshot."""
    one = Saver(place, tmp_path, keep=1)
    one.save(40, KEPT)
    adoption = Adoption(place, monkeypatch)
    adoption.begin()
    once_before(place, "delete", adoption.finish, monkeypatch, where="/snapshots/")
    one.save(60)
    assert adoption.adopted is not None
    assert adoption.adopted.through == 40
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, found.passed_over) == (state(40, KEPT), ())


def test_one_whose_manifest_is_gone_is_not_adopted_though_its_objects_are_there(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 has listed all manifests and is about to delete the objects."""
    one = Saver(place, tmp_path, keep=1)
    one.save(40)
    adoption = Adoption(place, monkeypatch)
    adoption.begin()
    honest = place.delete
    present: list[set[str]] = []
    # Several objects are deleted at once: none of them goes before the adoption is over.
    turns = threading.Lock()

    def delete(name: str) -> None:
        if "/objects/" in name:
            with turns:
                adoption.finish()
                present.append(objects(place))
        honest(name)

    before = objects(place)
    monkeypatch.setattr(place, "delete", delete)
    one.save(60, KEPT)
    assert before <= present[0]
    assert adoption.adopted is not None
    assert adoption.adopted.through == 60
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, found.passed_over) == (state(60, KEPT), ())


def test_a_third_version_that_cleans_up_meanwhile_sees_the_original_or_the_adopted(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While version 3 lists all manifests, version 2 adopts from version 1, which expires the original."""
    monkeypatch.setattr(cleaning, "GRACE_S", -5.0)
    one = Saver(place, tmp_path / "1", keep=1)
    one.save(40, KEPT)
    Saver(place, tmp_path / "2", version=2).save(20)
    three = Saver(place, tmp_path / "3", keep=1, version=3)
    three.save(60)
    # Between what version 3 lists first and what it lists next, of versions 1 and 2.
    honest = place.files
    listed: list[str] = []

    def files(folder: str) -> list[Entry]:
        if folder in (f"{SHELF}/snapshots", f"{SHELF}/snapshots@2"):
            listed.append(folder)
            if len(listed) == 2:
                later(place).adopt(P, 1)
                one.save(80)
        return honest(folder)

    monkeypatch.setattr(place, "files", files)
    three.save(100)
    found = restored(place, tmp_path / "into", version=2)
    assert (found.state, found.passed_over) == (state(40, KEPT), ())


def test_both_at_once_leave_whole_snapshots(place: Place, tmp_path: Path) -> None:
    """Version 1 saves as fast as it can and keeps one; each that version 2 adopts can be restored."""
    one = Saver(place, tmp_path / "1", keep=1)
    one.save(40)
    over = threading.Event()
    failures: list[Exception] = []

    def save() -> None:
        through = 40
        try:
            while not over.is_set():
                through += 10
                one.save(through, [bucket(through, b"payload %d" % through)], gone_through=through - 1)
        except Exception as problem:
            failures.append(problem)

    thread = threading.Thread(target=save)
    thread.start()
    try:
        throughs = []
        for _ in range(8):
            try:
                adopted = later(place).adopt(P, 1)
            except EnvironmentFailed as problem:
                assert "expire faster" in str(problem)
                continue
            assert adopted is not None
            throughs.append(adopted.through)
            found = restored(place, tmp_path / "into", version=2)
            assert (found.state.through, found.passed_over) == (adopted.through, ())
    finally:
        over.set()
        thread.join(60)
    assert failures == []
    assert throughs == sorted(throughs)
    assert throughs
