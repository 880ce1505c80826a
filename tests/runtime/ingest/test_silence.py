"""Silence: only time in which a row would have been heard counts, and only by a clock that never steps."""

from __future__ import annotations

import pyarrow as pa

import understudy as us
from understudy.core.bucket import NOTHING
from understudy.flow.schema import TIMESTAMP
from understudy.runtime.ingest.silence import Deafness, Silence
from understudy.runtime.ingest.stamper import Stamper

WIDTH_US = 100_000
IDLE_US = 1_000_000
TICK_US = 20_000


class Listener:
    """A source with an idle time of a second, and a clock that ticks regularly."""

    def __init__(self, lateness: str = "0 ms") -> None:
        source = us.Flow("f").source(
            "s", us.Push("ts timestamp"), time="ts", idle="1 s", late="drop", lateness=lateness
        )
        self.stamper = Stamper(source, WIDTH_US)
        self.silence = Silence(self.stamper, IDLE_US)
        self.now_us = 5_000_000

    def row(self, time_us: int) -> int:
        """A row arrives. Returns how many rows were late."""
        self.silence.heard()
        before = self.stamper.late
        table = pa.table({"ts": pa.array([time_us], pa.int64()).cast(TIMESTAMP)})
        self.stamper.push(self.stamper.judge(table, self.now_us))
        return self.stamper.late - before

    def listen(self, for_us: int, *, deaf: bool = False, asked_us: int | None = None) -> None:
        end_us = self.now_us + for_us
        while self.now_us < end_us:
            self.now_us += TICK_US
            self.tick(deaf=deaf, asked_us=asked_us)

    def tick(self, *, deaf: bool = False, asked_us: int | None = None) -> None:
        self.silence.tick(self.now_us, deaf=deaf, asked_us=asked_us)
        self.stamper.seal_through(self.silence.boundary)


def test_a_silent_sources_time_goes_on_with_the_clock() -> None:
    listener = Listener()
    listener.row(250_000)
    listener.listen(IDLE_US)
    assert listener.stamper.through == 1
    listener.listen(IDLE_US)
    assert listener.stamper.through == 11
    listener.listen(IDLE_US)
    assert listener.stamper.through == 21
    assert listener.row(2_300_000) == 0


def test_lateness_holds_the_boundary_of_silence_back_too() -> None:
    listener = Listener(lateness="300 ms")
    listener.row(1_000_000)
    listener.listen(2 * IDLE_US + TICK_US)
    assert listener.stamper.through == 16


def test_time_without_room_is_not_silence() -> None:
    listener = Listener()
    listener.row(250_000)
    listener.listen(4 * IDLE_US, deaf=True)
    listener.listen(IDLE_US - 2 * TICK_US)
    assert listener.row(300_000) == 0


def test_a_stopped_process_is_not_silence() -> None:
    listener = Listener()
    listener.row(250_000)
    listener.listen(IDLE_US // 2)
    listener.now_us += 30_000_000
    listener.tick()
    listener.listen(IDLE_US - 2 * TICK_US)
    assert listener.row(300_000) == 0


def test_after_a_pause_silence_goes_on_from_the_boundary_that_it_had_reached() -> None:
    listener = Listener()
    listener.row(250_000)
    listener.listen(11 * IDLE_US)
    reached = listener.stamper.through
    assert reached == 101
    listener.listen(2 * IDLE_US, deaf=True)
    listener.listen(IDLE_US - TICK_US)
    assert listener.stamper.through == reached
    listener.listen(IDLE_US)
    assert listener.stamper.through == reached + 9


def test_a_reader_is_silent_until_it_was_last_asked_and_not_beyond() -> None:
    listener = Listener()
    listener.row(250_000)
    began_us = listener.now_us
    listener.listen(5 * IDLE_US, asked_us=began_us)
    assert not listener.silence.long_enough
    listener.listen(TICK_US, asked_us=began_us + 3 * IDLE_US)
    assert listener.stamper.through == 21
    listener.listen(5 * IDLE_US, asked_us=began_us + 3 * IDLE_US)
    assert listener.stamper.through == 21
    assert listener.row(2_300_000) == 0


def test_a_source_that_never_had_a_row_has_no_boundary_of_its_own() -> None:
    listener = Listener()
    listener.listen(IDLE_US - TICK_US)
    assert not listener.silence.long_enough
    listener.listen(2 * TICK_US)
    assert listener.silence.long_enough
    assert listener.silence.boundary == NOTHING


def test_a_source_is_deaf_as_long_as_there_is_one_reason_and_until_asked() -> None:
    deafness = Deafness()
    with deafness.during("s"):
        deafness.begin("s")
    assert deafness.since_last_asked() == {"s"}
    assert deafness.since_last_asked() == {"s"}
    deafness.end("s")
    assert deafness.since_last_asked() == {"s"}, "it was deaf until just now"
    assert deafness.since_last_asked() == frozenset()
