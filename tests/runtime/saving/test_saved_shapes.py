"""A former shape of the flow counts as long as a snapshot of it may be used; then what only it saved goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from saving_kit import RUN, P, files_of, sealed

from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Partition
from understudy.runtime.leftovers import drop_unfinished
from understudy.runtime.pinning import (
    keep_former_shapes,
    known_shapes,
    let_change,
    pin_shape,
    shape_mark,
)
from understudy.runtime.saved_shapes import shapes_that_count
from understudy.runtime.saving.manifest import Manifest, decode, encode
from understudy.runtime.saving.needed import Needed
from understudy.runtime.saving.of_run import store_of
from understudy.runtime.saving.opening import open_place
from understudy.runtime.saving.places import digest_of
from understudy.runtime.saving.store import SnapshotStore
from understudy.runtime.settings import RunSettings

BASE, X = Partition("base", 0), Partition("x", 0)


def shape(generation: int, *segments: str) -> dict[str, Any]:
    return {"made by": generation, "segments": {name: [name] for name in segments}}


FIRST, SECOND, THIRD = shape(1, "base", "x"), shape(2, "base"), shape(3, "base")


class Run:
    """A run whose nodes do nothing but write their shape down and save."""

    def __init__(self, folder: Path) -> None:
        self.settings = RunSettings(RUN, "flow.py", str(folder / "run"), "", saved_as=RUN)
        self._folder = folder
        self._through = 0

    @property
    def known(self) -> list[dict[str, Any]]:
        return known_shapes(self.settings)

    @property
    def counting(self) -> list[dict[str, Any]]:
        return shapes_that_count(self.known, store_of(self.settings))

    def begins(self, made_by: dict[str, Any], *saves: Partition) -> None:
        """The next generation begins, and saves these partitions."""
        if self.known:
            let_change(self.settings, self.counting)
            drop_unfinished(self.settings)
        pin_shape(self.settings, made_by)
        self.saves(shape_mark(made_by), *saves)

    def saves(self, mark: str, *partitions: Partition) -> None:
        for partition in partitions:
            self._through += 20
            folder = sealed(self._folder / "snapshot", self._through, files_of(self._through))
            state = CopyState(1, self._through, ())
            store_of(self.settings, mark).save(partition, folder, state)
            Needed(self.settings.version_path).note(partition)

    def has(self, partition: Partition) -> bool:
        is_there = store_of(self.settings).has_any(partition)
        assert Needed(self.settings.version_path).has(partition) == is_there
        return is_there


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


# --- marks ------------------------------------------------------------------------------------------------


def test_a_snapshot_has_the_mark_of_its_shape_also_when_another_version_adopts_it(tmp_path: Path) -> None:
    place = open_place(str(tmp_path / "store"))
    folder = sealed(tmp_path / "snapshot", 20, files_of(20))
    first = SnapshotStore(place, RUN, shape="ab12")
    first.save(P, folder, CopyState(1, 20, ()))
    second = SnapshotStore(place, RUN, version=2, shape="cd34")
    second.adopt(P, 1)
    assert [each.shape for each in (*first.listed(P), *second.listed(P))] == ["ab12", "ab12"]


def test_a_snapshot_from_before_there_were_marks_has_none() -> None:
    said = json.loads(encode(Manifest(P, 1, 20, 9.0, (), (), "ab12")))
    assert decode(json.dumps(said).encode()).shape == "ab12"
    del said["digest"], said["shape"]
    digest = digest_of([json.dumps(said, sort_keys=True).encode()])
    assert decode(json.dumps({**said, "digest": digest}).encode()).shape == ""


# --- which shapes count -----------------------------------------------------------------------------------


def test_until_every_snapshot_is_of_the_new_shape_the_former_one_counts(run: Run) -> None:
    run.begins(SECOND, BASE, BASE)
    run.begins(THIRD)
    assert run.counting == [SECOND, THIRD], "nothing is saved yet"
    run.saves(shape_mark(THIRD), BASE)
    assert run.counting == [SECOND, THIRD], "the newest may be damaged"
    run.saves(shape_mark(THIRD), BASE)
    assert run.counting == [THIRD]


def test_shapes_that_no_snapshot_is_of_are_forgotten_when_the_code_changes_again(run: Run) -> None:
    for generation in range(1, 20):
        run.begins(shape(generation, "base"), BASE)
        assert len(run.known) <= 3
    assert run.counting == [shape(18, "base"), shape(19, "base")]


def test_code_that_comes_back_is_the_newest_and_counts_once(run: Run) -> None:
    run.begins(SECOND, BASE)
    run.begins(THIRD, BASE)
    run.begins(SECOND)
    assert run.known == run.counting == [THIRD, SECOND]


def test_what_a_fragment_that_is_gone_has_saved_keeps_no_shape(run: Run) -> None:
    run.begins(FIRST, BASE, X)
    run.begins(SECOND, BASE, BASE)
    assert run.counting == [SECOND]


def test_a_fragment_that_only_a_former_shape_has_may_have_saved_by_one_before(run: Run) -> None:
    before = shape(0, "base", "x")
    run.begins(before, BASE, X)
    run.begins(FIRST, BASE, BASE)
    run.begins(SECOND, BASE)
    assert run.counting == [before, FIRST, SECOND]


def test_snapshots_without_a_mark_may_be_of_any_shape(run: Run) -> None:
    run.begins(FIRST)
    run.saves("", BASE)
    run.begins(SECOND)
    run.saves(shape_mark(SECOND), BASE)
    assert run.counting == [FIRST, SECOND]
    assert shapes_that_count(run.known, None) == [FIRST, SECOND]


def test_what_an_upgrade_adopts_is_of_the_shapes_before(run: Run) -> None:
    run.begins(FIRST, BASE, X)
    second = RunSettings(**{**vars(run.settings), "version": 2, "versions_tried": 2})
    keep_former_shapes(second, run.counting)
    pin_shape(second, SECOND)
    store_of(second).adopt(BASE, 1)
    assert shapes_that_count(known_shapes(second), store_of(second)) == [FIRST, SECOND]


# --- fragments that come and go ---------------------------------------------------------------------------


def test_a_fragment_that_comes_back_does_not_find_its_old_state(run: Run) -> None:
    run.begins(FIRST, BASE, X)
    run.begins(SECOND, BASE, BASE)
    assert run.has(X), "until it is certain that the run goes on without it"
    run.begins(shape(3, "base", "x"))
    assert not run.has(X)
    assert run.has(BASE)


def test_its_state_stays_as_long_as_others_may_go_on_from_when_it_was_there(run: Run) -> None:
    """Their output for it is gone as far as it had taken that."""
    run.begins(FIRST, BASE, X)
    run.begins(SECOND, BASE)
    run.begins(THIRD)
    assert run.has(X)


def test_a_run_that_has_never_changed_keeps_all_that_it_has(run: Run) -> None:
    run.begins(FIRST, BASE, X)
    drop_unfinished(run.settings)
    assert run.has(X) and run.has(BASE)
