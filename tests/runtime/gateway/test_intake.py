"""Intake on a real log, with real clients over loopback: buckets source by source, and back pressure."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from intake_kit import PATIENCE_S, WIDTH_US, Gate, close_of, make_flow, push_of, rows

import understudy as us
from disk_kit import DiskRecord
from understudy.core.bucket import NOTHING
from understudy.core.errors import BrokenInvariant
from understudy.runtime.gateway.intake import WAIT_S, Intake
from understudy.runtime.ingest import stamper
from understudy.runtime.ingest.buckets import end_bucket
from understudy.runtime.ingest.rows import to_stream, to_table
from understudy.runtime.transport.wire import Frame


def test_sources_seal_and_end_each_on_their_own(gate: Gate) -> None:
    end = end_bucket(WIDTH_US)
    with gate.client() as client:
        client.push("a", rows(5, 6))
        assert gate.next() == ("a", 5)
        client.close_source("a")
        assert [gate.next(), gate.next()] == [("a", 6), ("a", end)]
        assert (gate.intake.ended, gate.intake.last_bucket) == (False, None)
        assert gate.intake.sealed_through == {"a": end, "b": NOTHING}
        client.close_source("b")
        assert gate.next() == ("b", end)
    assert (gate.intake.ended, gate.intake.last_bucket) == (True, 6)
    assert gate.intake.rows_in == 2


def test_one_full_source_does_not_stop_another(gate: Gate) -> None:
    gate.intake.room("a", False)
    pushed = threading.Event()

    def push_to_the_full_source() -> None:
        with gate.client() as client:
            client.push("a", rows(1, 2))
            pushed.set()

    thread = threading.Thread(target=push_to_the_full_source)
    thread.start()
    with gate.client() as client:
        for number in range(10):
            client.push("b", rows(number))
    assert not pushed.is_set()
    assert gate.intake.sealed_through == {"a": NOTHING, "b": 8}
    gate.intake.room("a", True)
    assert pushed.wait(PATIENCE_S)
    thread.join()


def test_clients_of_an_intake_that_is_held_wait_and_go_on_with_the_next_one(tmp_path: Path) -> None:
    """The run is about to be stopped: what is not acknowledged is pushed again when it goes on."""
    first = Gate(make_flow(), tmp_path)
    answered: list[bool] = []
    with first.client() as client:
        client.push("a", rows(1, 2))
    first.intake.hold()

    def wait(source: str) -> bool:
        return first.intake.wait_room(source, 0.01)

    assert first.intake.answer("me", push_of(3), wait) is None, "neither taken nor refused"
    waiting = threading.Thread(target=lambda: answered.append(first.intake.wait_room("a", PATIENCE_S)))
    waiting.start()
    assert first.intake.rows_in == 2
    first.end()
    waiting.join(PATIENCE_S)
    assert answered == [False], "it is over, and nobody waits for long"
    second = Gate(make_flow(), tmp_path)
    answer = second.intake.answer(
        "me", push_of(3), lambda source: second.intake.wait_room(source, PATIENCE_S)
    )
    assert answer is not None
    assert (answer.kind, answer.head["duplicate"]) == ("accepted", False)
    assert second.next() == ("a", 2)
    second.end()


def test_a_client_of_an_intake_that_is_held_is_kept_waiting_and_not_refused(gate: Gate) -> None:
    gate.intake.hold()
    outcome: list[object] = []

    def push() -> None:
        with us.Client(gate.endpoint.address, timeout_s=2.0) as client:
            try:
                outcome.append(client.push("a", rows(1)))
            except us.EnvironmentFailed as problem:
                outcome.append(problem)

    thread = threading.Thread(target=push)
    thread.start()
    thread.join(1.0)
    assert (thread.is_alive(), outcome) == (True, []), "longer than a client that is not answered waits"
    gate.intake.end()
    gate.endpoint.end()
    thread.join(PATIENCE_S)
    assert gate.intake.rows_in == 0
    assert not isinstance(outcome[0], us.UserError), outcome


def test_a_reader_of_an_intake_that_is_held_reads_no_more_and_loses_nothing(tmp_path: Path) -> None:
    flow = us.Flow("f", bucket="100 ms")
    flow.source("a", us.Files(tmp_path / "in", "id int, ts timestamp", follow=True), time="ts")
    (tmp_path / "in").mkdir()

    def write(name: str, *buckets: int) -> None:
        lines = [f'{{"id": {number}, "ts": "1970-01-01T00:00:{number / 10:04.1f}Z"}}\n' for number in buckets]
        (tmp_path / "in" / name).write_text("".join(lines))

    write("1.json", 1, 2)
    first = Gate(flow, tmp_path / "run")
    first.intake.start_readers()
    assert first.next() == ("a", 1)
    first.intake.hold()
    # A reader that was just let through may still push what it has.
    threading.Event().wait(3 * WAIT_S)
    write("2.json", 3, 4)
    threading.Event().wait(3 * WAIT_S)
    assert first.intake.rows_in == 2
    first.end()
    second = Gate(flow, tmp_path / "run")
    second.intake.start_readers()
    assert [second.next() for _ in range(2)] == [("a", 2), ("a", 3)]
    second.end()


def test_a_restarted_intake_hands_back_what_is_not_trimmed(tmp_path: Path) -> None:
    first = Gate(make_flow(), tmp_path)
    with first.client() as client:
        client.push("a", rows(1, 2, 3))
        client.push("b", rows(1, 2, 3))
    first.intake.trim("a", 1)
    first.end()
    second = Gate(make_flow(), tmp_path)
    assert [(each.source, each.number) for each in second.recovered] == [("a", 2), ("b", 1), ("b", 2)]
    second.end()


def test_an_intake_reads_again_what_its_log_holds(gate: Gate) -> None:
    with gate.client() as client:
        client.push("a", rows(1, 2, 3))
    sealed = [gate.sealed.get(timeout=PATIENCE_S) for _ in range(2)]
    gate.intake.trim("a", 1)
    assert gate.intake.trimmed == {"a": 1, "b": NOTHING}
    reader = gate.intake.reader("a", NOTHING)
    assert reader.read(1 << 20) == sealed
    reader.close()


def pushed(gate: Gate, body: bytes) -> Frame:
    frame = Frame({"kind": "push", "source": "a", "sequence": 0}, (body,))
    answer = gate.intake.answer("c", frame, lambda _source: True)
    assert answer is not None
    return answer


def test_the_log_keeps_the_bytes_that_a_client_sent(gate: Gate, tmp_path: Path) -> None:
    table = to_table(make_flow().sources["a"], rows(1, 2, 3))
    # Metadata shows whose bytes they are: rows that are encoded here have none.
    body = bytes(to_stream(table.replace_schema_metadata({"made by": "a client"})))
    assert pushed(gate, body).kind == "accepted"
    (log,) = (tmp_path / "log").glob("*.wal")
    assert body in log.read_bytes()


class LoneIntake:
    """An intake whose own thread does not run: nothing commits but the call under test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.intake = Intake(make_flow(), folder, lambda _buckets: None, lambda _problem: None)
        self.intake.recover()
        self._disk = DiskRecord(folder / "log", monkeypatch)
        self._lives = 0
        self._folder = folder

    def after_a_loss_of_power(self) -> Intake:
        """An intake that finds no more than what was synced."""
        self._lives += 1
        folder = self._folder / f"after-{self._lives}"
        (folder / "log").mkdir(parents=True)
        for name, held in self._disk.synced.items():
            (folder / "log" / name).write_bytes(held)
        return Intake(make_flow(), folder, lambda _buckets: None, lambda _problem: None)


