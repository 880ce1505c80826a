"""The small client with which a program pushes rows to a flow.

    with understudy.Client("127.0.0.1:7700") as client:
        client.push("packets", [{"src": "a", "dst": "b", "ts": "2026-01-01T00:00:00Z"}])

`push` returns when the rows are safe in the gateway's log. If the connection breaks, the client connects
again and repeats what was not answered; the gateway recognises the repetition, so no row is lost or taken
in twice. A client's name must therefore be unique, and a program that is restarted and wants to repeat its
last push gives the same name and the same sequence numbers again.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa
from pyarrow import flight

from understudy.flow.errors import EnvironmentFailed, FlowError, RowError, UserError
from understudy.flow.kinds import Push
from understudy.flow.model import Source
from understudy.flow.policy import SILENCE_MS_MIN
from understudy.runtime.ingest.rows import to_table
from understudy.runtime.transport.channel import SILENCE_S, Channel
from understudy.runtime.transport.endpoint import Refused, connect
from understudy.runtime.transport.leaving import OPEN
from understudy.runtime.transport.pieces import FRAME_BYTES_MAX
from understudy.runtime.transport.wire import Frame

RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Pushed:
    """A push that is safe. `late` of its rows were older than a sealed bucket.

    `duplicate` says that a push of a client of this name with this sequence number had been taken in before,
    so these rows were not taken again. It is this very push if the client had to repeat it because a
    connection broke; then `late` is not known and 0. It is another one if a name or a number is used twice.
    """

    sequence: int
    rows: int
    late: int
    duplicate: bool


class _Connection:
    """One connection and what is answered over it. One question at a time is asked over it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.answers: queue.SimpleQueue[Frame] = queue.SimpleQueue()


