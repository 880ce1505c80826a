"""Histories of sound runs that were upgraded while rows flowed, written by hand and by chance.

packets -> volume -> sink stats
packets -> counts -> sink counts

Version 2 splits volume into three partitions instead of two. Both versions make rows of the same buckets, and
not the same rows. The copies of version 2 begin with states that version 1 had saved, and take what follows
from the log until the source puts buckets out for them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from written_runs import Group, Made, Run, digest, made_by

from understudy.core.bucket import NOTHING
from understudy.history.records import (
    BegunRecord,
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    InstalledRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    ViewRecord,
    partition_of,
    parts_text,
    versioned,
)

#: By version and segment, the number of partitions.
COUNTS = {1: {"volume": 2, "counts": 1}, 2: {"volume": 3, "counts": 1}}
#: The segment that feeds each sink.
SINKS = {"stats": "volume", "counts": "counts"}
#: The nodes of each version; each holds one replica of every partition.
NODES = {1: ("n1", "n2"), 2: ("n3", "n4")}
#: By sink, which version it takes through which number, one after the other.
Turns = Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Upgrade:
    """The numbers of an upgrade. Buckets from 1 to `last` are sealed."""

    last: int
    saved: int
    """Copies of version 2 begin with states through this number."""
    fed: Mapping[int, tuple[int, int]]
    """By version, the first and the last bucket that the source puts out for it."""
    turns: Turns


#: Version 2 stays, and version 1 goes on for a while after both sinks have turned.
STAYS = Upgrade(
    last=9,
    saved=2,
    fed={1: (1, 8), 2: (4, 9)},
    turns={"stats": [(1, 5), (2, 9)], "counts": [(1, 6), (2, 9)]},
)
#: Version 2 is taken back when it has delivered two buckets to one sink, and one to the other.
TAKEN_BACK = Upgrade(
    last=9,
    saved=2,
    fed={1: (1, 9), 2: (4, 8)},
    turns={"stats": [(1, 5), (2, 7), (1, 9)], "counts": [(1, 5), (2, 6), (1, 9)]},
)


def upgraded(upgrade: Upgrade = STAYS, chance: random.Random | None = None) -> Run:
    """Without chance a source seals six rows in every bucket, and every partition makes one row of it."""
    sealed = {n: chance.choice((0, 1, 9)) if chance else 6 for n in range(1, upgrade.last + 1)}
    sealed = {number: rows for number, rows in sealed.items() if rows}
    made: Made = {}
    nodes: Run = {}
    for version, (first, last) in upgrade.fed.items():
        taken: dict[str, list[int]] = {}
        for sink, segment in SINKS.items():
            shares = _dealt(sealed, COUNTS[version][segment], chance)
            for index, share in enumerate(shares):
                partition = versioned(f"{segment}/{index}", version)
                made["packets/0", partition] = {n: rows for n, rows in share.items() if first <= n <= last}
                made[partition, f"sink:{sink}/0"] = {
                    number: chance.choice((1, 4)) if chance else 1
                    for number in range(_begins(upgrade, version) + 1, last + 1)
                    if chance is None or chance.random() < 0.5
                }
                taken[partition] = [number for number in share if number <= last]
        for replica, name in enumerate(NODES[version]):
            nodes[name] = _node(upgrade, version, replica, taken, made)
    gateway = [
        BegunRecord(0, "gateway"),
        *views(),
        *(SealedRecord(2, "gateway", "packets", number, rows) for number, rows in sealed.items()),
        *made_by(made, "gateway", "packets/0:0"),
        *_deliveries(upgrade.turns, made, chance),
        EndedRecord(13, "gateway"),
    ]
    return {"gateway": gateway, **nodes}


def random_upgrade(seed: int) -> Run:
    """A sound upgrade that stays or is taken back, with random numbers and rows."""
    chance = random.Random(seed)
    last = chance.randint(8, 30)
    saved, first = sorted(chance.sample(range(1, last - 3), 2))
    stays = chance.random() < 0.5
    turns: dict[str, list[tuple[int, int]]] = {}
    for sink in SINKS:
        there, back = sorted(chance.sample(range(first, last), 2))
        turns[sink] = [(1, there), (2, last)] if stays else [(1, there), (2, back), (1, last)]
    # The version that is not live in the end goes on until the last sink has turned away from it, or longer.
    over = chance.randint(max(turn[-2][1] for turn in turns.values()), last)
    ends = {1: over, 2: last} if stays else {1: last, 2: over}
    return upgraded(Upgrade(last, saved, {1: (1, ends[1]), 2: (first, ends[2])}, turns), chance)


def delivery(
    run: Run, sink: str, after: int, through: int, version: int, *, rows_of: int | None = None
) -> DeliveredRecord:
    """What this version made for a sink, as the run has it on record; the rows perhaps of another version."""
    made: Made = {}
    for record in (record for records in run.values() for record in records):
        if isinstance(record, ProducedRecord):
            made.setdefault((partition_of(record.of), record.to), {})[record.number] = record.rows
    return _delivery(made, sink, (after, through, ()), version, rows_of or version)


def views() -> list[ViewRecord]:
    """Of version 1, then of both: epochs of the versions are counted separately."""
    return [
        ViewRecord(
            1,
            "gateway",
            epoch,
            tuple(
                (f"{versioned(f'{segment}/{index}', version)}:{replica}", name, 1, "ACTIVE")
                for segment, count in COUNTS[version].items()
                for index in range(count)
                for replica, name in enumerate(NODES[version])
            ),
            version,
        )
        for version, epoch in ((1, 3), (1, 4), (2, 1), (1, 5), (2, 2))
    ]


# --- parts of a run ---------------------------------------------------------------------------------------


def _begins(upgrade: Upgrade, version: int) -> int:
    """The number after which the copies of a version begin."""
    return 0 if version == 1 else upgrade.saved


def _dealt(sealed: Mapping[int, int], count: int, chance: random.Random | None) -> list[dict[int, int]]:
    """The rows of every bucket, dealt out to so many partitions."""
    shares: list[dict[int, int]] = [{} for _ in range(count)]
    for number, rows in sealed.items():
        for row in range(rows):
            share = shares[chance.randrange(count) if chance else row % count]
            share[number] = share.get(number, 0) + 1
    return shares


def _node(
    upgrade: Upgrade, version: int, replica: int, taken: Mapping[str, Sequence[int]], made: Made
) -> list[Record]:
    records: list[Record] = []
    name, last = NODES[version][replica], upgrade.fed[version][1]
    for partition, numbers in taken.items():
        copy = f"{partition}:{replica}"
        after = NOTHING
        if version > 1:
            after = upgrade.saved
            records.append(InstalledRecord(7, name, 1, after, copy))
        records += [
            HandedRecord(8, name, *group, copy) for group in _cut(after, last, numbers, step=2 + replica)
        ]
        records += made_by(made, name, copy)
    return [*records, EndedRecord(13, name)]


def _deliveries(turns: Turns, made: Made, chance: random.Random | None) -> list[DeliveredRecord]:
    records: list[DeliveredRecord] = []
    for sink, turn in turns.items():
        after = NOTHING
        for version, through in turn:
            step = chance.randint(1, 4) if chance else 2
            groups = _cut(after, through, (), step)
            records += [_delivery(made, sink, group, version, version) for group in groups]
            after = through
    return records


def _delivery(made: Made, sink: str, group: Group, version: int, rows_of: int) -> DeliveredRecord:
    after, through, _ = group
    to, buckets = f"sink:{sink}/0", []
    names = [f"{SINKS[sink]}/{index}" for index in range(COUNTS[rows_of][SINKS[sink]])]
    for number in range(max(after, 0) + 1, through + 1):
        digests, rows = {}, 0
        for name in names:
            producer = versioned(name, rows_of)
            if number in made[producer, to]:
                # A delivery names its parts without the version.
                digests[name] = digest(producer, to, number)
                rows += made[producer, to][number]
        if rows:
            buckets.append((number, rows, parts_text(digests)))
    return DeliveredRecord(11, "gateway", sink, after, through, tuple(buckets), version)


def _cut(after: int, last: int, numbers: Sequence[int], step: int) -> list[Group]:
    groups: list[Group] = []
    while after < last:
        through = min(max(after, 0) + step, last)
        groups.append((after, through, tuple(number for number in numbers if after < number <= through)))
        after = through
    return groups
