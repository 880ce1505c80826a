"""Intake: rows from clients and readers, through the log, to sealed buckets; and back pressure to all of
them.

Clients push over an exchange of purpose `push`. Each push is a frame with the source, the client's name and
a sequence number; the gateway acknowledges it once its rows are in the log and durable. A client repeats a
push that was not acknowledged, and a repeated push is acknowledged and not taken in again. If any row does
not fit, the gateway refuses all of the push, with the reason.

Sources that fetch their rows themselves are fed here, each in a thread of its own that pushes in the same
way.

Every source seals, waits and is trimmed on its own. While there is no room for a source, it is under back
pressure: its clients wait for their answers, its reader waits before it reads. Other sources go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.core.bucket import BucketId
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.flow import Flow
from understudy.runtime.durable import leave_mark, make_folder
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.feed import Feed, open_feed, run_feed
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.ingest.rereading import LogReader
from understudy.runtime.ingest.rows import from_stream
from understudy.runtime.ingest.silence import Deafness
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

TICK_S = 0.02
WAIT_S = 0.1


def now_us() -> int:
    return time.time_ns() // 1_000


def monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


class Intake:
    """Owns the ingest log. `on_sealed` gets the buckets of each source in order, from one thread."""

    def __init__(
        self,
        flow: Flow,
        folder: Path,
        on_sealed: Callable[[list[SealedBucket]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._flow = flow
        self._folder = folder
        self._on_sealed = on_sealed
        self._on_failure = on_failure
        self._ingest = Ingest(flow, folder / "log")
        self._room = {name: threading.Event() for name in flow.sources}
        for room in self._room.values():
            room.set()
        self._deafness = Deafness()
        #: When each reader was last asked, by the monotonic clock.
        self._asked_us: dict[str, int] = {}
        self._feeds: dict[str, Feed] = {}
        self._stop = threading.Event()
        self._held = threading.Event()
        self._sealed = threading.Event()
        self._threads: list[threading.Thread] = []

    def recover(self, *, begun: str | None = None) -> list[SealedBucket]:
        """Buckets sealed and not trimmed, of each source in order, as they were before the crash. Opens the
        readers of sources that fetch their rows themselves.

        `begun` names what shows that this run has had a log.
        """
        recovered = self._ingest.recover(begun=begun)
        log.info("recovered %d sealed buckets from the log", len(recovered))
        opened = {name: open_feed(self._ingest, source) for name, source in self._flow.sources.items()}
        self._feeds = {name: feed for name, feed in opened.items() if feed is not None}
        for name, feed in self._feeds.items():
            # Here, where there is one thread: two clients may close two sources at once.
            make_folder(self._closing_mark(name).parent)
            if self._closing_mark(name).exists():
                feed.finish()
        return recovered

    def require_through(self, delivered: Mapping[str, BucketId]) -> None:
        """Refuse a log that ends before what each sink has received; after `recover`."""
        self._ingest.require_through(delivered)

    @property
    def goes_on(self) -> bool:
        """Whether the log had taken in anything before this process; known after `recover`."""
        return self._ingest.goes_on

    def start(self) -> None:
        """Begin to seal what clients push."""
        # Until its reader works, a source has no voice.
        self._asked_us = dict.fromkeys(self._feeds, monotonic_us())
        self._start(threading.Thread(target=self._hand_on, name="sealing", daemon=True))

    def start_readers(self) -> None:
        """Begin to read from sources that fetch their rows themselves."""
        for name, feed in self._feeds.items():
            self._start(
                threading.Thread(target=self._read, args=(name, feed), name=f"read {name}", daemon=True)
            )

    def _start(self, thread: threading.Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def room(self, source: str, there_is: bool) -> None:
        """Open or close the tap of one source. Called by one thread."""
        if there_is and not self._room[source].is_set():
            self._room[source].set()
            self._deafness.end(source)
        elif not there_is and self._room[source].is_set():
            self._deafness.begin(source)
            self._room[source].clear()

    def trim(self, source: str, through: BucketId) -> None:
        """Every live copy has the buckets of this source up to that number."""
        self._ingest.trim(source, through)

    def forget(self, source: str, through: BucketId) -> None:
        """No saved snapshot needs the buckets of this source up to that number; only as far as trimmed."""
        self._ingest.forget(source, through)

    def reader(self, source: str, after: BucketId) -> LogReader:
        """Reads the sealed buckets of this source after that number again. The caller closes it."""
        return self._ingest.reader(source, after)

    @property
    def trimmed(self) -> dict[str, BucketId]:
        """How far each source is trimmed; known after `recover`."""
        return self._ingest.trimmed

    @property
    def forgotten(self) -> dict[str, BucketId]:
        """How much of each source's log may be gone; known after `recover`."""
        return self._ingest.forgotten

    def late(self) -> dict[str, int]:
        """Late rows by source."""
        return {name: self._ingest.late(name) for name in self._flow.sources}

    @property
    def rows_in(self) -> int:
        """Rows taken in since this process began."""
        return self._ingest.rows_taken

    @property
    def sealed_through(self) -> dict[str, BucketId]:
        """The last sealed bucket of each source; NOTHING before its first."""
        return self._ingest.sealed_through

    @property
    def last_bucket(self) -> BucketId | None:
        """Once every source has ended, the greatest bucket with rows; NOTHING if no source ever had a row."""
        return self._ingest.last_rows if self._ingest.ended else None

    @property
    def ended(self) -> bool:
        """Whether every source has ended."""
        return self._ingest.ended

    @property
    def log_bytes(self) -> int:
        return self._ingest.log_bytes

    def end(self) -> None:
        self._stop.set()
        for room in self._room.values():
            room.set()
        for thread in self._threads:
            thread.join(timeout=10)
        try:
            self._ingest.commit()
        except EnvironmentFailed as problem:
            # Nothing of it was acknowledged, and the rest of the process is still to be ended in order.
            log.error("the log could not be committed at the end: %s", problem)  # noqa: TRY400
        self._ingest.close()

    # --- readers and sealing -----------------------------------------------------------------------------

    def _read(self, source: str, feed: Feed) -> None:
        try:
            asking = partial(self._asking, source)
            run_feed(feed, partial(self._may_push, source), now_us, self._stop, asking)
        except BaseException as error:
            self._on_failure(error)

    @contextmanager
    def _asking(self, source: str) -> Iterator[None]:
        """It was silent until it was asked, if it then had no rows: they would end the silence."""
        began_us = monotonic_us()
        yield
        self._asked_us[source] = began_us

    def hold(self) -> None:
        """Take no more rows: the run is about to be stopped. Clients wait, and go on when the run does."""
        self._held.set()

    def wait_room(self, source: str, timeout_s: float) -> bool:
        """Wait until more may be pushed to a source; False if that takes longer, or if it is over."""
        if self._held.is_set():
            self._stop.wait(timeout_s)
            return False
        return self._room[source].wait(timeout_s) and not self._stop.is_set()

    @property
    def ending(self) -> bool:
        return self._stop.is_set()

    def _may_push(self, source: str) -> bool:
        while not self._stop.is_set():
            if self.wait_room(source, WAIT_S):
                return True
        return False

    def _hand_on(self) -> None:
        """Tick the clock of idle sources, and pass on what is sealed and durable."""
        try:
            while not self._stop.is_set():
                self._sealed.wait(TICK_S)
                self._sealed.clear()
                self._ingest.tick(monotonic_us(), self._deafness.since_last_asked(), self._asked_us)
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
        """For a client: the schema to convert rows to, and its last push that was taken in, by source."""
        described: dict[str, Any] = {}
        for name, source in self._flow.sources.items():
            last = self._ingest.last(name, client)
            sequence = None if last is None else last.sequence
            described[name] = {"schema": source.schema, "time": source.time, "last": sequence}
        return described

    def answer(self, client: str, frame: Frame, wait: Callable[[str], bool]) -> Frame | None:
        """The answer to a frame of a client. What fails on this side ends the gateway, and is its reason.

        `wait` returns when there is room for a source, or False if the client is gone: then nothing is
        answered.
        """
        try:
            match frame.kind:
                case "push":
                    return self._take_push(client, frame, wait)
                case "close":
                    return self._close_source(str(frame.head.get("source")))
        except (EnvironmentFailed, BrokenInvariant) as problem:
            self._on_failure(problem)
            raise
        raise PeerError(f"a client does not send {frame.kind!r}")

    def _take_push(self, client: str, frame: Frame, wait: Callable[[str], bool]) -> Frame | None:
        """Take in one push, or refuse it."""
        sequence = frame.head.get("sequence")
        source_name = frame.head.get("source")
        if type(sequence) is not int or not isinstance(source_name, str) or len(frame.bodies) != 1:
            raise PeerError("a push must carry its source, its sequence number and one body of rows")
        answered = {"source": source_name, "sequence": sequence}
        source = self._flow.sources.get(source_name)
        try:
            if source is None:
                known = ", ".join(self._flow.sources)
                raise UserError(f"There is no source {source_name!r} in this flow. It has: {known}.")  # noqa: TRY301
            if sequence < 0:
                raise UserError(f"{sequence} is no sequence number of a push: they begin with 0.")  # noqa: TRY301
            if source_name in self._feeds:
                own = source.kind.describe()
                raise UserError(f"Source {source_name!r} takes no rows from clients: {own}.")  # noqa: TRY301
            with self._deafness.during(source_name):
                if not wait(source_name):
                    return None
                table, stream = from_stream(source, memoryview(frame.bodies[0] or b""))
                accepted = self._ingest.push(
                    source_name, table, client, sequence, now_us=now_us(), stream=stream
                )
        except (UserError, pa.ArrowException) as problem:
            return Frame({"kind": "refused", **answered, "why": str(problem)})
        self._ingest.commit(accepted.position)
        self._sealed.set()
        late, duplicate = accepted.late, accepted.duplicate
        return Frame({"kind": "accepted", **answered, "duplicate": duplicate, "late": late})

    def _close_source(self, name: str) -> Frame:
        """A client says that no more rows of this source will come. A reader reads what is there, first."""
        if name not in self._flow.sources:
            raise PeerError(f"there is no source {name!r}")
        feed = self._feeds.get(name)
        if feed is not None:
            leave_mark(self._closing_mark(name))
            feed.finish()
        else:
            self._ingest.close_source(name)
            self._ingest.commit()
            self._sealed.set()
        return Frame({"kind": "closed", "source": name})

    def _closing_mark(self, source: str) -> Path:
        """What shows that a client has closed a source whose reader may still have rows."""
        return self._folder / "closing" / source


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
        channel = self._channel
        if channel is None:
            return
        answer = self._intake.answer(self._client, frame, self._wait_room)
        if answer is not None:
            channel.send(answer)

    def _wait_room(self, source: str) -> bool:
        channel = self._channel
        while channel is not None and not channel.closed and not self._intake.ending:
            if self._intake.wait_room(source, WAIT_S):
                return True
            # It is this side that does not read; the client is as alive as before.
            channel.heard_at = time.monotonic()
        return False
