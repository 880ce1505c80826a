"""The ingest under crashes: its buckets are always those of a run without crashes.

A run is a list of steps from one hypothesis example. The reference runs them once. The tried run crashes at
chosen steps: the commit of that step is cut at a random byte, the object is dropped, a new one recovers, and
the client that had no answer repeats the step. Each source is trimmed on its own. Both runs must hand out the
same buckets of every source, byte for byte.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_kit import positions, sealed_by, with_rows

import understudy as us
from understudy.core.bucket import NOTHING
from understudy.runtime.ingest.buckets import SealedBucket, end_bucket
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.ingest.rows import to_table
from understudy.runtime.payload import encode

WIDTH_US = 100_000
SOURCES = ("left", "right", "third")


def make_flow(late: str) -> us.Flow:
    flow = us.Flow("crashes", bucket="100 ms")
    schema = us.Push("id int, word string, flag boolean, ts timestamp")
    flow.source("left", schema, time="ts", late=late)
    flow.source("right", schema, time="ts", late=late, lateness="150 ms")
    flow.source("third", schema, time="ts", late=late)
    return flow


@dataclass(frozen=True)
class Push:
    source: str
    sequence: int
    rows: tuple[tuple[int, str | None, bool | None, int], ...]


@dataclass(frozen=True)
class SealThrough:
    source: str
    number: int


@dataclass(frozen=True)
class Close:
    source: str


@dataclass(frozen=True)
class Planned:
    step: Push | SealThrough | Close
    now_us: int
    #: How far through its commit the process dies, 0 to 1; None: it lives. 1 is right after the commit.
    dies_at: float | None
    trims: bool


row_times = st.integers(-3, 4)
words = st.none() | st.text("abcdefgh", max_size=9)


@st.composite
def plans(draw: st.DrawFn) -> list[Planned]:
    now_us, row_id, plan = 1_000_000, 0, []
    sequences = dict.fromkeys(SOURCES, 0)
    for _ in range(draw(st.integers(1, 25))):
        now_us += draw(st.integers(0, 300_000))
        kind = draw(st.sampled_from(["push"] * 6 + ["seal"] * 4 + ["close"]))
        source = draw(st.sampled_from(SOURCES))
        step: Push | SealThrough | Close = SealThrough(source, now_us // WIDTH_US)
        if kind == "push":
            rows = []
            for _ in range(draw(st.integers(0, 6))):
                time_us = now_us + draw(row_times) * 60_000 + draw(st.integers(0, 3))
                rows.append((row_id, draw(words), draw(st.none() | st.booleans()), time_us))
                row_id += 1
            sequences[source] += draw(st.integers(1, 3))
            step = Push(source, sequences[source], tuple(rows))
        elif kind == "close" and draw(st.integers(0, 3)) == 0:
            step = Close(source)
        dies_at = draw(st.none() | st.none() | st.floats(0, 1))
        plan.append(Planned(step, now_us, dies_at, draw(st.integers(0, 4)) == 0))
    return plan


def do(ingest: Ingest, flow: us.Flow, planned: Planned) -> None:
    match planned.step:
        case Push(source, sequence, rows):
            names = ("id", "word", "flag", "ts")
            table = to_table(flow.sources[source], [dict(zip(names, row, strict=True)) for row in rows])
            # Closed, or a late row where late rows are refused: the same in both runs.
            with suppress(us.RowError):
                ingest.push(source, table, "client", sequence, {"at": sequence}, now_us=planned.now_us)
        case SealThrough(source, number):
            ingest.seal_through(source, number)
        case Close(source):
            ingest.close_source(source)


def opened(flow: us.Flow, folder: Path, segment_bytes: int) -> tuple[Ingest, list[SealedBucket]]:
    ingest = Ingest(flow, folder, sync=False, segment_bytes=segment_bytes)
    return ingest, ingest.recover()


def run_without_crash(flow: us.Flow, folder: Path, plan: list[Planned]) -> list[SealedBucket]:
    ingest, out = opened(flow, folder, 1 << 20)
    for planned in plan:
        do(ingest, flow, planned)
        ingest.commit()
        out += ingest.take()
    ingest.close()
    return out


def tear(folder: Path, before: dict[Path, int], share: float) -> None:
    """Cut what the last commit wrote at `share` of it, unless that commit went on to begin a new segment."""
    last = max(folder.glob("*.wal"))
    start = before.get(last)
    if start is not None:
        with last.open("r+b") as file:
            file.truncate(start + int((last.stat().st_size - start) * share))


def shown(buckets: list[SealedBucket]) -> dict[str, list[tuple[int, bytes | None]]]:
    """The buckets of each source in the order they came, as bytes; of those without rows, the last."""
    by_source: dict[str, list[tuple[int, bytes | None]]] = {source: [] for source in SOURCES}
    for each in buckets:
        mine = by_source[each.source]
        if mine and mine[-1][1] is None:
            mine.pop()
        payload = None if each.table is None else encode({each.source: each.table})
        mine.append((each.number, payload))
    return by_source


def after(number: dict[str, int], buckets: list[SealedBucket]) -> list[SealedBucket]:
    return [each for each in buckets if each.number > number[each.source]]


def run_with_crashes(
    flow: us.Flow, folder: Path, plan: list[Planned], segment_bytes: int
) -> list[SealedBucket]:
    ingest, seen = opened(flow, folder, segment_bytes)
    trimmed = dict.fromkeys(SOURCES, NOTHING)
    for at, planned in enumerate(plan):
        do(ingest, flow, planned)
        if planned.dies_at is not None:
            before = {file: file.stat().st_size for file in folder.glob("*.wal")}
            ingest.commit()
            ingest.close()
            tear(folder, before, planned.dies_at)
            ingest, recovered = opened(flow, folder, segment_bytes)
            assert after(trimmed, recovered) == recovered
            already = after(trimmed, seen)
            through = trimmed | sealed_by(already)
            new = after(through, recovered)
            again = [each for each in recovered if each.number <= through[each.source]]
            assert with_rows(again) == with_rows(already), "what was handed out changed in the crash"
            assert positions(again) <= positions(already), "a boundary was never handed out"
            reached = sealed_by(recovered)
            assert all(reached[source] >= number for source, number in sealed_by(already).items())
            seen += new
            do(ingest, flow, planned)  # the client had no answer: it repeats the step
        ingest.commit()
        seen += ingest.take()
        if planned.trims and seen:
            # One source after the other, so that their trims differ.
            source = SOURCES[at % len(SOURCES)]
            trimmed[source] = ingest.sealed_through[source]
            ingest.trim(source, trimmed[source])
            if at % 2:
                # The other half stays for snapshots: recovery begins behind it.
                ingest.forget(source, trimmed[source])
            ingest.commit()
    ingest.close()
    return seen


# The smallest segments make nearly every commit begin a new one, the largest none.
@given(
    plan=plans(),
    late=st.sampled_from(["restamp", "drop", "refuse"]),
    segment_bytes=st.sampled_from([600, 6_000, 1 << 20]),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_crashes_change_nothing_that_the_outside_sees(
    plan: list[Planned], late: str, segment_bytes: int
) -> None:
    flow = make_flow(late)
    with tempfile.TemporaryDirectory() as folder:
        reference = run_without_crash(flow, Path(folder) / "reference", plan)
        tried = run_with_crashes(flow, Path(folder) / "tried", plan, segment_bytes)
    assert shown(tried) == shown(reference)


@given(plan=plans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_row_comes_out_once_in_its_place_after_the_sources_end(plan: list[Planned]) -> None:
    flow = make_flow("restamp")
    pushed: set[int] = set()
    with tempfile.TemporaryDirectory() as name:
        ingest, out = opened(flow, Path(name), 6_000)
        for planned in plan:
            if isinstance(planned.step, Push) and not ingest.closed(planned.step.source):
                pushed |= {row[0] for row in planned.step.rows}
            do(ingest, flow, planned)
        for source in SOURCES:
            ingest.close_source(source)
        ingest.commit()
        out += ingest.take()
        ingest.close()
    ids: list[int] = []
    for source in SOURCES:
        mine = [bucket for bucket in out if bucket.source == source]
        numbers = [bucket.number for bucket in mine]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == end_bucket(WIDTH_US)
        for bucket in mine:
            if bucket.table is not None:
                times = bucket.table.column("ts").cast(pa.int64()).to_pylist()
                assert times == sorted(times)
                assert {time // WIDTH_US for time in times} == {bucket.number}
                ids += bucket.table.column("id").to_pylist()
    assert sorted(ids) == sorted(pushed)