class Client:
    """Pushes rows to the gateway at an address, in order. One thread at a time may use it."""

    def __init__(
        self, address: str, *, name: str | None = None, timeout_s: float = 60.0, silence_s: float = SILENCE_S
    ) -> None:
        _require_address(address)
        if name is not None and not isinstance(name, str):
            raise UserError(f"{name!r} is no name for a client. Give a text.")
        if name is not None and any("\ud800" <= each <= "\udfff" for each in name):
            raise UserError(
                f"{name!r} is no name for a client: it holds half a character. Give a name in UTF-8."
            )
        if OPEN.cut_by_fork:
            raise EnvironmentFailed(
                "This process was forked from one with an open connection, and can make none of its own. "
                "Close the client before the fork, or start processes with the method 'spawn'."
            )
        self._process_id = os.getpid()
        self.name = name or f"client-{uuid.uuid4().hex[:12]}"
        self._address = address
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._next: dict[str, int] = {}
        self._sources: dict[str, Source] = {}
        self._ready = threading.Event()
        self._latest: _Connection | None = None
        self._over = threading.Event()
        self._refusal: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"push {self.name}", daemon=True)
        self._thread.start()

    def push(self, source: str, rows: object, *, sequence: int | None = None) -> Pushed:
        """Push rows: a list of dicts, a dict of columns, a pandas frame or an Arrow table.

        Returns once they are safe. Waits while the flow cannot take more. Raises `RowError` if they do not
        fit; then none of them was taken. `sequence` is for a push that may have arrived already: give the
        number that it had.
        """
        table = to_table(self._source(source), rows)
        counted = sequence is None
        if sequence is None:
            sequence = self._next[source]
        if type(sequence) is not int or sequence < 0:
            raise UserError(f"{sequence!r} is no sequence number of a push. Give a whole number from 0 on.")
        # Used up, answered or not: rows that may still arrive must not share it with others.
        self._next[source] = max(self._next[source], sequence + 1)
        body = _ipc(table)
        if len(body) > FRAME_BYTES_MAX:
            raise RowError(
                f"These {table.num_rows:,} rows for {source!r} take {len(body):,} bytes; one push may take "
                f"{FRAME_BYTES_MAX:,} at most. Push them in parts."
            )
        answer, sent = self._exchange(
            Frame({"kind": "push", "source": source, "sequence": sequence}, (body,)),
            lambda frame: frame.kind in ("accepted", "refused") and frame.head.get("sequence") == sequence,
        )
        if answer.kind == "refused":
            raise RowError(str(answer.head["why"]))
        duplicate = bool(answer.head["duplicate"])
        if duplicate and counted and sent == 1:
            raise UserError(
                f"These {table.num_rows:,} rows were not taken in: another client of the name {self.name!r} "
                f"has pushed to {source!r} meanwhile, and this push was taken for one of its. Give each "
                "client a name of its own, or none."
            )
        return Pushed(sequence, table.num_rows, int(answer.head["late"]), duplicate)

    def close_source(self, source: str) -> None:
        """Say that no more rows of this source will come: everything of it is sealed.

        Of a source that fetches its rows itself, what is there is read first. That may go on after this
        returns.
        """
        self._source(source)
        self._exchange(
            Frame({"kind": "close", "source": source}),
            lambda frame: frame.kind == "closed" and frame.head.get("source") == source,
        )

    def close(self) -> None:
        """Disconnect. What was pushed stays. In a forked process the client stays the parent's."""
        if os.getpid() != self._process_id:
            return
        self._over.set()
        connection = self._connection
        if connection is not None:
            connection.channel.close("the client is done")
        self._thread.join(timeout=5)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _connection(self) -> _Connection | None:
        """The connection, while it is open."""
        # Its own channel is asked: the end of an earlier one may be told when this one is open already.
        latest = self._latest
        return None if latest is None or latest.channel.closed else latest

    def _source(self, name: str) -> Source:
        if os.getpid() != self._process_id:
            raise UserError(
                f"This client of {self._address} belongs to process {self._process_id}, from which this one "
                "was forked. Close it before the fork and make another one here, or start processes with the "
                "method 'spawn'."
            )
        if self._over.is_set():
            raise UserError(f"This client of {self._address} was closed. Make another one to go on.")
        if not self._ready.wait(self._timeout_s) or self._refusal is not None:
            raise EnvironmentFailed(
                f"No gateway at {self._address}: {self._refusal or 'nothing answered'} "
                f"(waited {self._timeout_s:g} s)."
            )
        if name not in self._sources:
            raise FlowError(f"There is no source {name!r} in this flow. It has: {', '.join(self._sources)}.")
        return self._sources[name]

    def _exchange(self, frame: Frame, is_answer: Callable[[Frame], bool]) -> tuple[Frame, int]:
        """Send until it is answered, over as many connections as it takes; the answer, and how many."""
        deadline = time.monotonic() + self._timeout_s
        sent = 0
        asked: _Connection | None = None
        try:
            while time.monotonic() < deadline and not self._over.is_set():
                connection = self._connection
                if connection is not None:
                    # Connected and not answered: the flow cannot take more now. Wait as long as it takes.
                    deadline = time.monotonic() + self._timeout_s
                    if connection is not asked:
                        asked = connection
                        asked.channel.send(frame)
                        sent += 1
                answer = self._heard(asked)
                if answer is not None and is_answer(answer):
                    asked = None
                    return answer, sent
        finally:
            # An answer that still comes over it must not be taken for that to the next question.
            if asked is not None:
                asked.channel.close("the client does not wait for its answer any more")
        number = frame.head.get("sequence")
        again = (
            f" Push them again with the client name {self.name!r} and sequence={number}."
            if number is not None
            else ""
        )
        raise EnvironmentFailed(
            f"The gateway at {self._address} could not be reached for {self._timeout_s:g} s. What was not "
            f"answered may or may not be in.{again}"
        )

    def _heard(self, asked: _Connection | None) -> Frame | None:
        """What comes next over a connection, for a while; None if nothing does."""
        if asked is None:
            self._over.wait(RETRY_S)
            return None
        try:
            return asked.answers.get(timeout=RETRY_S)
        except queue.Empty:
            return None

    # --- the connection's thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._connect()
            except ConnectionError:
                pass
            except Refused as why:
                self._refusal = str(why)
                self._ready.set()
                return
            self._over.wait(RETRY_S)

    def _connect(self) -> None:
        box: list[_Connection] = []

        def opened(channel: Channel) -> None:
            box.append(_Connection(channel))
            self._latest = box[0]
            if self._over.is_set():
                channel.close("the client is done")

        connect(
            self._address,
            "push",
            {"client": self.name},
            on_open=opened,
            on_frame=lambda frame: self._arrived(box[0], frame),
            on_closed=lambda _why: None,
            # Often enough for a gateway of any setting; a client does not know which it has.
            beat_s=SILENCE_MS_MIN / 1_000 / 8,
            silence_s=self._silence_s,
        )

    def _arrived(self, connection: _Connection, frame: Frame) -> None:
        if frame.kind == "sources":
            for name, facts in frame.head["sources"].items():
                self._sources[name] = _described(name, facts)
                last = facts["last"]
                self._next[name] = max(self._next.get(name, 0), 0 if last is None else last + 1)
            self._ready.set()
        else:
            connection.answers.put(frame)


def _require_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit()
    if is_number and not 1 <= int(port) <= 65_535:
        raise UserError(f"{address!r} is no address: its port must lie between 1 and 65535.")
    if not host or not is_number or not _is_location(address):
        raise UserError(f"{address!r} is no address. Write host:port, such as 127.0.0.1:7700.")


def _is_location(address: str) -> bool:
    try:
        flight.Location(f"grpc://{address}")
    except pa.ArrowInvalid:
        return False
    return True


def _described(name: str, facts: Mapping[str, str]) -> Source:
    return Source(
        name=name,
        kind=Push(facts["schema"]),
        schema=facts["schema"],
        time=facts["time"],
        late="restamp",
        lateness_us=0,
        idle_us=None,
    )


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(memoryview(sink.getvalue()))
