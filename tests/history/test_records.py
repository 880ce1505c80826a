"""The history's format: what is written is read back, and what is damaged is named."""

from __future__ import annotations

import json
import random
import typing
from pathlib import Path

import pytest
from upgraded_runs import upgraded
from written_runs import partitioned, verdict_on

from understudy.core.bucket import NOTHING
from understudy.history.judging import judge
from understudy.history.reading import Damage, Entry, entries_in
from understudy.history.records import (
    FORMAT_VERSION,
    ArrivedRecord,
    BegunRecord,
    DeliveredRecord,
    EndedRecord,
    FaultRecord,
    HandedRecord,
    Header,
    HistoryError,
    InstalledRecord,
    LeftOutRecord,
    MissedRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    SenderRecord,
    SnapshotRecord,
    StoppedRecord,
    SuspectedRecord,
    ViewRecord,
    line,
    parsed,
    parts_of,
    parts_text,
    unversioned,
    version_of,
    versioned,
)

HEADER = Header(FORMAT_VERSION, "flow")
RECORDS: list[Record] = [
    BegunRecord(1, "gateway"),
    ViewRecord(2, "gateway", 1, (("counts/0:0", "n1", 1, "ACTIVE"), ("counts/0:1", "n2", 1, "DEAD"))),
    DeliveredRecord(3, "gateway", "stats", -5, 2, ((1, 10, "stats/0=ab"), (2, 0, "")), 2),
    EndedRecord(4, "gateway"),
]
EVERY_KIND: list[Header | Record] = [
    Header(FORMAT_VERSION, "flow", "gateway", 3, False, 17, ((1, 4), (2, 1))),
    *RECORDS,
    SealedRecord(1, "gateway", "packets", -3, 10),
    HandedRecord(1, "n1", NOTHING, 2, (1, 2), "counts/0:1"),
    ProducedRecord(1, "gateway", 1, 10, "packets:ab", "packets/0:0", "counts/0"),
    ProducedRecord(1, "n1", 1, 10, "counts:ab", "counts/0:1", "sink:stats/0"),
    ArrivedRecord(1, "gateway", "counts/0", 2, 10),
    SuspectedRecord(1, "gateway", "n1"),
    SenderRecord(1, "gateway", "counts/0:1"),
    SnapshotRecord(1, "n1", 1, 2, 30, 400, "counts/0:1"),
    InstalledRecord(1, "n2", 1, 2, "counts/0:1"),
    FaultRecord(1, "study", "kill", "n\u00fcller \u2028 1"),
    LeftOutRecord(1, "n1", "counts", ("mean", "sum")),
    MissedRecord(1, "n1", 7),
    StoppedRecord(1, "n1", "No space left\non device"),
]


def written() -> str:
    return "".join(f"{line(each)}\n" for each in (HEADER, *RECORDS))


def read(text: str) -> list[Entry]:
    return list(entries_in(text.encode().splitlines(keepends=True), "h"))


def test_what_is_written_is_read_back() -> None:
    assert read(written()) == [HEADER, *RECORDS]


@pytest.mark.parametrize("record", EVERY_KIND, ids=lambda record: record.kind)
def test_a_record_of_any_kind_is_one_line_and_read_back(record: Header | Record) -> None:
    text = line(record)
    assert text.isprintable()
    assert parsed(text) == record


