"""Histories of sound runs, written by hand and by chance, for tests to damage.

packets -> sessions/0, sessions/1 -> stats/0, stats/1 -> sink stats
packets, names -> counts/0 -> sink counts
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from understudy.core.bucket import NOTHING
from understudy.history.judging import judge
from understudy.history.records import (
    FORMAT_VERSION,
    ArrivedRecord,
    BegunRecord,
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    Header,
    InstalledRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    SenderRecord,
    ViewRecord,
    line,
    parts_text,
)
from understudy.history.verdict import Verdict

#: The records of every process.
Run = dict[str, list[Record]]
#: How many rows each producer made of which bucket for each consumer.
Made = dict[tuple[str, str], dict[int, int]]
#: What was taken or delivered at once: after, through, and the numbers that had rows.
Group = tuple[int, int, tuple[int, ...]]

FLOW = "traffic"
SOURCES = ("packets", "names")
SINKS = ("stats", "counts")
#: The replicas of every partition, by the node that holds them.
REPLICAS = {"n1": 0, "n2": 1}

MADE: Made = {
    ("packets/0", "sessions/0"): {1: 3, 2: 2, 5: 2},
    ("packets/0", "sessions/1"): {1: 1, 2: 2},
    ("packets/0", "counts/0"): {1: 4, 2: 4, 5: 2},
    ("names/0", "counts/0"): {2: 1, 4: 1},
    ("sessions/0", "stats/0"): {1: 2, 5: 1},
    ("sessions/0", "stats/1"): {2: 1},
    ("sessions/1", "stats/0"): {2: 1},
    ("sessions/1", "stats/1"): {1: 1},
    ("stats/0", "sink:stats/0"): {1: 1, 2: 1, 5: 1},
    ("stats/1", "sink:stats/0"): {1: 1, 2: 1},
    ("counts/0", "sink:counts/0"): {2: 3, 4: 1},
}
#: In what groups the engines took their input; not all have come equally far.
TAKEN: dict[str, list[Group]] = {
    "sessions/0": [(NOTHING, 2, (1, 2)), (2, 5, (5,))],
    "sessions/1": [(NOTHING, 5, (1, 2))],
    "stats/0": [(NOTHING, 1, (1,)), (1, 5, (2, 5))],
    "stats/1": [(NOTHING, 2, (1, 2)), (2, 4, ())],
    "counts/0": [(NOTHING, 2, (1, 2)), (2, 5, (4, 5))],
}
DELIVERED: dict[str, list[Group]] = {
    "stats": [(NOTHING, 2, (1, 2)), (2, 5, (5,))],
    "counts": [(NOTHING, 3, (2,)), (3, 5, (4,))],
}


def digest(producer: str, consumer: str, number: int) -> str:
    return f"{producer[:-2]}:{producer[-1]}to{consumer[-1]}at{number}"


def part(producer: str, sink: str, number: int) -> str:
    """How a delivered bucket shows the part of one partition."""
    return parts_text({producer: digest(producer, f"sink:{sink}/0", number)})


def made_by(made: Made, process: str, copy: str) -> list[Record]:
    partition = copy.rpartition(":")[0]
    return [
        ProducedRecord(9, process, number, rows, digest(producer, to, number), copy, to)
        for (producer, to), buckets in made.items()
        if producer == partition
        for number, rows in buckets.items()
    ]


def node(made: Made, taken: dict[str, list[Group]], process: str) -> list[Record]:
    """A node with one copy of every partition."""
    records: list[Record] = []
    for partition, groups in taken.items():
        copy = f"{partition}:{REPLICAS[process]}"
        records += [HandedRecord(8, process, *group, copy) for group in groups]
        records += made_by(made, process, copy)
    return [*records, EndedRecord(13, process)]


def sealings(made: Made) -> list[Record]:
    """What every source sealed: as much as the first segment that reads it was given."""
    records: list[Record] = []
    for source in SOURCES:
        first = next(to.rpartition("/")[0] for producer, to in made if producer == f"{source}/0")
        rows: dict[int, int] = {}
        for (producer, to), buckets in made.items():
            if (producer, to.rpartition("/")[0]) == (f"{source}/0", first):
                rows = {number: rows.get(number, 0) + buckets.get(number, 0) for number in {*rows, *buckets}}
        records += [SealedRecord(2, "gateway", source, number, rows[number]) for number in sorted(rows)]
    return records


def delivery(made: Made, sink: str, after: int, through: int, numbers: Iterable[int]) -> DeliveredRecord:
    buckets = []
    for number in numbers:
        to = f"sink:{sink}/0"
        parts = [
            (producer, made[producer, to][number])
            for producer, of in made
            if of == to
            if number in made[producer, to]
        ]
        text = parts_text({producer: digest(producer, to, number) for producer, _ in parts})
        buckets.append((number, sum(rows for _, rows in parts), text))
    return DeliveredRecord(11, "gateway", sink, after, through, tuple(buckets))


def gateway(made: Made, delivered: dict[str, list[Group]], views: Sequence[ViewRecord]) -> list[Record]:
    return [
        BegunRecord(0, "gateway"),
        *views,
        *sealings(made),
        *(record for source in SOURCES for record in made_by(made, "gateway", f"{source}/0:0")),
        SenderRecord(10, "gateway", "stats/0:0"),
        ArrivedRecord(10, "gateway", "stats/0", 5, 3),
        *(delivery(made, sink, *group) for sink, groups in delivered.items() for group in groups),
        EndedRecord(13, "gateway"),
    ]


def partitioned() -> Run:
    """Two nodes hold a copy of everything; a third is given the state of stats/1 through 2 and goes on."""
    seats = {f"{p}:{replica}": (name, 1, "ACTIVE") for p in TAKEN for name, replica in REPLICAS.items()}
    moved = {**seats, "stats/1:1": ("n3", 2, "STDBY")}
    views = [
        ViewRecord(1, "gateway", epoch, tuple((copy, *seat) for copy, seat in view.items()))
        for epoch, view in enumerate((seats, moved), 1)
    ]
    newcomer: list[Record] = [
        InstalledRecord(8, "n3", 1, 2, "stats/1:1"),
        HandedRecord(9, "n3", 2, 5, (), "stats/1:1"),
        EndedRecord(13, "n3"),
    ]
    nodes = {name: node(MADE, TAKEN, name) for name in REPLICAS}
    return {"gateway": gateway(MADE, DELIVERED, views), **nodes, "n3": newcomer}


# --- by chance --------------------------------------------------------------------------------------------


def random_run(seed: int) -> Run:
    """A sound run: random rows, dealt out at random, taken and delivered in random groups."""
    chance = random.Random(seed)
    last = chance.randint(3, 30)
    made: Made = {edge: {} for edge in MADE}
    for number in range(1, last + 1):
        if chance.random() < 0.7:
            shares = [chance.randint(0, 3) for _ in range(2)]
            for index, rows in enumerate(shares):
                _put(made, "packets/0", f"sessions/{index}", number, rows)
            _put(made, "packets/0", "counts/0", number, sum(shares))
        for producer, to in MADE:
            if not producer.startswith("packets"):
                _put(made, producer, to, number, chance.choice((0, 0, 1, 4)))
    taken = {partition: _cut(chance, last, _numbers(made, partition)) for partition in TAKEN}
    delivered = {sink: _cut(chance, last, _numbers(made, f"sink:{sink}/0")) for sink in SINKS}
    nodes = {name: node(made, taken, name) for name in REPLICAS}
    return {"gateway": gateway(made, delivered, []), **nodes}


def _put(made: Made, producer: str, to: str, number: int, rows: int) -> None:
    if rows:
        made[producer, to][number] = rows


def _numbers(made: Made, to: str) -> list[int]:
    return sorted({number for (_, consumer), rows in made.items() if consumer == to for number in rows})


def _cut(chance: random.Random, last: int, numbers: Sequence[int]) -> list[Group]:
    groups: list[Group] = []
    after = NOTHING
    for through in sorted({*chance.sample(range(1, last), chance.randint(1, last - 1)), last}):
        groups.append((after, through, tuple(number for number in numbers if after < number <= through)))
        after = through
    return groups


# --- on disk, and in pieces -------------------------------------------------------------------------------


def write(file: Path, sessions: Sequence[Sequence[Record]], headers: Sequence[Header] | None = None) -> None:
    """What a process wrote each time it began."""
    heads = headers or [Header(FORMAT_VERSION, FLOW, file.stem) for _ in sessions]
    lines = [line(each) for head, records in zip(heads, sessions, strict=True) for each in (head, *records)]
    file.write_text("".join(f"{each}\n" for each in lines))


def verdict_on(run: Run, folder: Path) -> Verdict:
    for process, records in run.items():
        write(folder / f"{process}.jsonl", [records])
    return judge(folder / f"{process}.jsonl" for process in run)


def judged(folder: Path) -> Verdict:
    """The verdict on the histories in a folder."""
    return judge(sorted(folder.glob("*.jsonl")))


def invariants_of(verdict: Verdict) -> set[str]:
    return {finding.invariant for finding in verdict.findings}


def at(run: Run, process: str, kind: type[Record], nth: int = 0, **facts: Any) -> int:
    """Where in a process's history its nth record of a kind stands, of those with these facts."""
    found = [
        index
        for index, record in enumerate(run[process])
        if isinstance(record, kind) and all(getattr(record, name) == fact for name, fact in facts.items())
    ]
    return found[nth]


def telling(run: Run) -> list[tuple[str, int, str]]:
    """The records of which no other tells what they do: process, place, and the invariant that needs them."""
    found: list[tuple[str, int, str]] = []
    for process, records in run.items():
        # What follows a group shows that it is missing; the last group of a copy may just not be written.
        followed = {(each.of, each.after) for each in records if isinstance(each, HandedRecord)}
        for index, record in enumerate(records):
            if isinstance(record, HandedRecord) and (record.of, record.through) in followed:
                found.append((process, index, "input-loss-free"))
            elif isinstance(record, DeliveredRecord) and record.buckets:
                found.append((process, index, "loss-free"))
    return found


def change(run: Run, process: str, index: int, **facts: Any) -> None:
    run[process][index] = replace(run[process][index], **facts)


def deliver(run: Run, rows: int, text: str) -> None:
    """Say that bucket 5 was delivered to the sink stats with these rows and parts."""
    change(run, "gateway", at(run, "gateway", DeliveredRecord, 1, sink="stats"), buckets=((5, rows, text),))
