"""A damaged snapshot is passed over with a sentence and set aside, and the one before it is used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from saving_kit import (
    RUN,
    SHELF,
    P,
    Saver,
    bucket,
    no_tick,
    objects,
    restored,
    set_aside,
    snapshots,
)

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving import shelf as shelf_module
from understudy.runtime.saving.manifest import Object, decode
from understudy.runtime.saving.places import Place, digest_of
from understudy.runtime.saving.store import SnapshotStore

KEPT_AT_40 = [bucket(1, b"one"), bucket(2)]
KEPT_AT_60 = [*KEPT_AT_40, bucket(3, b"three")]


def saved_twice(place: Place, folder: Path) -> Saver:
    saver = Saver(place, folder)
    saver.save(40, KEPT_AT_40)
    saver.save(60, KEPT_AT_60)
    return saver


def newest(place: Place) -> str:
    return f"{SHELF}/snapshots/{snapshots(place)[-1]}"


def file_of_newest(place: Place, name: str) -> Object:
    return dict(decode(place.read(newest(place), no_tick)).files)[name]


def own_file(place: Place) -> str:
    """An object that only the newest snapshot names."""
    return f"{SHELF}/objects/{file_of_newest(place, 'checkpoint/offsets/60').digest}"


def own_run(place: Place) -> str:
    return f"{SHELF}/objects/{decode(place.read(newest(place), no_tick)).outlets[0].runs[-1].digest}"


def flip(place: Place, name: str) -> None:
    contents = bytearray(place.read(name, no_tick))
    contents[len(contents) // 2] ^= 1
    rewrite(place, name, bytes(contents))


def cut(place: Place, name: str) -> None:
    rewrite(place, name, place.read(name, no_tick)[:-3])


def rewrite(place: Place, name: str, contents: bytes) -> None:
    # A file of its own: the old one may be a link to the engine's.
    place.delete(name)
    place.write(name, [contents], no_tick)


def renumber(place: Place, name: str) -> None:
    contents = place.read(name, no_tick)
    assert contents.count(b'"version": 1') == 1
    rewrite(place, name, contents.replace(b'"version": 1', b'"version": 7'))


def remove(place: Place, name: str) -> None:
    place.delete(name)


@pytest.mark.parametrize(
    ("which", "damage", "said"),
    [
        (own_file, flip, "its file checkpoint/offsets/60 does not have the contents that were written"),
        (own_file, cut, "its file checkpoint/offsets/60 has 7 bytes instead of 10"),
        (own_file, remove, "its file checkpoint/offsets/60 is missing"),
        (own_run, flip, "a part of its output for counts/0 does not have the contents that were written"),
        (own_run, cut, "a part of its output for counts/0 has"),
        (own_run, remove, "a part of its output for counts/0 is missing"),
        (newest, flip, "its manifest is"),
        (newest, renumber, "its manifest is not what was written"),
        (newest, cut, "its manifest is cut off or is none"),
    ],
)
def test_the_one_before_a_damaged_one_is_used(
    place: Place,
    tmp_path: Path,
    which: Callable[[Place], str],
    damage: Callable[[Place, str], None],
    said: str,
) -> None:
    saved_twice(place, tmp_path)
    name = newest(place).rpartition("/")[2]
    damage(place, which(place))
    found = restored(place, tmp_path / "into")
    assert found.state.through == 40
    assert found.state.outlets[0][1].kept == tuple(KEPT_AT_40)
    (sentence,) = found.passed_over
    assert sentence.startswith("The snapshot of sessions/0 through bucket 60")
    assert said in sentence
    assert sentence.endswith(".")
    assert name in set_aside(place)
    assert [each.through for each in SnapshotStore(place, RUN).listed(P)] == [40]
    assert restored(place, tmp_path / "into").passed_over == (), "it no longer ranks as the newest"


def test_a_damaged_object_is_not_taken_for_good_by_the_next_save(place: Place, tmp_path: Path) -> None:
    """It has the size and the name that a save looks for."""
    saver = saved_twice(place, tmp_path)
    flip(place, own_file(place))
    restored(place, tmp_path / "into")
    for each in (saver, Saver(place, tmp_path)):
        each.save(60, KEPT_AT_60)
        found = restored(place, tmp_path / "into")
        assert (found.state.through, found.passed_over) == (60, ())


def test_an_object_that_is_gone_or_cut_is_written_again_by_the_next_save(
    place: Place, tmp_path: Path
) -> None:
    saver = saved_twice(place, tmp_path)
    shared = file_of_newest(place, "checkpoint/state/0/0/1.snapshot").digest
    cut(place, f"{SHELF}/objects/{shared}")
    remove(place, own_run(place))
    saver.save(60, KEPT_AT_60)
    found = restored(place, tmp_path / "into")
    assert (found.state.through, found.passed_over) == (60, ())


def test_a_snapshot_that_lacks_an_object_does_not_count_among_those_that_stay(
    place: Place, tmp_path: Path
) -> None:
    saver = saved_twice(place, tmp_path)
    remove(place, own_file(place))
    saved = saver.save(80, KEPT_AT_60)
    assert saved.floor == 40
    assert [each.through for each in saver.store.listed(P)] == [80, 40]
    assert len(set_aside(place)) == 1


def test_neither_does_one_with_a_damaged_manifest(place: Place, tmp_path: Path) -> None:
    saved_twice(place, tmp_path)
    cut(place, newest(place))
    successor = Saver(place, tmp_path)
    assert successor.save(80, KEPT_AT_60).floor == 40
    assert [each.through for each in successor.store.listed(P)] == [80, 40]


def test_if_none_is_whole_the_restore_fails_every_time(place: Place, tmp_path: Path) -> None:
    saved_twice(place, tmp_path)
    shared = file_of_newest(place, "checkpoint/state/0/0/1.snapshot").digest
    flip(place, f"{SHELF}/objects/{shared}")
    with pytest.raises(EnvironmentFailed) as failed:
        restored(place, tmp_path / "into")
    said = str(failed.value)
    assert said.startswith("No snapshot of sessions/0 in ")
    assert "through bucket 60" in said
    assert "through bucket 40" in said
    assert place.url in said
    with pytest.raises(EnvironmentFailed, match="No snapshot of sessions/0"):
        restored(place, tmp_path / "into")


def test_what_is_set_aside_is_bounded(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "SET_ASIDE_MAX", 3)
    saver = saved_twice(place, tmp_path)
    for _ in range(4):
        flip(place, own_file(place))
        restored(place, tmp_path / "into")
        saver.save(60, KEPT_AT_60)
    assert len(set_aside(place)) == 3


def test_no_name_is_given_twice(place: Place, tmp_path: Path) -> None:
    """What was set aside under a name is never confused with another snapshot."""
    saver = saved_twice(place, tmp_path)
    gone = snapshots(place)[-1]
    flip(place, own_file(place))
    restored(place, tmp_path / "into")
    saver.save(60, KEPT_AT_60)
    assert gone not in snapshots(place)


def test_a_snapshot_of_another_version_is_neither_passed_over_nor_cleaned_away(
    place: Place, tmp_path: Path
) -> None:
    saved_twice(place, tmp_path)
    said = json.loads(place.read(newest(place), no_tick))
    said["layout"] = 99
    said.pop("digest")
    digest = digest_of([json.dumps(said, sort_keys=True).encode()])
    rewrite(place, newest(place), json.dumps({**said, "digest": digest}).encode())
    before = (snapshots(place), objects(place))
    with pytest.raises(EnvironmentFailed, match="layout 99"):
        restored(place, tmp_path / "into")
    with pytest.raises(EnvironmentFailed, match="layout 99"):
        Saver(place, tmp_path).save(80, KEPT_AT_60)
    assert (snapshots(place), objects(place)) == before


# --- what is no damage -----------------------------------------------------------------------------------


def test_a_store_that_does_not_answer_damages_nothing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_twice(place, tmp_path)

    def broken(*_: object) -> None:
        raise OSError("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(place, "download", broken)
        with pytest.raises(EnvironmentFailed, match="the network is down"):
            restored(place, tmp_path / "into")
    found = restored(place, tmp_path / "into")
    assert (found.state.through, found.passed_over) == (60, ())


def test_one_wrong_answer_is_not_believed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_twice(place, tmp_path)
    honest = place.download
    wrong = {"checkpoint/offsets/60"}

    def download(name: str, target: Path, tick: Callable[[], None]) -> None:
        relative = str(target.relative_to(tmp_path / "into"))
        if relative in wrong:
            wrong.remove(relative)
            target.write_bytes(b"nonsense")
        else:
            honest(name, target, tick)

    monkeypatch.setattr(place, "download", download)
    found = restored(place, tmp_path / "into")
    assert not wrong
    assert (found.state.through, found.passed_over) == (60, ())


def test_a_snapshot_that_expires_while_it_is_read_is_no_damaged_one(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = saved_twice(place, tmp_path)
    honest = place.download
    later = [80, 100]
    meanwhile = threading.Lock()

    def download(name: str, target: Path, tick: Callable[[], None]) -> None:
        with meanwhile:
            while later:
                saver.save(later.pop(0), KEPT_AT_60)
        honest(name, target, tick)

    monkeypatch.setattr(place, "download", download)
    found = restored(place, tmp_path / "into")
    assert (found.state.through, found.passed_over) == (100, ())
    assert set_aside(place) == set()


def test_a_folder_that_is_removed_while_it_is_restored_to_damages_nothing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that ends removes its folders."""
    saved_twice(place, tmp_path)
    honest = place.download

    def download(name: str, target: Path, tick: Callable[[], None]) -> None:
        honest(name, tmp_path / "removed" / target.name, tick)

    monkeypatch.setattr(place, "download", download)
    with pytest.raises(EnvironmentFailed, match="cannot be restored to"):
        restored(place, tmp_path / "into")
    assert set_aside(place) == set()


def test_a_store_that_may_only_be_read_can_be_restored_from(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_twice(place, tmp_path)
    remove(place, own_file(place))

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    for method in ("move", "make_folder", "delete", "write"):
        monkeypatch.setattr(place, method, refuse)
    found = restored(place, tmp_path / "into")
    assert found.state.through == 40
    assert len(found.passed_over) == 1