def test_no_kind_is_left_out_here_and_none_has_the_name_of_another() -> None:
    kinds = {Header, *typing.get_args(Record)}
    assert {type(record) for record in EVERY_KIND} == kinds
    assert len({kind.kind for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("record", EVERY_KIND, ids=lambda record: record.kind)
def test_a_record_that_lacks_a_field_has_one_more_or_one_of_another_type_is_refused(
    record: Header | Record,
) -> None:
    fields = json.loads(line(record))
    # A header of another version is one of another format.
    for name in fields.keys() - {"kind", "version" if isinstance(record, Header) else "kind"}:
        with pytest.raises(ValueError, match="has the fields"):
            parsed(json.dumps({key: value for key, value in fields.items() if key != name}))
        with pytest.raises(ValueError, match=f"{name} is None"):
            parsed(json.dumps({**fields, name: None}))
    with pytest.raises(ValueError, match="has the fields"):
        parsed(json.dumps({**fields, "more": 1}))


@pytest.mark.parametrize("kind", ["attached", "detached", "fenced"])
def test_a_kind_of_an_older_format_is_unknown(kind: str) -> None:
    with pytest.raises(ValueError, match=f"unknown kind '{kind}'"):
        parsed(json.dumps({"kind": kind, "at_us": 1, "by": "x"}))


def test_the_parts_of_a_digest_are_told_apart() -> None:
    parts = {"stats/2": "stats:ab", "stats/10": "stats:cd"}
    assert parts_text(parts) == "stats/2=stats:ab,stats/10=stats:cd"
    assert parts_of(parts_text(parts)) == list(parts.items())
    assert parts_of("") == []


def test_a_partition_of_a_later_version_is_told_apart_by_its_name() -> None:
    assert [versioned("sessions+2/10", version) for version in (1, 2, 13)] == [
        "sessions+2/10",
        "sessions+2@2/10",
        "sessions+2@13/10",
    ]
    for version in (1, 2, 13):
        assert version_of(versioned("sessions+2/10", version)) == version
        assert unversioned(versioned("sessions+2/10", version)) == "sessions+2/10"


@pytest.mark.parametrize(
    "name", ["", "@", "@/0", "stats@x/0", "stats@2", "stats@\u00b2/0", f"stats@{'1' * 5_000}/0", "a@3/b/0"]
)
def test_a_name_that_says_no_version_is_of_the_first(name: str) -> None:
    assert version_of(name) == 1


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
            '{"kind":"delivered","at_us":1,"by":"x","sink":"s","after":1,"through":2,"buckets":[[1,2]],'
            '"version":1}',
            "has not 3 parts",
        ),
        ('{"kind":"missed","at_us":1,"by":"x","records":true}', "records is True, not int"),
        ('{"kind":"missed","at_us":1,"by":"x","records":1.0}', "records is 1.0, not int"),
        ('{"kind":"missed","at_us":1,"by":"x","records":NaN}', "records is nan, not int"),
        ('{"kind":"handed","at_us":1,"by":"x","after":1,"through":2,"numbers":3,"of":"a/0:0"}', "not a list"),
        ('{"kind":"begun","at_us":1,"by":"\\ud800"}', "surrogates not allowed"),
        ("[]", "not an object"),
        ("{", ""),
        ("\x00\x00", ""),
        ("[" * 100_000, ""),
        ('{"kind":"missed","at_us":1,"by":"x","records":' + "1" * 10_000 + "}", ""),
    ],
    ids=[
        "field",
        "type",
        "kind",
        "no kind",
        "parts",
        "truth",
        "fraction",
        "no number",
        "no list",
        "no text",
        "list",
        "cut",
        "zeros",
        "deep",
        "long number",
    ],
)
def test_a_line_that_is_no_record_is_named_with_the_reason_and_reading_goes_on(
    damaged: str, reason: str
) -> None:
    lines = written().splitlines(keepends=True)
    lines[2] = damaged + "\n"
    header, first, damage, *rest = read("".join(lines))
    assert [header, first, *rest] == [HEADER, RECORDS[0], *RECORDS[2:]]
    assert isinstance(damage, Damage)
    assert (damage.file, damage.line, damage.unfinished) == ("h", 3, False)
    assert reason in damage.why


def test_bytes_that_are_no_text_are_damage() -> None:
    lines = written().encode().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"gateway", b"gate\xff\xfeway")
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


def test_a_history_without_header_is_damaged_and_an_empty_one_unfinished() -> None:
    lines = written().splitlines(keepends=True)
    assert read("".join(lines[1:])) == [Damage("h", 1, "a history begins with a header"), *RECORDS]
    assert read("") == [Damage("h", 0, "nothing was written", unfinished=True)]


@pytest.mark.parametrize("version", [2, 3, 4, 9])
def test_a_history_of_another_format_is_refused_whatever_else_its_header_says(version: int) -> None:
    with pytest.raises(HistoryError, match=f"it has format {version}, and this version reads 5"):
        read(f'{{"kind":"history","version":{version},"flow":"flow","more":[]}}\n')


# --- lines that chance has spoiled ------------------------------------------------------------------------

#: Values that a spoiled field may have; some are of the right type and make no sense.
VALUES = [
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    "",
    "x",
    "a/0",
    "a/0:b",
    "a@2/0:b",
    "sink:",
    "=",
    "\ud800",
    [],
    [[]],
    {},
    NOTHING,
]


def spoiled(chance: random.Random, text: str) -> bytes:
    """The line with some bytes or some values changed; no header of another format or flow."""
    if chance.random() < 0.5:
        spoiled = bytearray(text.encode())
        for _ in range(chance.randint(1, 4)):
            at, what = chance.randrange(len(spoiled)), bytes(chance.randrange(256) for _ in range(2))
            spoiled[at : at + chance.randint(0, 3)] = chance.choice((b"", what, b"9", b'"', b"\n"))
        return bytes(spoiled)
    fields = json.loads(text)
    for name in chance.sample(sorted(fields.keys() - {"version", "flow"}), chance.randint(1, 2)):
        value = fields[name]
        if isinstance(value, list) and value and chance.random() < 0.5:
            value[chance.randrange(len(value))] = chance.choice(VALUES)
        else:
            fields[name] = chance.choice(VALUES)
    return json.dumps(fields).encode()


@pytest.mark.parametrize("seed", range(20))
def test_no_spoiled_line_keeps_the_reader_or_the_judge_from_their_work(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    verdict_on(upgraded() if seed % 2 else partitioned(), tmp_path)
    for _ in range(20):
        texts = {file: file.read_text().splitlines() for file in sorted(tmp_path.glob("*.jsonl"))}
        for file, lines in texts.items():
            wrong = set(chance.sample(range(len(lines)), chance.randint(0, 4)))
            kept = [spoiled(chance, text) if at in wrong else text.encode() for at, text in enumerate(lines)]
            (tmp_path / "spoiled").mkdir(exist_ok=True)
            (tmp_path / "spoiled" / file.name).write_bytes(b"\n".join(kept) + b"\n")
        try:
            verdict = judge(sorted((tmp_path / "spoiled").glob("*.jsonl")))
        except HistoryError:
            # A spoiled header may name another format or flow; that is said, and nothing else is.
            continue
        assert verdict.records > 0
        for sentence in [finding.what for finding in verdict.findings] + list(map(str, verdict.damages)):
            # It can be printed.
            assert sentence.encode()
