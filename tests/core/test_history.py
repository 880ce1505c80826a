"""The history's format: what is written is read back, and what is damaged is named."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from understudy.core.history import (
    ArrivedRecord,
    BegunRecord,
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    Header,
    HistoryError,
    HistoryWriter,
    InstalledRecord,
    ProducedRecord,
    SnapshotRecord,
    ViewRecord,
    parts_of,
    parts_text,
    read,
)

RECORDS = [
    BegunRecord(1, "gateway"),
    ViewRecord(2, "controller", 1, (("PRIM", "n1", 1, "ACTIVE"),)),
    DeliveredRecord(3, "gateway", -5, 2, ((1, 10, "ab"), (2, 0, ""))),
    EndedRecord(4, "gateway"),
]


def written() -> str:
    stream = io.StringIO()
    writer = HistoryWriter(stream, "flow")
    for record in RECORDS:
        writer.write(record)
    return stream.getvalue()


def test_what_is_written_is_read_back() -> None:
    assert list(read(io.StringIO(written()))) == [Header(2, "flow"), *RECORDS]


def test_records_name_the_copy_and_the_consumer_where_a_process_has_many() -> None:
    records = [
        HandedRecord(1, "n1", -5, 2, (1, 2), "sessions/0:PRIM"),
        ProducedRecord(2, "n1", 1, 10, "ab", "sessions/0:PRIM", "stats/1"),
        SnapshotRecord(3, "n1", 1, 2, 30, 400, "sessions/0:PRIM"),
        InstalledRecord(4, "n2", 1, 2, "sessions/0:SEC"),
        ArrivedRecord(5, "gateway", "stats/1", 2, 10),
    ]
    stream = io.StringIO()
    writer = HistoryWriter(stream, "flow")
    for record in records:
        writer.write(record)
    assert list(read(io.StringIO(stream.getvalue())))[1:] == records


def test_a_record_without_its_copy_is_refused_even_where_it_would_be_empty() -> None:
    text = written() + '{"kind":"installed","at_us":1,"by":"x","version":1,"through":2}\n'
    with pytest.raises(HistoryError, match="a installed record has the fields"):
        list(read(io.StringIO(text)))


def test_the_parts_of_a_digest_are_told_apart() -> None:
    parts = {"stats/2": "stats:ab", "stats/10": "stats:cd"}
    assert parts_text(parts) == "stats/2=stats:ab,stats/10=stats:cd"
    assert parts_of(parts_text(parts)) == list(parts.items())
    assert parts_of("") == []


@pytest.mark.parametrize("text", ["stats:ab", "stats/0=", "=ab", "stats/0=ab,", "stats/0=ab=cd"])
def test_a_digest_that_lists_no_parts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not list parts"):
        parts_of(text)


def test_appending_to_a_history_whose_last_line_was_cut_repairs_it(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(written()[:-7])
    with path.open("r+") as stream:
        HistoryWriter(stream, "flow").write(RECORDS[0])
    with path.open() as stream:
        assert list(read(stream))[1:] == [*RECORDS[:3], RECORDS[0]]


def test_a_cut_line_is_named() -> None:
    with pytest.raises(HistoryError, match="cut in the middle at line 5"):
        list(read(io.StringIO(written()[:-7])))


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        ('{"kind":"begun","at_us":1}', "line 2: a begun record has the fields"),
        ('{"kind":"begun","at_us":"1","by":"x"}', "line 2: at_us is '1', not int"),
        ('{"kind":"dream","at_us":1,"by":"x"}', "line 2: unknown kind 'dream'"),
        (
            '{"kind":"delivered","at_us":1,"by":"x","after":1,"through":2,"buckets":[[1,2]]}',
            "has not 3 parts",
        ),
        ("[]", "line 2: not an object"),
        ("{", "line 2: "),
    ],
)
def test_a_line_that_is_no_record_is_named_with_the_reason(damaged: str, reason: str) -> None:
    lines = written().splitlines(keepends=True)
    lines[1] = damaged + "\n"
    with pytest.raises(HistoryError, match=reason.replace("[", r"\[")):
        list(read(lines))


def test_a_history_without_header_or_of_another_format_is_refused() -> None:
    lines = written().splitlines(keepends=True)
    with pytest.raises(HistoryError, match="does not begin with a header"):
        list(read(lines[1:]))
    with pytest.raises(HistoryError, match="has format 1; this reads format 2"):
        list(read([lines[0].replace('"version":2', '"version":1')]))
    with pytest.raises(HistoryError, match="is empty"):
        list(read([]))
