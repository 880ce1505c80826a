"""A copy on its node: its engine, its snapshots, and the state that it is given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_engine import SmallEngine, failing
from small_node import COPY, SINK, STANDBY, WAIT_S, Node, alive, eventually, state_of

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.outlet import OutletState
from understudy.core.replica.events import (
    CopyState,
    FetchFailed,
    Installed,
    LimitGroups,
    Processed,
    Produced,
    SnapshotFailed,
    SnapshotTaken,
)
from understudy.core.shape.partition import Copy
from understudy.history.records import HandedRecord, InstalledRecord, ProducedRecord, SnapshotRecord
from understudy.runtime.node.copy import HostedCopy
from understudy.runtime.node.mover import PURPOSE
from understudy.runtime.node.pace import BUCKETS, BYTES
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for leaving in [copy.end() for copy in made.copies]:
        leaving.join(WAIT_S)
    made.recorder.close()
    made.endpoint.end()


@pytest.fixture
def lender(node: Node) -> HostedCopy:
    """A copy that has taken two rows of bucket 3, and keeps its state."""
    copy = node.begun(node.copy(COPY))
    node.works(copy, 3)
    node.lends(copy, 1, state_of(1, 3))
    return copy


# --- beginning, working, leaving ----------------------------------------------------------------------------


def test_a_copy_that_begins_empty_works_and_its_deeds_are_on_record(node: Node) -> None:
    copy = node.begun(node.copy(COPY))
    assert [bucket.number for bucket in node.works(copy, 3)] == [3]
    assert (copy.stats.groups, copy.stats.rows_in, copy.stats.rows_out) == (1, 2, 2)
    handed, produced = (r for r in node.records() if isinstance(r, HandedRecord | ProducedRecord))
    assert (handed.of, handed.after, handed.through, handed.numbers) == ("flow/0:0", NOTHING, 3, (3,))
    assert (produced.of, produced.to, produced.number, produced.rows) == ("flow/0:0", "sink:out/0", 3, 2)


@pytest.mark.parametrize(
    ("stepwise", "limit"),
    [(False, LimitGroups(bytes_max=BYTES.first)), (True, LimitGroups(buckets_max=BUCKETS.first))],
)
def test_what_an_engine_may_be_given_first_is_said_before_it_gets_any(
    node: Node, stepwise: bool, limit: LimitGroups
) -> None:
    def prepare(engine: SmallEngine) -> None:
        engine.stepwise = stepwise

    node.prepare = prepare
    node.begun(node.copy(COPY))
    assert node.limits == [limit]


@pytest.mark.parametrize("what", ["start", "advance"])
def test_a_failure_of_a_copy_that_is_seated_is_the_nodes(node: Node, what: str) -> None:
    def prepare(engine: SmallEngine) -> None:
        engine.trouble[what] = failing(RuntimeError("Spark is gone"))

    node.prepare = prepare
    copy = node.copy(COPY)
    if what == "start":
        copy.begin()
    else:
        node.begun(copy).process((Bucket(1),))
    eventually(lambda: [str(error) for error in node.failures] == ["Spark is gone"])


def test_a_copy_that_leaves_ends_its_engine_and_leaves_nothing_behind(node: Node, lender: HostedCopy) -> None:
    folder = node.folder / "copy-0"
    assert list(folder.rglob("*"))
    lender.end().join(WAIT_S)
    assert node.engines[0].closed.is_set()
    assert not folder.exists()
    assert node.failures == []


def test_a_failure_after_a_copy_has_left_is_ignored(node: Node) -> None:
    copy = node.begun(node.copy(COPY))
    working, go_on = threading.Event(), threading.Event()

    def torn_away() -> None:
        working.set()
        assert go_on.wait(WAIT_S)
        raise RuntimeError("the query was stopped")

    node.engines[0].trouble["advance"] = torn_away
    copy.process((Bucket(1),))
    assert working.wait(WAIT_S)
    copy.end().join(WAIT_S)
    go_on.set()
    eventually(lambda: not alive("worker"))
    assert node.failures == []
    assert node.host_events.empty()


def test_a_copy_that_leaves_while_its_engine_starts_leaves_neither_engine_nor_thread(node: Node) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    node.prepare = lambda engine: engine.trouble.update(start=slow)
    copy = node.copy(COPY)
    copy.begin()
    assert begun.wait(WAIT_S)
    leaving = copy.end()
    go_on.set()
    leaving.join(WAIT_S)
    eventually(lambda: node.engines[0].closed.is_set() and not alive("worker", "engine"))
    assert node.failures == []


def test_a_copy_that_left_before_its_engine_was_made_makes_none(node: Node) -> None:
    with node.starting:
        copy = node.copy(COPY)
        copy.begin()
        leaving = copy.end()
    leaving.join(WAIT_S)
    eventually(lambda: not alive("engine"))
    assert node.engines == []
    assert node.host_events.empty()


# --- snapshots ----------------------------------------------------------------------------------------------


def test_a_snapshot_is_kept_while_it_is_lent_and_its_folder_goes_afterwards(
    node: Node, lender: HostedCopy
) -> None:
    directory = lender.lent[1].snapshot.directory
    assert (directory / "state" / "seen").read_text() == "2"
    node.works(lender, 4)
    assert (directory / "state" / "seen").read_text() == "2", "the engine went on, the snapshot did not"
    lender.unlend(1)
    assert not directory.exists()
    assert lender.lent == {}
    lender.unlend(1)
    assert node.failures == []


def test_a_snapshot_can_be_lent_the_moment_that_the_host_hears_of_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = node.begun(node.copy(COPY))
    honest = node.inside

    def lend_at_once(of: Copy, epoch: int, event: object) -> None:
        if isinstance(event, SnapshotTaken):
            copy.lend(state_of(event.version, NOTHING))
        honest(of, epoch, event)

    monkeypatch.setattr(node, "inside", lend_at_once)
    copy.snapshot(1)
    eventually(lambda: bool(node.failures) or not node.host_events.empty())
    assert node.failures == []
    assert node.next(SnapshotTaken) == SnapshotTaken(1)
    assert copy.lent[1].snapshot.directory.exists()


def test_a_snapshot_that_is_never_lent_goes_as_well(node: Node) -> None:
    copy = node.begun(node.copy(COPY))
    copy.snapshot(1)
    node.next(SnapshotTaken)
    directory = node.folder / "copy-0" / "outgoing" / "1"
    assert directory.exists()
    copy.unlend(1)
    assert not directory.exists()


def test_what_an_earlier_attempt_left_is_not_in_a_snapshots_way(node: Node) -> None:
    copy = node.begun(node.copy(COPY))
    (node.folder / "copy-0" / "outgoing" / "1").mkdir(parents=True)
    copy.snapshot(1)
    assert node.next(SnapshotTaken) == SnapshotTaken(1)
    (record,) = (r for r in node.records() if isinstance(r, SnapshotRecord))
    assert (record.of, record.version, record.through) == ("flow/0:0", 1, NOTHING)
    assert record.bytes > 0


def test_a_snapshot_that_fails_costs_the_copy_nothing(node: Node) -> None:
    copy = node.begun(node.copy(COPY))
    node.engines[0].trouble["snapshot"] = failing(OSError("No space left on device"))
    copy.snapshot(1)
    assert node.next(SnapshotFailed) == SnapshotFailed(1, "No space left on device")
    node.works(copy, 3)
    assert node.failures == []


def test_a_snapshot_without_a_folder_to_write_to_costs_the_copy_nothing(node: Node) -> None:
    (node.folder / "taken").write_text("a file, where the copy's folder should be")
    copy = node.begun(node.copy(COPY, node.folder / "taken"))
    copy.snapshot(1)
    assert node.next(SnapshotFailed).version == 1
    node.works(copy, 3)
    assert node.failures == []


# --- a newcomer ---------------------------------------------------------------------------------------------


def test_a_newcomer_starts_from_the_state_it_was_given_and_goes_on_from_there(
    node: Node, lender: HostedCopy
) -> None:
    newcomer = node.copy(STANDBY)
    node.fetch(newcomer, 1)
    assert node.next(Installed) == Installed(1, state_of(1, 3))
    after = node.works(newcomer, 4)
    node.recorder.produced_for(COPY, SINK, after)
    assert node.works(lender, 4) == after, "its output depends on what was moved"
    engine = node.engines[1]
    assert engine.started_from is not None
    assert not engine.started_from.directory.exists(), "what arrived is used up"
    installed = [r for r in node.records() if isinstance(r, InstalledRecord)]
    assert [(r.of, r.version, r.through) for r in installed] == [("flow/0:1", 1, 3)]
    handed = [r for r in node.records() if isinstance(r, HandedRecord) and r.of == "flow/0:1"]
    assert [(r.after, r.through) for r in handed] == [(3, 4)]


def test_a_newcomer_that_is_given_work_at_once_has_its_state_on_record_before(
    node: Node, lender: HostedCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomer = node.copy(STANDBY)
    honest = node.inside

    def work_at_once(of: Copy, epoch: int, event: object) -> None:
        honest(of, epoch, event)
        if isinstance(event, Installed):
            newcomer.process((Bucket(4),))

    monkeypatch.setattr(node, "inside", work_at_once)
    node.fetch(newcomer, 1)
    node.next(Installed)
    node.next(Produced)
    of_newcomer = [
        r for r in node.records() if isinstance(r, InstalledRecord | HandedRecord) and r.of == "flow/0:1"
    ]
    assert [(type(r), r.through) for r in of_newcomer] == [(InstalledRecord, 3), (HandedRecord, 4)]


def test_a_newcomer_does_not_produce_again_what_the_state_it_was_given_has_produced(
    node: Node, lender: HostedCopy
) -> None:
    lender.unlend(1)
    node.lends(lender, 2, CopyState(2, 3, ((SINK, OutletState((), 9, 9, ((0, 9),))),)))
    newcomer = node.copy(STANDBY)
    node.fetch(newcomer, 1, version=2)
    node.next(Installed)
    newcomer.process((Bucket(9),))
    assert node.next(Processed) == Processed()
    newcomer.process((Bucket(10),))
    assert node.next(Produced) == Produced(((SINK, (Bucket(10),)),))


def damage_the_snapshot(node: Node, lender: HostedCopy) -> None:
    (lender.lent[1].snapshot.directory / "ballast").write_bytes(b"damaged on its way")


def damage_the_manifest(node: Node, lender: HostedCopy) -> None:
    (lender.lent[1].snapshot.directory / "manifest.json").write_text("{ rubbish")


def lose_a_file(node: Node, lender: HostedCopy) -> None:
    (lender.lent[1].snapshot.directory / "state" / "seen").unlink()


def let_the_engine_not_start(node: Node, lender: HostedCopy) -> None:
    node.prepare = lambda engine: engine.trouble.update(start=failing(RuntimeError("does not start")))


def let_the_engine_neither_start_nor_end(node: Node, lender: HostedCopy) -> None:
    node.prepare = lambda engine: engine.trouble.update(
        start=failing(RuntimeError("does not start")), close=failing(RuntimeError("does not end"))
    )


def let_no_engine_be_made(node: Node, lender: HostedCopy) -> None:
    def refuse(_engine: SmallEngine) -> None:
        raise RuntimeError("no engine")

    node.prepare = refuse


def take_the_folder_away(node: Node, lender: HostedCopy) -> None:
    (node.folder / "copy-1").write_text("a file, where the copy's folder should be")


def end_the_lenders_process(node: Node, lender: HostedCopy) -> None:
    node.endpoint.end()


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (damage_the_snapshot, "ballast is not what was written"),
        (damage_the_manifest, "manifest.json is damaged"),
        (lose_a_file, "state/seen is missing"),
        (let_the_engine_not_start, "RuntimeError: does not start"),
        (let_the_engine_neither_start_nor_end, "RuntimeError: does not start"),
        (let_no_engine_be_made, "RuntimeError: no engine"),
        (take_the_folder_away, "copy-1"),
        (end_the_lenders_process, "ConnectionError"),
    ],
)
def test_a_state_that_cannot_be_used_is_reported_to_the_host_and_nothing_else_fails(
    node: Node, lender: HostedCopy, break_it: Callable[[Node, HostedCopy], None], why: str
) -> None:
    break_it(node, lender)
    newcomer = node.copy(STANDBY)
    node.fetch(newcomer, 2)
    failed = node.next(FetchFailed)
    assert failed.attempt == 2
    assert why in failed.why
    node.works(lender, 4)
    assert node.failures == []
    eventually(lambda: not alive("catch-up"))
    assert not (node.folder / "copy-1" / "incoming-2").exists()
    assert all(engine.closed.is_set() for engine in node.engines[1:])
    assert not [r for r in node.records() if isinstance(r, InstalledRecord)]


def test_a_newcomer_that_failed_once_may_succeed_the_next_time(node: Node, lender: HostedCopy) -> None:
    let_the_engine_not_start(node, lender)
    newcomer = node.copy(STANDBY)
    node.fetch(newcomer, 1)
    node.next(FetchFailed)
    node.prepare = lambda _engine: None
    node.fetch(newcomer, 2)
    assert node.next(Installed).attempt == 2
    node.works(newcomer, 4)


def test_a_newcomer_that_leaves_while_its_state_is_on_its_way_says_nothing_more(
    node: Node, lender: HostedCopy
) -> None:
    opened = threading.Event()

    def never_ends(channel: Channel) -> None:
        opened.set()

    def ignore(_: object) -> None:
        pass

    node.endpoint.handle(PURPOSE, lambda _hello: Accepted(never_ends, ignore, ignore))
    newcomer = node.copy(STANDBY)
    node.fetch(newcomer, 1)
    assert opened.wait(WAIT_S)
    newcomer.end().join(WAIT_S)
    eventually(lambda: not alive("catch-up"))
    assert not (node.folder / "copy-1").exists()
    assert len(node.engines) == 1
    assert node.host_events.empty()
    assert node.failures == []
