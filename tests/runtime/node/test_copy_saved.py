"""A copy that saves its state in the store, and begins from there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_engine import failing
from small_node import COPY, EPOCH, SINK, WAIT_S, Node, alive, eventually, state_of

from understudy.core.bucket import NOTHING
from understudy.core.edge.outlet import OutletState
from understudy.core.host.parcels import Began
from understudy.core.replica.events import Saved, SaveFailed
from understudy.core.shape.partition import Copy, Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.history.records import InstalledRecord
from understudy.runtime.node.saving import Saving
from understudy.runtime.saving.needed import Needed
from understudy.runtime.saving.restoring import Restored
from understudy.runtime.saving.store import SnapshotStore


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.saving = Saving(SnapshotStore.open(str(tmp_path / "store"), "run", keep=1), Needed(tmp_path))
    yield made
    for leaving in [copy.end() for copy in made.copies]:
        leaving.join(WAIT_S)
    made.recorder.close()
    made.endpoint.end()


def saved_once(node: Node) -> None:
    """A copy has taken two rows of bucket 3, saved its state as version 5, and left."""
    copy = node.begun(node.copy(COPY))
    node.works(copy, 3)
    node.lends(copy, 5, state_of(5, 3))
    copy.save(5)
    assert node.next(Saved) == Saved(5, 3)
    copy.unlend(5)
    copy.end().join(WAIT_S)


def test_a_copy_goes_on_from_its_saved_state_and_that_is_on_record(node: Node) -> None:
    saved_once(node)
    again = node.copy(COPY)
    again.begin()
    assert node.next(Began) == Began(COPY, EPOCH, state_of(5, 3))
    assert node.engines[-1].seen == 2
    node.works(again, 4)
    assert node.engines[-1].seen == 4
    assert not (node.folder / "copy-0" / "restored").exists()
    (record,) = (r for r in node.records() if isinstance(r, InstalledRecord))
    assert (record.of, record.version, record.through) == ("flow/0:0", 5, 3)


def test_any_replica_begins_from_the_state_of_its_partition(node: Node) -> None:
    saved_once(node)
    other = Copy(COPY.partition, 1)
    node.copy(other).begin()
    assert node.next(Began) == Began(other, EPOCH, state_of(5, 3))


def test_output_that_is_saved_is_not_produced_again(node: Node) -> None:
    saved_once(node)
    again = node.copy(COPY)
    again.begin()
    node.next(Began)
    assert [bucket.number for bucket in node.works(again, 4)] == [4]


def test_sinks_may_have_come_and_gone_since_a_state_was_saved(node: Node) -> None:
    saved_once(node)
    produced = dict(state_of(5, 3).outlets)[SINK].produced_through
    new = Partition("sink:new")
    node.consumers = (new,)
    node.copy(COPY).begin()
    (outlet,) = node.next(Began).saved.outlets
    assert outlet == (new, OutletState((), produced, NOTHING, ())), "it gets what is put out from now on"


def test_without_anything_saved_a_copy_begins_empty(node: Node) -> None:
    node.begun(node.copy(COPY))
    assert node.engines[0].started_from is None


def test_a_save_that_fails_is_told_to_the_host_and_the_copy_works_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise EnvironmentFailed("the disk is full")

    assert node.saving is not None
    monkeypatch.setattr(node.saving._store, "save", refuse)
    copy = node.begun(node.copy(COPY))
    node.works(copy, 3)
    node.lends(copy, 1, state_of(1, 3))
    copy.save(1)
    assert node.next(SaveFailed) == SaveFailed(1, "the disk is full")
    node.works(copy, 4)
    assert node.failures == []


def test_an_engine_that_does_not_start_from_a_saved_state_is_the_nodes_failure(node: Node) -> None:
    saved_once(node)
    node.prepare = lambda engine: engine.trouble.update(start=failing(RuntimeError("does not fit")))
    node.copy(COPY).begin()
    eventually(lambda: [str(error) for error in node.failures] == ["does not fit"])
    assert node.host_events.empty(), "it has not begun, with nothing least of all"
    assert not (node.folder / "copy-0" / "restored").exists()


def test_a_copy_that_leaves_while_it_waits_for_its_state_leaves_nothing_behind(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_once(node)
    assert node.saving is not None
    restoring, go_on = threading.Event(), threading.Event()
    honest = node.saving._store.restore

    def slow(*given: Any) -> Restored | None:
        restoring.set()
        assert go_on.wait(WAIT_S)
        return honest(*given)

    monkeypatch.setattr(node.saving._store, "restore", slow)
    engines = len(node.engines)
    copy = node.copy(COPY)
    copy.begin()
    assert restoring.wait(WAIT_S)
    leaving = copy.end()
    leaving.join(WAIT_S)
    go_on.set()
    eventually(lambda: not alive("engine"))
    assert not (node.folder / "copy-0").exists(), "also what came after it had left"
    assert len(node.engines) == engines
    assert node.host_events.empty()
    assert node.failures == []


def test_a_copy_that_leaves_does_not_wait_for_a_store_that_does_not_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.saving is not None
    asked = threading.Event()

    def silent(*_: Any) -> None:
        asked.set()
        raise EnvironmentFailed("no answer")

    monkeypatch.setattr(node.saving._store, "restore", silent)
    copy = node.copy(COPY)
    copy.begin()
    assert asked.wait(WAIT_S)
    copy.end().join(WAIT_S)
    eventually(lambda: not alive("engine"))
    assert (node.engines, node.failures, node.host_events.empty()) == ([], [], True)
