"""Random histories of a log: what is read again, recovered and dropped is exactly what it should be.

A history pushes to several sources out of order, seals by silence and by hand, closes sources, rolls
segments, trims and forgets, starts again, and reads with several readers in chunks of any size. Three oracles
stand beside it: all buckets that came out, a reading of the whole log from its first segment, and how far the
rows of each source went when each segment ended. Of buckets without rows, any but the last may be left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_kit import (
    WIDTH_US,
    commit_and_roll,
    of,
    positions,
    read_all,
    read_whole,
    sealed_by,
    segments,
    with_rows,
)

import understudy as us
from understudy.core.bucket import NOTHING
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.ingest.rereading import LogReader
from understudy.runtime.ingest.rows import to_table

SOURCES = ("late", "idle", "rare")


def make_flow(late: str) -> us.Flow:
    flow = us.Flow("histories", bucket="100 ms")
    schema = us.Push("id int, word string, ts timestamp")
    flow.source("late", schema, time="ts", late=late, lateness="150 ms")
    flow.source("idle", schema, time="ts", late=late, idle="200 ms")
    flow.source("rare", schema, time="ts", late=late)
    return flow


@dataclass
class Reading:
    """A reader, and the buckets that it has given."""

    source: str
    after: int
    reader: LogReader
    given: list[SealedBucket] = field(default_factory=list)

    @property
    def passed(self) -> int:
        return self.given[-1].number if self.given else self.after

    def check(self, taken: list[SealedBucket]) -> None:
        """It gave what came out, through the last number that it gave."""
        expected = [each for each in of(self.source, taken, self.after) if each.number <= self.passed]
        assert with_rows(self.given) == with_rows(expected)
        assert positions(self.given) <= positions(expected)
        assert [each.number for each in self.given] == sorted({each.number for each in self.given})

    def check_all(self, taken: list[SealedBucket]) -> None:
        """It gave all that came out."""
        self.check(taken)
        expected = of(self.source, taken, self.after)
        assert not expected or self.passed == expected[-1].number


class History:
    """One log, step by step, with its oracles."""

    def __init__(self, flow: us.Flow, folder: Path, rolls: bool, draw: st.DrawFn) -> None:
        self.flow, self.folder, self.rolls, self.draw = flow, folder, rolls, draw
        self.taken: list[SealedBucket] = []
        self.readings: list[Reading] = []
        self.ends: dict[int, dict[str, int]] = {0: dict.fromkeys(SOURCES, NOTHING)}
        self.trimmed = dict.fromkeys(SOURCES, NOTHING)
        self.forgotten = dict.fromkeys(SOURCES, NOTHING)
        self.wall_us = self.monotonic_us = 1_000_000
        self.pushes = 0
        self.ingest = Ingest(flow, folder, sync=False)
        self.ingest.recover()

    def source(self) -> str:
        return self.draw(st.sampled_from(SOURCES))

    def push(self) -> None:
        # A source that seldom has rows leaves segments without any bucket of its own.
        source = self.draw(st.sampled_from(["late"] * 4 + ["idle"] * 3 + ["rare"]))
        self.wall_us += self.draw(st.integers(0, 200_000))
        times = self.draw(st.lists(st.integers(-3, 4), max_size=5))
        table = to_table(
            self.flow.sources[source],
            [
                {"id": at, "word": "w" * self.pushes, "ts": self.wall_us + time * 60_000}
                for at, time in enumerate(times)
            ],
        )
        self.pushes += 1
        # Closed, or a late row where late rows are refused.
        with suppress(us.RowError):
            self.ingest.push(source, table, "c", self.pushes, {"at": self.pushes}, now_us=self.wall_us)
        self.commit()

    def seal(self) -> None:
        self.ingest.seal_through(self.source(), self.wall_us // WIDTH_US)
        self.commit()

    def silence(self) -> None:
        for _ in range(15):
            self.monotonic_us += 20_000
            self.ingest.tick(self.monotonic_us)
        self.commit()

    def close(self) -> None:
        if self.draw(st.integers(0, 4)) == 0:
            self.ingest.close_source(self.source())
            self.commit()

    def commit(self) -> None:
        if self.draw(st.integers(0, 2)):
            self.commit_now()

    def commit_now(self) -> None:
        newest = segments(self.folder)[-1]
        if self.rolls and self.draw(st.booleans()):
            commit_and_roll(self.ingest)
        else:
            self.ingest.commit()
        self.taken += self.ingest.take()
        if segments(self.folder)[-1] > newest:
            last_rows = sealed_by(each for each in self.taken if each.table is not None)
            self.ends[newest] = dict.fromkeys(SOURCES, NOTHING) | last_rows
        self.check_kept()

    def some_number(self, source: str) -> int:
        known = [NOTHING, *(each.number for each in of(source, self.taken, NOTHING))]
        return self.draw(st.sampled_from(known)) + self.draw(st.integers(0, 1))

    def trim(self) -> None:
        source = self.source()
        through = self.some_number(source)
        self.ingest.trim(source, through)
        self.trimmed[source] = max(self.trimmed[source], through)

    def forget(self) -> None:
        source = self.source()
        passed = [each.passed for each in self.readings if each.source == source]
        through = min([self.some_number(source), *passed])
        self.ingest.forget(source, through)
        self.forgotten[source] = max(self.forgotten[source], min(through, self.trimmed[source]))
        if self.draw(st.booleans()):
            self.commit_now()

    def restart(self) -> None:
        self.commit_now()
        for each in self.readings:
            each.reader.close()
        self.readings = []
        self.ingest.close()
        whole = read_whole(self.flow, self.folder)
        self.ingest = Ingest(self.flow, self.folder, sync=False)
        recovered = self.ingest.recover()
        for expected in (whole.buckets, [b for b in self.taken if b.number > self.trimmed[b.source]]):
            assert with_rows(recovered) == with_rows(expected)
            assert sealed_by(recovered) == sealed_by(expected)
            assert positions(recovered) <= positions(expected)
        assert self.ingest._state.head([]) == whole.head
        assert (self.ingest.trimmed, self.ingest.forgotten) == (self.trimmed, self.forgotten)
        assert self.ingest.goes_on == (whole.records > 1 or segments(self.folder)[-1] > 1)

    def open(self) -> None:
        source = self.source()
        after = self.some_number(source)
        if after < self.held_after(source):
            with pytest.raises(us.EnvironmentFailed, match="Begin with a newer snapshot"):
                self.ingest.reader(source, after)
        else:
            self.readings.append(Reading(source, after, self.ingest.reader(source, after)))

    def read(self) -> None:
        if not self.readings:
            return
        each = self.draw(st.sampled_from(self.readings))
        bytes_max = self.draw(st.sampled_from([0, 300, 1_000, 1 << 20]))
        more = each.reader.read(bytes_max)
        each.given += more
        assert len(more) <= 1 or sum(0 if b.table is None else b.table.nbytes for b in more) <= bytes_max
        each.check(self.taken)
        if not more:
            each.check_all(self.taken)

    def held_after(self, source: str) -> int:
        return self.ends[segments(self.folder)[0] - 1][source]

    def check_kept(self) -> None:
        newest = segments(self.folder)[-1]
        needed = [
            number
            for number, rows in self.ends.items()
            if number and any(rows[source] > self.forgotten[source] for source in SOURCES)
        ]
        assert segments(self.folder) == [*needed, newest]
        size_bytes = sum(file.stat().st_size for file in self.folder.glob("*.wal"))
        assert self.ingest.log_bytes == size_bytes

    def end(self) -> None:
        self.commit_now()
        for each in self.readings:
            each.given += read_all(each.reader)
            each.check_all(self.taken)
            each.reader.close()
        for source in SOURCES:
            after = max(self.held_after(source), self.forgotten[source])
            reader = self.ingest.reader(source, after)
            Reading(source, after, reader, read_all(reader, 500)).check_all(self.taken)
            assert reader.read(500) == []
            reader.close()
        self.restart()
        self.ingest.close()


WEIGHTS: dict[Callable[[History], None], int] = {
    History.push: 8,
    History.seal: 2,
    History.silence: 2,
    History.close: 1,
    History.trim: 3,
    History.forget: 3,
    History.restart: 1,
    History.open: 3,
    History.read: 5,
}
STEPS = [step for step, weight in WEIGHTS.items() for _ in range(weight)]


@given(
    data=st.data(),
    steps=st.lists(st.sampled_from(STEPS), min_size=20, max_size=80),
    late=st.sampled_from(["restamp", "drop", "refuse"]),
    rolls=st.sampled_from([True, True, True, False]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_log_gives_again_recovers_and_drops_exactly_what_it_should(
    data: st.DataObject, steps: list[Callable[[History], None]], late: str, rolls: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(make_flow(late), Path(folder), rolls, data.draw)
        for step in steps:
            step(history)
        history.end()