@pytest.fixture
def lone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoneIntake]:
    made = LoneIntake(tmp_path, monkeypatch)
    yield made
    made.intake.end()


def test_a_push_is_answered_when_the_disk_has_it(lone: LoneIntake) -> None:
    answer = lone.intake.answer("c", push_of(1), lambda _source: True)
    assert answer is not None
    assert (answer.kind, answer.head["duplicate"]) == ("accepted", False)
    again = lone.after_a_loss_of_power()
    again.recover()
    assert again.sources_for("c")["a"]["last"] == 0
    again.end()


def test_a_repeated_push_is_answered_when_the_disk_has_the_first_one(lone: LoneIntake) -> None:
    table = to_table(make_flow().sources["a"], rows(1))
    # As by a connection that broke between the log's queue and its disk.
    lone.intake._ingest.push("a", table, "c", 0, now_us=0)
    answer = lone.intake.answer("c", push_of(1), lambda _source: True)
    assert answer is not None
    assert (answer.kind, answer.head["duplicate"]) == ("accepted", True)
    again = lone.after_a_loss_of_power()
    again.recover()
    assert again.sources_for("c")["a"]["last"] == 0
    again.end()


def test_a_source_has_ended_for_its_client_when_the_disk_has_its_end(lone: LoneIntake) -> None:
    answer = lone.intake.answer("c", close_of("a"), lambda _source: True)
    assert answer is not None
    assert (answer.kind, answer.head["source"]) == ("closed", "a")
    again = lone.after_a_loss_of_power()
    assert [(each.source, each.number) for each in again.recover()] == [("a", end_bucket(WIDTH_US))]
    again.end()


def test_bytes_that_are_no_rows_are_refused(gate: Gate) -> None:
    answer = pushed(gate, b"no rows")
    assert (answer.kind, answer.head["source"]) == ("refused", "a")


