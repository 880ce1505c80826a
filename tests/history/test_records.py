"""The history's format: what is written is read back, and what is damaged is named."""

from __future__ import annotations

import io

import pytest

from understudy.history.reading import Damage, Entry, entries_in
from understudy.history.records import (
    FORMAT_VERSION,
    ArrivedRecord,
    BegunRecord,
    DeliveredRecord,
    EndedRecord,
    HandedRecord,
    Header,
    HistoryError,
    InstalledRecord,
    ProducedRecord,
    SnapshotRecord,
    ViewRecord,
    parsed,
    parts_of,
    parts_text,
)
from understudy.history.writing import HistoryWriter

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


def read(text: str) -> list[Entry]:
    return list(entries_in(text.encode().splitlines(keepends=True), "h"))


def test_what_is_written_is_read_back() -> None:
    assert read(written()) == [Header(FORMAT_VERSION, "flow"), *RECORDS]


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
    assert read(stream.getvalue())[1:] == records


def test_a_record_without_its_copy_is_refused_even_where_it_would_be_empty() -> None:
    with pytest.raises(ValueError, match="a installed record has the fields"):
        parsed('{"kind":"installed","at_us":1,"by":"x","version":1,"through":2}')


def test_the_parts_of_a_digest_are_told_apart() -> None:
    parts = {"stats/2": "stats:ab", "stats/10": "stats:cd"}
    assert parts_text(parts) == "stats/2=stats:ab,stats/10=stats:cd"
    assert parts_of(parts_text(parts)) == list(parts.items())
    assert parts_of("") == []


@pytest.mark.parametrize("text", ["stats:ab", "stats/0=", "=ab", "stats/0=ab,", "stats/0=ab=cd"])
def test_a_digest_that_lists_no_parts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not list parts"):
        parts_of(text)


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        ('{"kind":"begun","at_us":1}', "a begun record has the fields"),
        ('{"kind":"begun","at_us":"1","by":"x"}', "at_us is '1', not int"),
        ('{"kind":"dream","at_us":1,"by":"x"}', "unknown kind 'dream'"),
        ('{"kind":["begun"],"at_us":1,"by":"x"}', "unknown kind"),
        (
            '{"kind":"delivered","at_us":1,"by":"x","after":1,"through":2,"buckets":[[1,2]]}',
            "has not 3 parts",
        ),
        ("[]", "not an object"),
        ("{", ""),
        ("\x00\x00", ""),
        ("[" * 100_000, ""),
    ],
    ids=["field", "type", "kind", "no kind", "parts", "list", "cut", "zeros", "deep"],
)
def test_a_line_that_is_no_record_is_named_with_the_reason_and_reading_goes_on(
    damaged: str, reason: str
) -> None:
    lines = written().splitlines(keepends=True)
    lines[2] = damaged + "\n"
    header, first, damage, *rest = read("".join(lines))
    assert [header, first, *rest] == [Header(FORMAT_VERSION, "flow"), RECORDS[0], *RECORDS[2:]]
    assert isinstance(damage, Damage)
    assert (damage.file, damage.line, damage.unfinished) == ("h", 3, False)
    assert reason in damage.why


def test_bytes_that_are_no_text_are_damage() -> None:
    lines = written().encode().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"controller", b"contr\xff\xfeller")
    damage = list(entries_in(lines, "h"))[2]
    assert isinstance(damage, Damage)
    assert damage.line == 3


def test_only_the_last_line_of_a_process_may_be_unfinished() -> None:
    cut = written()[:-7]
    damage = read(cut)[-1]
    assert isinstance(damage, Damage)
    assert (damage.line, damage.unfinished) == (5, True)
    # The next process of this name ended the line before it began its own.
    again = read(f"{cut}\n{written()}")
    assert [(each.line, each.unfinished) for each in again if isinstance(each, Damage)] == [(5, True)]
    assert again[-4:] == RECORDS


def test_what_format_2_wrote_is_read() -> None:
    lines = written().splitlines(keepends=True)
    assert read("".join(['{"kind":"history","version":2,"flow":"flow"}\n', *lines[1:]])) == [
        Header(2, "flow"),
        *RECORDS,
    ]


def test_a_history_of_an_unknown_format_is_refused_and_one_without_header_is_damaged() -> None:
    lines = written().splitlines(keepends=True)
    assert read("".join(lines[1:])) == [Damage("h", 1, "a history begins with a header"), *RECORDS]
    with pytest.raises(HistoryError, match="has format 9; this program reads 2 and 3"):
        read('{"kind":"history","version":9,"flow":"flow","more":[]}\n')
    assert read("") == [Damage("h", 0, "nothing was written", unfinished=True)]
