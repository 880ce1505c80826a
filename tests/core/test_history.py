"""The history's format: what is written is read back, and what is damaged is named."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from understudy.core.history import (
    BegunRecord,
    DeliveredRecord,
    EndedRecord,
    Header,
    HistoryError,
    HistoryWriter,
    ViewRecord,
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
    assert list(read(io.StringIO(written()))) == [Header(1, "flow"), *RECORDS]


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
    with pytest.raises(HistoryError, match="has format 2"):
        list(read([lines[0].replace('"version":1', '"version":2')]))
    with pytest.raises(HistoryError, match="is empty"):
        list(read([]))