def test_rows_that_were_damaged_on_their_way_are_refused(gate: Gate) -> None:
    body = bytes(to_stream(to_table(make_flow().sources["a"], rows(1, 2, 3))))
    answer = pushed(gate, body[:-16])
    assert (answer.kind, answer.head["source"], answer.head["sequence"]) == ("refused", "a", 0)
    assert "no Arrow stream" in answer.head["why"]


def test_a_push_to_an_unknown_source_is_refused_with_its_name(gate: Gate) -> None:
    with gate.client() as client, pytest.raises(us.FlowError, match="no source 'c'"):
        client.push("c", rows(1))


def test_a_source_that_fetches_its_rows_takes_none_from_clients_and_is_closed_by_one_behind_its_rows(
    tmp_path: Path,
) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": 5, "ts": "2026-01-01T00:00:00Z"}')
    flow = us.Flow("f")
    followed = us.Files(str(tmp_path / "in.jsonl"), "id int, ts timestamp", follow=True)
    flow.source("a", followed, time="ts")
    gate = Gate(flow, tmp_path)
    # Its name is the one under which the reader of a source pushes.
    with us.Client(gate.endpoint.address, name="reader", timeout_s=PATIENCE_S) as client:
        with pytest.raises(us.RowError, match="'a' takes no rows from clients: jsonl files at"):
            client.push("a", rows(5))
        client.close_source("a")
    # It reads nothing before there are nodes, and another gateway may come until then.
    assert not gate.intake.ended
    gate.end()
    again = Gate(flow, tmp_path)
    again.intake.start_readers()
    while again.next() != ("a", end_bucket(flow.bucket_us)):
        pass
    assert (again.intake.ended, again.intake.rows_in) == (True, 1)
    again.end()


def test_rows_that_are_in_the_log_are_never_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    flow = make_flow()
    failures: list[BaseException] = []
    intake = Intake(flow, tmp_path, lambda _: None, failures.append)
    intake.recover()
    monkeypatch.setattr(stamper, "canonical", broken)
    body = to_stream(to_table(flow.sources["a"], rows(5, 6)))
    frame = Frame({"kind": "push", "source": "a", "sequence": 0}, [body])
    with pytest.raises(BrokenInvariant, match="rows of 'a' are in the log"):
        intake.answer("me", frame, lambda _: True)
    assert len(failures) == 1
    intake.end()


def test_a_source_whose_closing_cannot_be_kept_ends_the_gateway(tmp_path: Path) -> None:
    """Else the client would repeat it for ever, and nothing would say why."""
    flow = us.Flow("f")
    flow.source("a", us.Files(tmp_path / "in", "id int, ts timestamp", follow=True), time="ts")
    failures: list[BaseException] = []
    intake = Intake(flow, tmp_path, lambda _: None, failures.append)
    intake.recover()
    (tmp_path / "closing").rmdir()
    with pytest.raises(us.EnvironmentFailed, match="closing/a cannot be made"):
        intake.answer("me", close_of("a"), lambda _: True)
    assert len(failures) == 1
    intake.end()


def test_of_two_clients_with_one_name_no_row_is_lost_in_silence(gate: Gate) -> None:
    address = gate.endpoint.address
    with us.Client(address, name="web") as one, us.Client(address, name="web") as other:
        # Both have been told where the name stands.
        one._source("a")
        other._source("a")
        assert not one.push("a", rows(1)).duplicate
        with pytest.raises(us.UserError, match="1 rows were not taken in: another client of the name 'web'"):
            other.push("a", rows(2))
        assert not one.push("a", rows(3)).duplicate
        # A number that the caller gives may well have arrived.
        assert other.push("a", rows(3), sequence=1).duplicate
    assert gate.intake.rows_in == 2


def test_a_push_that_is_numbered_below_zero_is_refused(gate: Gate) -> None:
    body = to_stream(to_table(make_flow().sources["a"], rows(5)))
    frame = Frame({"kind": "push", "source": "a", "sequence": -1}, [body])
    answer = gate.intake.answer("me", frame, lambda _: True)
    assert answer is not None
    assert (answer.kind, answer.head["why"]) == (
        "refused",
        "-1 is no sequence number of a push: they begin with 0.",
    )


@pytest.mark.parametrize("said", [push_of(5), close_of("a")], ids=["push", "close"])
def test_a_log_that_cannot_be_written_is_the_failure_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Frame
) -> None:
    flow = make_flow()
    failures: list[BaseException] = []
    intake = Intake(flow, tmp_path, lambda _: None, failures.append)
    intake.recover()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(us.EnvironmentFailed, match="No space left"):
        intake.answer("me", said, lambda _: True)
    assert ["No space left" in str(failure) for failure in failures] == [True]
    # Its other parts are still to be ended.
    intake.end()
