"""The history of a partitioned run: ingress -> sessions/0, sessions/1 -> stats/0, stats/1 -> egress."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from understudy.core.bucket import NOTHING
from understudy.history.judging import judge
from understudy.history.records import (
    ArrivedRecord,
    BegunRecord,
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    InstalledRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    ViewRecord,
)
from understudy.history.verdict import Verdict
from understudy.history.writing import HistoryWriter

Run = dict[str, list[Record]]

#: Who made how many rows of which bucket for whom.
MADE = {
    ("<ingress>/0", "sessions/0"): {1: 3, 2: 2, 5: 2},
    ("<ingress>/0", "sessions/1"): {1: 1, 2: 2},
    ("sessions/0", "stats/0"): {1: 2, 5: 1},
    ("sessions/0", "stats/1"): {2: 1},
    ("sessions/1", "stats/0"): {2: 1},
    ("sessions/1", "stats/1"): {1: 1},
    ("stats/0", "<egress>/0"): {1: 1, 2: 1, 5: 1},
    ("stats/1", "<egress>/0"): {1: 1, 2: 1},
}
#: In what groups the engines took their input; not all have come equally far.
TAKEN = {
    "sessions/0": [(NOTHING, 2, (1, 2)), (2, 5, (5,))],
    "sessions/1": [(NOTHING, 5, (1, 2))],
    "stats/0": [(NOTHING, 1, (1,)), (1, 5, (2, 5))],
    "stats/1": [(NOTHING, 2, (1, 2)), (2, 4, ())],
}


def digest(producer: str, consumer: str, number: int) -> str:
    return f"{producer[:-2]}:{producer[-1]}to{consumer[-1]}at{number}"


def made_by(process: str, copy: str) -> list[Record]:
    partition = copy.partition(":")[0]
    return [
        ProducedRecord(9, process, number, rows, digest(producer, to, number), copy, to)
        for (producer, to), buckets in MADE.items()
        if producer == partition
        for number, rows in buckets.items()
    ]


def node(process: str, slot: str) -> list[Record]:
    """A node with one copy of every partition."""
    records: list[Record] = []
    for partition, groups in TAKEN.items():
        copy = f"{partition}:{slot}"
        records += [HandedRecord(8, process, *group, copy) for group in groups]
        records += made_by(process, copy)
    return [*records, EndedRecord(13, process)]


def partitioned() -> Run:
    """Two nodes hold a copy of everything; a third is given the state of stats/1 through 2 and goes on."""
    seats = {f"{p}:{slot}": (n, 1, "ACTIVE") for p in TAKEN for slot, n in (("PRIM", "n1"), ("SEC", "n2"))}
    moved = {**seats, "stats/1:SEC": ("n3", 2, "STDBY")}
    parts = {n: f"stats/0={digest('stats/0', '<egress>/0', n)}" for n in (1, 2, 5)}
    for number in (1, 2):
        parts[number] += f",stats/1={digest('stats/1', '<egress>/0', number)}"
    gateway: list[Record] = [
        BegunRecord(0, "gateway"),
        *(
            ViewRecord(1, "gateway", epoch, tuple((copy, *seat) for copy, seat in view.items()))
            for epoch, view in enumerate((seats, moved), 1)
        ),
        *(SealedRecord(2, "gateway", n, rows, f"in{n}") for n, rows in ((1, 4), (2, 4), (3, 0), (5, 2))),
        *made_by("gateway", "<ingress>/0:PRIM"),
        ArrivedRecord(10, "gateway", "stats/0", 5, 3),
        DeliveredRecord(11, "gateway", NOTHING, 2, ((1, 2, parts[1]), (2, 2, parts[2]))),
        DeliveredRecord(12, "gateway", 2, 5, ((5, 1, parts[5]),)),
        EndedRecord(13, "gateway"),
    ]
    newcomer: list[Record] = [
        InstalledRecord(8, "n3", 1, 2, "stats/1:SEC"),
        HandedRecord(9, "n3", 2, 5, (), "stats/1:SEC"),
        EndedRecord(13, "n3"),
    ]
    return {"gateway": gateway, "n1": node("n1", "PRIM"), "n2": node("n2", "SEC"), "n3": newcomer}


def verdict_on(run: Run, folder: Path) -> Verdict:
    for process, records in run.items():
        with (folder / f"{process}.jsonl").open("w") as stream:
            writer = HistoryWriter(stream, "partitioned")
            for record in records:
                writer.write(record)
    return judge(folder / f"{process}.jsonl" for process in run)


def at(run: Run, process: str, kind: type[Record], nth: int = 0, of: str = "") -> int:
    """Where in a process's history its nth record of a kind stands, of one copy if that is given."""
    found = [
        index
        for index, record in enumerate(run[process])
        if isinstance(record, kind) and getattr(record, "of", "") == of
    ]
    return found[nth]


def change(run: Run, process: str, index: int, **facts: Any) -> None:
    run[process][index] = replace(run[process][index], **facts)


def deliver(run: Run, rows: int, text: str) -> None:
    """Say that bucket 5 was delivered with these rows and parts."""
    change(run, "gateway", at(run, "gateway", DeliveredRecord, 1), buckets=((5, rows, text),))
