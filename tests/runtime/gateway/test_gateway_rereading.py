"""The log is read again for copies that begin from a saved state, piece by piece and each on its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from understudy.core.bucket import Bucket, BucketId
from understudy.core.errors import BrokenInvariant
from understudy.core.replica.events import LogRead
from understudy.core.shape.partition import Copy, Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.gateway import rereading
from understudy.runtime.gateway.rereading import Rereading
from understudy.runtime.ingest.buckets import SealedBucket

WAIT_S = 20.0
ONE, OTHER = Copy(Partition("one"), 0), Copy(Partition("one", 1), 1)


class Reader:
    """Gives two buckets at a time of those that follow, up to bucket 9."""

    def __init__(self, log: Log, source: str, after: BucketId) -> None:
        self._log = log
        self._source = source
        self._after = after
        self.is_closed = threading.Event()

    def read(self, bytes_max: int) -> list[SealedBucket]:
        self._log.reads.append((self._source, self._after, bytes_max))
        if self._log.trouble is not None:
            raise self._log.trouble
        numbers = range(self._after + 1, min(self._after + 3, 10))
        self._after = max([self._after, *numbers])
        return [SealedBucket(self._source, number, None) for number in numbers]

    def close(self) -> None:
        self.is_closed.set()


class Log:
    """A log of small readers, and what came of reading it."""

    def __init__(self) -> None:
        self.readers: list[Reader] = []
        self.reads: list[tuple[str, BucketId, int]] = []
        self.trouble: BaseException | None = None
        self.results: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self.rereading = Rereading(self.open, self.share, self.read, self.failed)

    def open(self, source: str, after: BucketId) -> Any:
        self.readers.append(Reader(self, source, after))
        return self.readers[-1]

    def share(self, bucket: SealedBucket, partition: Partition) -> Bucket:
        return Bucket(bucket.number, str(partition).encode(), 1)

    def read(self, source: str, event: LogRead) -> None:
        self.results.put((source, event))

    def failed(self, *given: object) -> None:
        self.results.put(given)

    def asked(self, source: str, consumer: Copy, after: BucketId) -> tuple[Any, ...]:
        self.rereading.read(source, consumer, after, 77)
        return self.results.get(timeout=WAIT_S)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.rereading.end()
    for thread in threading.enumerate():
        if thread.name == "reading the log again":
            thread.join(WAIT_S)
    assert all(reader.is_closed.is_set() for reader in made.readers), "no reader keeps its file"


def shares(consumer: Copy, *numbers: BucketId) -> tuple[Bucket, ...]:
    return tuple(Bucket(number, str(consumer.partition).encode(), 1) for number in numbers)


def test_a_reader_goes_on_where_its_last_piece_ended(log: Log) -> None:
    assert log.asked("rows", ONE, 3) == ("rows", LogRead(ONE, 3, shares(ONE, 4, 5)))
    assert log.asked("rows", ONE, 5) == ("rows", LogRead(ONE, 5, shares(ONE, 6, 7)))
    assert len(log.readers) == 1
    assert log.reads == [("rows", 3, 77), ("rows", 5, 77)]


def test_copies_and_sources_are_read_for_each_on_its_own(log: Log) -> None:
    assert log.asked("rows", ONE, 3)[1].buckets == shares(ONE, 4, 5)
    assert log.asked("rows", OTHER, 0)[1].buckets == shares(OTHER, 1, 2)
    assert log.asked("more", ONE, 6)[1].buckets == shares(ONE, 7, 8)
    assert log.asked("rows", ONE, 5)[1].buckets == shares(ONE, 6, 7)
    assert log.asked("rows", OTHER, 2)[1].buckets == shares(OTHER, 3, 4)
    assert len(log.readers) == 3


def test_a_copy_that_begins_again_gets_a_new_reader_and_the_old_one_is_closed(log: Log) -> None:
    log.asked("rows", ONE, 3)
    assert log.asked("rows", ONE, 3) == ("rows", LogRead(ONE, 3, shares(ONE, 4, 5)))
    assert [reader.is_closed.is_set() for reader in log.readers] == [True, False]


def test_readers_that_nobody_needs_let_go_of_the_log(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody says that a piece was the last one, and a dropped segment stays on disk while it is open."""
    monkeypatch.setattr(rereading, "IDLE_S", 0.05)
    log.asked("rows", ONE, 3)
    log.asked("more", OTHER, 3)
    for reader in log.readers:
        assert reader.is_closed.wait(WAIT_S)
    assert log.asked("rows", ONE, 5)[1].buckets == shares(ONE, 6, 7), "it may be needed once more"


def test_a_failure_is_told_with_what_was_wanted_and_others_are_read_for_all_the_same(log: Log) -> None:
    log.asked("rows", ONE, 3)
    log.trouble = EnvironmentFailed("the log is damaged")
    assert log.asked("rows", ONE, 5) == ("rows", ONE, 5, log.trouble)
    log.trouble = None
    assert log.asked("rows", OTHER, 0)[1].buckets == shares(OTHER, 1, 2)
    assert log.asked("rows", ONE, 5)[1].buckets == shares(ONE, 6, 7), "with a reader that has not failed"
    assert len(log.readers) == 3


def test_a_log_that_ends_before_what_was_sent_once_is_a_failure(log: Log) -> None:
    *wanted, error = log.asked("rows", ONE, 9)
    assert wanted == ["rows", ONE, 9]
    assert isinstance(error, BrokenInvariant)
    assert "the log of 'rows' ends with bucket 9" in str(error)


def test_asking_does_not_wait_for_the_disk(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    honest = Reader.read

    def slow(reader: Reader, bytes_max: int) -> list[SealedBucket]:
        assert go_on.wait(WAIT_S)
        return honest(reader, bytes_max)

    monkeypatch.setattr(Reader, "read", slow)
    for after in (3, 5, 7):
        log.rereading.read("rows", ONE, after, 77)
    assert log.results.empty()
    go_on.set()
    assert [log.results.get(timeout=WAIT_S)[1].after for _ in range(3)] == [3, 5, 7]
