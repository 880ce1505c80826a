"""Intake: rows from clients and readers, through the log, to sealed buckets; and back pressure to all of
them.

Clients push over an exchange of purpose `push`. Each push is a frame with the source, the client's name and
a sequence number; it is answered once its rows are in the log and durable. A client repeats what it has no
answer for, and a repeated push is answered and not taken in again. A push that does not fit is refused
whole, with the reason.

Readers (`Generator`, `Files`) run here as threads and push in the same way.

While the ingress buffer is full nobody may push: clients wait for their answers, readers wait before they
read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.core.bucket import Bucket, BucketId
from understudy.core.errors import PeerError
from understudy.flow.errors import UserError
from understudy.flow.flow import Flow
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.ingest.rows import to_table
from understudy.runtime.ingest.sources import Reader, open_reader, run_reader
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

TICK_S = 0.02
WAIT_S = 0.1
#: After the last source has ended, event time goes on this far, so that every window closes.
END_OF_STREAM_US = 366 * 24 * 3600 * 1_000_000


def now_us() -> int:
    return time.time_ns() // 1_000


class Intake:
    """Owns the ingest log. `on_sealed` is called with buckets in order, from one thread."""

    def __init__(
        self,
        flow: Flow,
        folder: Path,
        on_sealed: Callable[[list[Bucket]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._flow = flow
        self._on_sealed = on_sealed
        self._on_failure = on_failure
        self._ingest = Ingest(flow, folder / "log")
        self._room = threading.Event()
        self._room.set()
        self._stop = threading.Event()
        self._sealed = threading.Event()
        self._threads: list[threading.Thread] = []
        self.last_bucket: BucketId | None = None

    def recover(self) -> list[Bucket]:
        """Sealed buckets that some replica may still need, as they were before the crash."""
        recovered = self._ingest.recover(now_us())
        log.info("recovered %d sealed buckets from the log", len(recovered))
        return recovered

    def start(self) -> None:
        """Begin to seal what clients push."""
        self._start(threading.Thread(target=self._hand_on, name="sealing", daemon=True))

    def start_readers(self) -> None:
        """Begin to read from sources that fetch their rows themselves."""
        for source in self._flow.sources.values():
            reader = open_reader(self._ingest, source)
            if reader is not None:
                self._start(
                    threading.Thread(
                        target=self._read, args=(reader,), name=f"read {source.name}", daemon=True
                    )
                )

    def _start(self, thread: threading.Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def room(self, there_is: bool) -> None:
        """Open or close the tap."""
        if there_is:
            self._room.set()
        else:
            self._room.clear()

    def trim(self, through: BucketId) -> None:
        self._ingest.trim(through)

    def late(self) -> dict[str, int]:
        """Late rows by source."""
        return {name: self._ingest.late(name) for name in self._flow.sources}

    @property
    def rows_in(self) -> int:
        """Rows taken in since this process began."""
        return self._ingest.rows_taken

    @property
    def sealed_through(self) -> BucketId:
        return self._ingest.sealed_through

    @property
    def ended(self) -> bool:
        """Whether every source has ended."""
        return self._ingest.ended

    @property
    def log_bytes(self) -> int:
        return self._ingest.log_bytes

    def end(self) -> None:
        self._stop.set()
        self._room.set()
        for thread in self._threads:
            thread.join(timeout=10)
        self._ingest.commit()
        self._ingest.close()

    # --- readers and sealing -----------------------------------------------------------------------------

    def _read(self, reader: Reader) -> None:
        try:
            run_reader(reader, self._may_push, now_us, self._stop)
        except BaseException as error:
            self._on_failure(error)

    def wait_room(self, timeout_s: float) -> bool:
        """Wait until more may be pushed; False if that takes longer, or if it is over."""
        return self._room.wait(timeout_s) and not self._stop.is_set()

    @property
    def ending(self) -> bool:
        return self._stop.is_set()

    def _may_push(self) -> bool:
        while not self._stop.is_set():
            if self.wait_room(WAIT_S):
                return True
        return False

    def _hand_on(self) -> None:
        """Tick the clock of idle sources, and pass on what is sealed and durable."""
        ending = False
        try:
            while not self._stop.is_set():
                self._sealed.wait(TICK_S)
                self._sealed.clear()
                self._ingest.tick(now_us())
                if self._ingest.ended and not ending:
                    ending = True
                    self.last_bucket = self._ingest.sealed_by_sources
                    ahead = END_OF_STREAM_US // self._flow.bucket_us
                    self._ingest.flush(self.last_bucket + ahead)
                self._ingest.commit()
                buckets = self._ingest.take()
                if buckets:
                    self._on_sealed(buckets)
        except BaseException as error:
            log.exception("sealing failed")
            self._on_failure(error)

    # --- clients -----------------------------------------------------------------------------------------

    def admit(self, hello: Mapping[str, Any]) -> Accepted:
        """A client's exchange of purpose `push`."""
        client = hello.get("client")
        if not isinstance(client, str) or not client:
            raise PeerError("a client that pushes must name itself")
        session = _ClientSession(self, client)
        return Accepted(
            on_open=session.open,
            on_frame=session.frame,
            on_closed=lambda _reason: None,
            name=f"client {client}",
        )

    def sources_for(self, client: str) -> dict[str, Any]:
        """What a client must know: the schema to convert rows to, and its last push that was taken in."""
        described: dict[str, Any] = {}
        for name, source in self._flow.sources.items():
            last = self._ingest.last(name, client)
            sequence = None if last is None else last.sequence
            described[name] = {"schema": source.schema, "time": source.time, "last": sequence}
        return described

    def take_push(self, client: str, frame: Frame) -> Frame:
        """Take in one push, or refuse it; the answer for the client."""
        sequence = frame.head.get("sequence")
        source_name = frame.head.get("source")
        if type(sequence) is not int or not isinstance(source_name, str) or len(frame.bodies) != 1:
            raise PeerError("a push must carry its source, its sequence number and one body of rows")
        source = self._flow.sources.get(source_name)
        try:
            if source is None:
                known = ", ".join(self._flow.sources)
                raise UserError(f"There is no source {source_name!r} in this flow. It has: {known}.")  # noqa: TRY301
            with pa.ipc.open_stream(frame.bodies[0]) as stream:
                table = to_table(source, stream.read_all())
            accepted = self._ingest.push(source_name, table, client, sequence, now_us=now_us())
        except (UserError, pa.ArrowException) as problem:
            return Frame({"kind": "refused", "sequence": sequence, "why": str(problem)})
        self._ingest.commit(accepted.position)
        self._sealed.set()
        return Frame(
            {
                "kind": "accepted",
                "sequence": sequence,
                "duplicate": accepted.duplicate,
                "late": accepted.late,
            }
        )

    def close_source(self, name: str) -> None:
        """A client says that no more rows of this source will come."""
        if name not in self._flow.sources:
            raise PeerError(f"there is no source {name!r}")
        self._ingest.close_source(name)
        self._ingest.commit()
        self._sealed.set()


class _ClientSession:
    """One client's exchange. Frames arrive one at a time, in the connection's own thread."""

    def __init__(self, intake: Intake, client: str) -> None:
        self._intake = intake
        self._client = client
        self._channel: Channel | None = None

    def open(self, channel: Channel) -> None:
        self._channel = channel
        channel.send(Frame({"kind": "sources", "sources": self._intake.sources_for(self._client)}))

    def frame(self, frame: Frame) -> None:
        if self._channel is None:
            return
        if frame.kind == "push":
            while not self._intake.wait_room(WAIT_S):
                # It is this side that does not read; the client is as alive as before.
                self._channel.heard_at = time.monotonic()
                if self._channel.closed or self._intake.ending:
                    return
            self._channel.send(self._intake.take_push(self._client, frame))
        elif frame.kind == "close":
            self._intake.close_source(str(frame.head.get("source")))
            self._channel.send(Frame({"kind": "closed", "source": frame.head.get("source")}))
        else:
            raise PeerError(f"a client does not send {frame.kind!r}")
