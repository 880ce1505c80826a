"""The thread that drives a copy's engine: groups in, runs of encoded buckets out."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_engine import SmallEngine, bucket_of_rows, failing, rows_at

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.replica.events import LimitGroups
from understudy.core.shape.partition import Partition
from understudy.engine.interface import Emit, Output, Snapshot
from understudy.runtime.node import worker as module
from understudy.runtime.node.pace import BUCKETS, BYTES, Pace
from understudy.runtime.node.worker import Shares, Worker
from understudy.runtime.payload import decode, encode

FIRST, SECOND = Partition("above", 0), Partition("above", 1)
SINK = Partition("sink:out")
WAIT_S = 20.0


class Owner:
    """Keeps what the worker says, in order."""

    def __init__(self) -> None:
        self.said: queue.Queue[tuple[str, Any]] = queue.Queue()

    def produced(self, shares: Shares) -> None:
        self.said.put(("produced", shares))

    def limit_groups(self, limit: LimitGroups) -> None:
        self.said.put(("limit", limit))

    def processed(self) -> None:
        self.said.put(("processed", None))

    def snapshot_taken(self, version: int, snapshot: Snapshot, pause_us: int) -> None:
        self.said.put(("taken", (version, snapshot)))

    def snapshot_failed(self, version: int, why: Exception) -> None:
        self.said.put(("not taken", (version, str(why))))

    def failed(self, error: BaseException) -> None:
        self.said.put(("failed", error))

    def next(self) -> tuple[str, Any]:
        return self.said.get(timeout=WAIT_S)


class Scripted(SmallEngine):
    """Puts out what the test says, one list of outputs for each group."""

    def __init__(self, folder: Path, *groups: list[Output]) -> None:
        super().__init__(folder, (FIRST,))
        self._groups = list(groups)

    def advance(self, inputs: Mapping[str, pa.Table], through: BucketId, emit: Emit) -> None:
        for output in self._groups.pop(0):
            emit(output)


Make = Callable[..., tuple[Worker, Owner]]


@pytest.fixture
def make() -> Iterator[Make]:
    workers: list[Worker] = []

    def made(
        engine: SmallEngine, produced: Mapping[Partition, BucketId] | None = None
    ) -> tuple[Worker, Owner]:
        owner = Owner()
        worker = Worker(
            engine,
            owner,
            Pace(0, 0.1),
            stream_for=lambda consumer: "out" if consumer == SINK else "mid",
            time_of={"rows": "ts", "names": "ts"},
            produced=produced or {},
        )
        workers.append(worker)
        return worker, owner

    yield made
    for worker in workers:
        worker.end()
        worker.join(WAIT_S)


def runs(shares: Shares) -> dict[Partition, list[tuple[int, int]]]:
    """By consumer, the numbers and how many rows each has."""
    return {
        consumer: [
            (b.number, 0 if b.payload is None else sum(t.num_rows for t in decode(b.payload).values()))  # type: ignore[arg-type]
            for b in buckets
        ]
        for consumer, buckets in shares
    }


def outputs(make: Make, folder: Path, *groups: list[Output], produced: Any = None) -> list[Any]:
    """What is produced for each group: runs by consumer, or None."""
    worker, owner = make(Scripted(folder, *groups), produced)
    found: list[Any] = []
    for number in range(len(groups)):
        worker.process([Bucket(number)])
        said = owner.next()
        while said[0] == "produced":
            found.append(runs(said[1]))
            said = owner.next()
        assert said == ("processed", None)
        found.append("processed")
    return found


def test_a_group_is_decoded_merged_and_given_to_the_engine_as_one(make: Make, tmp_path: Path) -> None:
    engine = SmallEngine(tmp_path, (SINK,))
    worker, owner = make(engine)
    names = encode({"names": rows_at(4, 7)})
    both = Bucket(
        4, ((Partition("rows"), encode({"rows": rows_at(4, 3)})), (Partition("names"), names)), len(names)
    )
    worker.process([bucket_of_rows(1, 1, 2), Bucket(3), both, Bucket(6)])
    assert owner.next()[0] == "produced"
    assert owner.next() == ("processed", None)
    assert engine.advanced == [({"rows": 3, "names": 1}, 6)]
    assert (worker.stats.rows_in, worker.stats.groups, worker.stats.last_group_buckets) == (4, 1, 4)


def test_an_engine_that_takes_buckets_one_by_one_gets_as_many_as_it_manages_in_time(
    make: Make, tmp_path: Path
) -> None:
    class Slow(SmallEngine):
        def advance(self, inputs: Mapping[str, pa.Table], through: BucketId, emit: Emit) -> None:
            time.sleep(BUCKETS.group_s)

    engine = Slow(tmp_path, (SINK,))
    engine.stepwise = True
    worker, owner = make(engine)
    for _ in range(2):
        worker.process([Bucket(1), Bucket(2)])
    # Two in a little more than the time there is: one. It is said when it changes.
    told = [("limit", LimitGroups(buckets_max=1)), ("processed", None), ("processed", None)]
    assert [owner.next() for _ in range(3)] == told


def test_an_engine_that_is_quick_with_a_large_group_gets_larger_ones(make: Make, tmp_path: Path) -> None:
    worker, owner = make(SmallEngine(tmp_path, (SINK,)))
    assert worker.limit == LimitGroups(bytes_max=BYTES.first)
    worker.process([Bucket(1, (), BYTES.first // 2), Bucket(2, (), BYTES.first // 2)])
    assert [owner.next() for _ in range(2)][-1] == ("limit", LimitGroups(bytes_max=BYTES.most))


def test_parts_of_several_producers_come_in_one_order_whatever_theirs_was(make: Make, tmp_path: Path) -> None:
    """All copies of a partition must agree on it."""
    parts = [(Partition("rows", n), encode({"rows": rows_at(4, n, n + 10)})) for n in range(3)]
    given: list[pa.Table] = []

    class Looking(SmallEngine):
        def advance(self, inputs: Mapping[str, pa.Table], through: BucketId, emit: Emit) -> None:
            given.append(inputs["rows"])

    worker, owner = make(Looking(tmp_path, (SINK,)))
    for each in (parts, parts[::-1]):
        worker.process([Bucket(4, tuple(each), 1)])
        assert owner.next() == ("processed", None)
    assert given[0].equals(given[1])
    assert sorted(given[0].column("k").to_pylist()) == [0, 1, 2, 10, 11, 12]


def test_output_is_encoded_under_the_stream_that_its_consumer_takes(make: Make, tmp_path: Path) -> None:
    shares = {FIRST: {1: rows_at(1, 5)}, SINK: {1: rows_at(1, 6)}}
    worker, owner = make(Scripted(tmp_path, [Output(shares, (FIRST, SINK), 1)]))
    worker.process([Bucket(1)])
    ((_, (first,)), (_, (sink,))) = owner.next()[1]
    assert decode(first.payload)["mid"].column("k").to_pylist() == [5]
    assert decode(sink.payload)["out"].column("k").to_pylist() == [6]
    assert (first.size_bytes, sink.size_bytes) == (len(first.payload), len(sink.payload))


def test_rows_that_several_consumers_take_are_encoded_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []

    def counted(tables: Mapping[str, pa.Table]) -> bytes:
        encoded.append(sum(table.num_rows for table in tables.values()))
        return encode(tables)

    monkeypatch.setattr(module, "encode", counted)
    everything = {1: rows_at(1, 5), 2: rows_at(2, 6, 7)}
    consumers = (FIRST, SECOND)
    worker, owner = make(Scripted(tmp_path, [Output(dict.fromkeys(consumers, everything), consumers, 4)]))
    worker.process([Bucket(4)])
    ((_, first), (_, second)) = owner.next()[1]
    assert encoded == [1, 2]
    assert [a.payload is b.payload for a, b in zip(first, second, strict=True)] == [True, True, True]
    owner.next()
    assert worker.stats.rows_out == 6


def test_the_same_rows_under_another_stream_are_not_the_same_payload(make: Make, tmp_path: Path) -> None:
    """Two fragments of one segment may hand on the very same rows."""
    table = rows_at(1, 5)
    output = Output({FIRST: {1: table}, SINK: {1: table}}, (FIRST, SINK), 1)
    worker, owner = make(Scripted(tmp_path, [output]))
    worker.process([Bucket(1)])
    ((_, (first,)), (_, (sink,))) = owner.next()[1]
    assert (list(decode(first.payload)), list(decode(sink.payload))) == (["mid"], ["out"])


def test_every_consumer_hears_how_far_output_is_complete_rows_or_not(make: Make, tmp_path: Path) -> None:
    consumers = (FIRST, SECOND)
    found = outputs(
        make,
        tmp_path,
        [Output({FIRST: {3: rows_at(3, 1), 2: rows_at(2, 1, 2)}}, consumers, 5)],
        [Output({}, consumers, 5)],
        [Output({SECOND: {7: rows_at(7, 1)}}, consumers, 7)],
        [Output({}, (SECOND,), 9), Output({}, (FIRST,), 9)],
    )
    assert found == [
        {FIRST: [(2, 2), (3, 1), (5, 0)], SECOND: [(5, 0)]},
        "processed",
        "processed",
        {FIRST: [(7, 0)], SECOND: [(7, 1)]},
        "processed",
        {SECOND: [(9, 0)]},
        {FIRST: [(9, 0)]},
        "processed",
    ]


def test_after_a_state_was_restored_no_number_is_produced_again(make: Make, tmp_path: Path) -> None:
    """The outlets that moved with the state have them, and numbers must rise."""
    found = outputs(
        make,
        tmp_path,
        [Output({}, (FIRST, SECOND), 8)],
        [Output({}, (FIRST, SECOND), 9)],
        [Output({}, (FIRST, SECOND), 10)],
        produced={FIRST: 9, SECOND: 8},
    )
    assert found == [
        "processed",
        {SECOND: [(9, 0)]},
        "processed",
        {FIRST: [(10, 0)], SECOND: [(10, 0)]},
        "processed",
    ]


def test_an_engine_that_fails_is_reported_once_and_given_nothing_more(make: Make, tmp_path: Path) -> None:
    engine = SmallEngine(tmp_path, (SINK,))
    engine.trouble["advance"] = failing(ZeroDivisionError("in a fragment"))
    worker, owner = make(engine)
    worker.process([Bucket(1)])
    worker.process([Bucket(2)])
    said, error = owner.next()
    assert (said, str(error)) == ("failed", "in a fragment")
    worker.join(WAIT_S)
    assert owner.said.empty()
    assert engine.advanced == []


def test_a_snapshot_waits_for_the_group_before_it_and_holds_its_state(make: Make, tmp_path: Path) -> None:
    engine = SmallEngine(tmp_path / "engine", (SINK,))
    worker, owner = make(engine)
    worker.process([bucket_of_rows(3, 1, 2)])
    worker.snapshot(7, tmp_path / "into")
    worker.process([bucket_of_rows(4, 1)])
    assert [owner.next()[0] for _ in range(2)] == ["produced", "processed"]
    said, (version, snapshot) = owner.next()
    assert (said, version, snapshot.through) == ("taken", 7, 3)
    assert (tmp_path / "into" / "state" / "seen").read_text() == "2"
    assert [owner.next()[0] for _ in range(2)] == ["produced", "processed"]


def test_a_snapshot_that_fails_is_reported_and_the_engine_goes_on(make: Make, tmp_path: Path) -> None:
    engine = SmallEngine(tmp_path / "engine", (SINK,))
    engine.trouble["snapshot"] = failing(OSError("No space left on device"))
    worker, owner = make(engine)
    worker.snapshot(1, tmp_path / "into")
    assert owner.next() == ("not taken", (1, "No space left on device"))
    worker.process([bucket_of_rows(3, 1)])
    assert [owner.next()[0] for _ in range(2)] == ["produced", "processed"]


def test_a_new_worker_has_produced_nothing(make: Make, tmp_path: Path) -> None:
    assert outputs(make, tmp_path, [Output({}, (FIRST,), NOTHING + 1)]) == [
        {FIRST: [(NOTHING + 1, 0)]},
        "processed",
    ]
