"""What a recorder of a later version of the flow writes, alone and beside that of another version."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.history.judging import judge
from understudy.history.reading import records_of
from understudy.history.recorder import Recorder
from understudy.history.records import DeliveredRecord, HandedRecord, Record, Shown, ViewRecord

PACKETS = Copy(Partition("packets"))
SESSIONS = Copy(Partition("sessions"))
STATS = Partition("sink:stats")
ENDS = ("packets", "sink:stats")
SEATS = Seats(1, (Seat("n1", 1, Status.ACTIVE), Seat("n2", 1, Status.ACTIVE)))


class OneRow:
    """Looks into buckets that all have one row."""

    def shown(self, bucket: Bucket) -> Shown:
        return bucket.number, 1, "digest"

    def rows(self, bucket: Bucket) -> int:
        return 1

    def left_out(self) -> Mapping[str, tuple[str, ...]]:
        return {}


@dataclass(frozen=True)
class Taken:
    through: int
    size_bytes: int


def recorder_of(folder: Path, process: str, version: int = 1, ends: Collection[str] = ()) -> Recorder:
    return Recorder(folder / f"{process}.jsonl", "flow", process, OneRow(), version=version, ends=ends)


def written(folder: Path, process: str) -> list[Record]:
    return list(records_of(folder / f"{process}.jsonl"))


def note_everything(recorder: Recorder) -> None:
    """One record of each kind that names a partition or a copy."""
    made = Bucket(1, b"rows", 4)
    recorder.view(View(1, {SESSIONS.partition: SEATS}))
    recorder.produced_for(PACKETS, SESSIONS.partition, [made])
    recorder.handed_to(SESSIONS, [made])
    recorder.produced_for(SESSIONS, STATS, [made])
    recorder.snapshot_of(SESSIONS, 5, Taken(8, 900), 40)
    recorder.installed_in(SESSIONS, 5, 8)
    recorder.arrived(SESSIONS.partition, [made])
    recorder.sender(SESSIONS)


def named_in(record: Record) -> list[str]:
    """The partitions and copies that a record names."""
    names = [getattr(record, name, "") for name in ("of", "to", "partition", "copy")]
    return [*filter(None, names), *(seat[0] for seat in getattr(record, "seats", ()))]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_a_recorder_of_a_later_version_names_everything_but_sources_and_sinks_by_it(
    tmp_path: Path, beside: bool
) -> None:
    version = 1 if beside else 2
    first = recorder_of(tmp_path, "n1", version=version, ends=ENDS)
    note_everything(first.of_version(2) if beside else first)
    first.close()
    records = written(tmp_path, "n1")
    assert [named_in(each) for each in records] == [
        ["sessions@2/0:0", "sessions@2/0:1"],
        ["packets/0:0", "sessions@2/0"],
        ["sessions@2/0:0"],
        ["sessions@2/0:0", "sink:stats/0"],
        ["sessions@2/0:0"],
        ["sessions@2/0:0"],
        ["sessions@2/0"],
        ["sessions@2/0:0"],
    ]
    assert isinstance(records[0], ViewRecord)
    assert records[0].version == 2


def test_a_recorder_of_the_first_version_needs_to_know_no_ends(tmp_path: Path) -> None:
    for process, ends in (("n1", ENDS), ("n2", ())):
        recorder = recorder_of(tmp_path, process, ends=ends)
        note_everything(recorder)
        recorder.close()
    names = [[named_in(each) for each in written(tmp_path, process)] for process in ("n1", "n2")]
    assert names[0] == names[1]
    assert "@" not in str(names)


def test_copies_of_two_versions_have_their_own_places_in_their_input(tmp_path: Path) -> None:
    first = recorder_of(tmp_path, "n1")
    second = first.of_version(2, ENDS)
    first.handed_to(SESSIONS, [Bucket(9)])
    second.installed_in(SESSIONS, 1, 4)
    second.handed_to(SESSIONS, [Bucket(6)])
    first.handed_to(SESSIONS, [Bucket(10)])
    first.close()
    facts = [
        (each.of, each.after, each.through)
        for each in written(tmp_path, "n1")
        if isinstance(each, HandedRecord)
    ]
    assert facts == [("sessions/0:0", NOTHING, 9), ("sessions@2/0:0", 4, 6), ("sessions/0:0", 9, 10)]


def test_a_version_that_is_over_leaves_the_history_of_the_process_open(tmp_path: Path) -> None:
    first = recorder_of(tmp_path, "gateway")
    second = first.of_version(2, ENDS)
    second.ended()
    second.close()
    first.suspected("n1")
    first.ended()
    assert [each.kind for each in written(tmp_path, "gateway")] == ["suspected", "ended"]


def test_a_gateway_that_begins_again_knows_the_newest_view_of_every_version(tmp_path: Path) -> None:
    for old, new in ((5, 1), (5, 2), (6, 2)):
        first = recorder_of(tmp_path, "gateway", ends=ENDS)
        for recorder, epoch in ((first, old), (first.of_version(2), new), (first.of_version(2), new)):
            recorder.view(View(epoch, {SESSIONS.partition: SEATS}))
        first.close()
    views = [each for each in written(tmp_path, "gateway") if isinstance(each, ViewRecord)]
    assert [(each.version, each.epoch) for each in views] == [(1, 5), (2, 1), (2, 2), (1, 6)]
    assert judge(tmp_path / "gateway.jsonl").findings == []


def test_a_delivery_says_whose_output_it_is_and_names_parts_as_they_came(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, "gateway", ends=ENDS)
    recorder.delivered("stats", NOTHING, 4, [])
    recorder.delivered("stats", 4, 5, [(5, 1, "sessions/0=x")], version=2)
    recorder.delivered_before("stats", 5, 6, [], version=2)
    recorder.close()
    records = [each for each in written(tmp_path, "gateway") if isinstance(each, DeliveredRecord)]
    assert [(each.through, each.version) for each in records] == [(4, 1), (5, 2), (6, 2)]
    assert records[1].buckets == ((5, 1, "sessions/0=x"),)
    # A position is a sink's, whichever version brought it there.
    again = recorder_of(tmp_path, "gateway", ends=ENDS)
    again.delivered_before("stats", 5, 6, [], version=1)
    again.close()
    assert len(written(tmp_path, "gateway")) == 3


def test_versions_count_from_1(tmp_path: Path) -> None:
    with pytest.raises(BrokenInvariant, match="versions of a flow count from 1, not 0"):
        recorder_of(tmp_path, "n1").of_version(0)
