"""A snapshot and what belongs to it, from one node to another over a real connection."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.outlet import OutletState
from understudy.core.errors import PeerError
from understudy.core.host.parcels import FetchState
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Copy, Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.node import mover
from understudy.runtime.node.mover import CHUNK_BYTES, PURPOSE, StateFetch, request_of, send_state
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint, NotYet
from understudy.runtime.transport.wire import MESSAGE_BYTES_MAX, Frame

STANDBY, LENDER = Copy(Partition("sessions", 1), 1), Copy(Partition("sessions", 1), 0)
WANTED = FetchState(STANDBY, 5, "node-1.1", LENDER, 2, 7)
ABOVE = [Partition("stats", index) for index in range(3)]
Lend = Callable[[Channel], None]


def outlet(*kept: Bucket, gone: int = NOTHING, produced: int = 100) -> OutletState:
    return OutletState(kept, produced, gone, ((0, 2), (1, NOTHING)))


def state(*outlets: OutletState) -> CopyState:
    return CopyState(7, 40, tuple(zip(ABOVE, outlets, strict=False)))


def heavy(number: int, size_bytes: int) -> Bucket:
    return Bucket(number, number.to_bytes(8, "big") + bytes(size_bytes - 8), size_bytes)


class Lender:
    """A node that lends as the test says, and keeps the hello and every frame that it sends."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(beat_s=0.05, silence_s=5)
        self.endpoint.handle(PURPOSE, self._admit)
        self.endpoint.ready()
        self.hello: dict[str, Any] = {}
        self.lend: Lend = lambda channel: channel.close("nothing to lend")
        self.refusal: Exception | None = None
        self.closed: queue.Queue[str] = queue.Queue()

    def _admit(self, hello: Any) -> Accepted:
        self.hello = dict(hello)
        if self.refusal is not None:
            raise self.refusal

        def opened(channel: Channel) -> None:
            threading.Thread(target=self.lend, args=(channel,), daemon=True).start()

        return Accepted(on_open=opened, on_frame=lambda _frame: None, on_closed=self.closed.put)

    def sends(self, *frames: Frame) -> None:
        self.lend = lambda channel: channel.send(*frames)


@pytest.fixture
def lender() -> Iterator[Lender]:
    made = Lender()
    yield made
    made.endpoint.end()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A snapshot's folder: nested, with an empty file and one of several chunks."""
    root = tmp_path / "lent"
    (root / "state" / "0").mkdir(parents=True)
    (root / "state" / "0" / "9.delta").write_bytes(bytes(range(256)) * (5 * CHUNK_BYTES // 512))
    (root / "state" / "0" / "8.delta").write_bytes(bytes(CHUNK_BYTES))
    (root / "empty").touch()
    (root / "manifest.json").write_text("{}")
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def fetch_from(lender: Lender) -> StateFetch:
    settings = RunSettings("run", "flow.py", "/nowhere", "")
    return StateFetch(lender.endpoint.address, WANTED, "node-2.1", settings)


def fetched(lender: Lender, into: Path) -> CopyState:
    return fetch_from(lender).run(into, lambda: None)


STATES = [
    state(),
    state(outlet(), outlet(Bucket(3), Bucket(5, b"five", 4), Bucket(9)), outlet(produced=3, gone=2)),
    state(outlet(*(heavy(n, MESSAGE_BYTES_MAX // 3) for n in range(5))), outlet(), outlet(heavy(1, 20))),
    state(outlet(heavy(1, MESSAGE_BYTES_MAX + 1), heavy(2, 20)), outlet(heavy(3, MESSAGE_BYTES_MAX + 1))),
]


@pytest.mark.parametrize("sent", STATES, ids=["no outlets", "small", "several frames", "large buckets"])
def test_files_and_state_arrive_as_they_were_sent(
    lender: Lender, folder: Path, tmp_path: Path, sent: CopyState
) -> None:
    lender.lend = lambda channel: send_state(channel, folder, sent)
    fetch, progress = fetch_from(lender), threading.Event()
    assert fetch.run(tmp_path / "into", progress.set) == sent
    assert contents(tmp_path / "into") == contents(folder)
    assert fetch.received_bytes == fetch.total_bytes == sum(map(len, contents(folder).values()))
    assert progress.is_set()
    assert lender.closed.get(timeout=10), "both ends let go of the connection"


def test_the_standby_names_itself_and_the_snapshot_it_wants(
    lender: Lender, folder: Path, tmp_path: Path
) -> None:
    lender.lend = lambda channel: send_state(channel, folder, state())
    fetched(lender, tmp_path / "into")
    assert request_of(lender.hello) == ("node-2.1", STANDBY, 5, LENDER, 7)


def test_what_an_outlet_keeps_travels_in_frames_of_bounded_size_and_number() -> None:
    """Also a hundred thousand small buckets, and in no more time than it takes to look at each once."""
    large = state(outlet(*(heavy(n, MESSAGE_BYTES_MAX // 3) for n in range(7))))
    assert [len(frame.bodies) for frame in mover._state_frames(large)] == [3, 3, 1, 0]
    many = state(outlet(*(Bucket(n, b"x", 1) for n in range(100_000)), produced=100_000))
    frames = mover._state_frames(many)
    assert max(len(frame.bodies) for frame in frames) <= 4_096
    assert [n for frame in frames[:-1] for n in frame.head["numbers"]] == list(range(100_000))


class Crowded(Channel):
    """A connection over which nothing leaves. It closes when a sender waits for room for the first time."""

    def __init__(self) -> None:
        super().__init__("crowded", lambda _frame: None, lambda _reason: None)
        self.waited_with: list[int] = []

    def wait_closed(self, timeout_s: float) -> bool:
        self.waited_with.append(self.waiting)
        self.close("for a test")
        return super().wait_closed(timeout_s)


@pytest.mark.parametrize("much", ["files", "kept output"])
def test_a_lender_waits_for_the_network_before_it_reads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, much: str
) -> None:
    monkeypatch.setattr(mover, "CHUNK_BYTES", 10)
    if much == "files":
        (tmp_path / "large").write_bytes(bytes(1_000))
    else:
        monkeypatch.setattr(mover, "runs_of", lambda kept: [(bucket,) for bucket in kept])
    channel = Crowded()
    send_state(channel, tmp_path, state(outlet(*(heavy(number, 10) for number in range(100)))))
    assert channel.waited_with[:1] == [mover.CHUNKS_WAITING_MAX + 1]


def test_files_left_by_an_earlier_attempt_are_not_taken_for_new_ones(
    lender: Lender, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "into" / "state").mkdir(parents=True)
    (tmp_path / "into" / "state" / "old").write_text("of an earlier attempt")
    lender.lend = lambda channel: send_state(channel, folder, state())
    fetched(lender, tmp_path / "into")
    assert contents(tmp_path / "into") == contents(folder)


# --- when it does not arrive -------------------------------------------------------------------------------


def piece(name: Any, offset: Any = 0, chunk: bytes | None = b"12345") -> Frame:
    return Frame({"kind": "file", "name": name, "offset": offset}, () if chunk is None else (chunk,))


def described(**changes: Any) -> Frame:
    """The frame that describes a state with one outlet."""
    head = {"kind": "state", "version": 7, "through": 4, "outlets": [["stats/0", 9, NOTHING, [[0, 2]]]]}
    return Frame({**head, **changes})


def kept(numbers: Any, *bodies: bytes | None) -> Frame:
    return Frame({"kind": "kept", "outlet": 0, "numbers": numbers}, bodies)


MALFORMED = {
    "a name that leads out": [piece("../outside")],
    "a name from the root": [piece("/tmp/outside-of-everything")],
    "a hidden way out": [piece("state/../../outside")],
    "no name": [piece("")],
    "a gap in a file": [piece("f"), piece("f", 6)],
    "a chunk twice": [piece("f"), piece("f", 0)],
    "a chunk without its bytes": [piece("f", chunk=None)],
    "an offset that is none": [piece("f", "here")],
    "fewer bodies than numbers": [kept([1, 2], b"one")],
    "buckets that do not rise": [kept([2, 1], b"two", b"one"), described()],
    "buckets never produced": [kept([10], b"ten"), described()],
    "a state without its version": [described(version=None)],
    "outlets that are none": [described(outlets=[["stats", 9, 1, []]])],
    "floors that are none": [described(outlets=[["stats/0", 9, 1, [[1, 2, 3]]]])],
    "no outlets at all": [described(outlets=None)],
    "something else": [Frame({"kind": "gossip"})],
}


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
def test_what_makes_no_sense_is_not_taken_for_a_state(
    lender: Lender, tmp_path: Path, frames: list[Frame]
) -> None:
    lender.sends(*frames, described())
    with pytest.raises(ConnectionError, match="the state did not arrive completely"):
        fetched(lender, tmp_path / "nested" / "into")
    outside = [path for path in tmp_path.rglob("*") if "into" not in path.parts and path.is_file()]
    assert outside == []
    assert not Path("/tmp/outside-of-everything").exists()


def test_the_frames_that_were_spoiled_are_otherwise_sound(lender: Lender, tmp_path: Path) -> None:
    lender.sends(piece("f"), piece("f", 5), kept([1, 2], b"one", None), described())
    found = fetched(lender, tmp_path / "into")
    assert found.outlets[0][1].kept == (Bucket(1, b"one", 3), Bucket(2))
    assert contents(tmp_path / "into") == {"f": b"1234512345"}


def test_a_connection_that_breaks_half_way_is_reported(lender: Lender, folder: Path, tmp_path: Path) -> None:
    def break_off(channel: Channel) -> None:
        channel.send(Frame({"kind": "moving", "bytes": 10}), piece("f"))
        while channel.waiting:
            time.sleep(0.005)
        channel.close("the node is gone")

    lender.lend = break_off
    with pytest.raises(ConnectionError, match="the state did not arrive completely"):
        fetched(lender, tmp_path / "into")


def test_a_lender_that_cannot_read_its_files_breaks_off(
    lender: Lender, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanished(channel: Channel, folder: Path, file: Path) -> int:
        raise OSError("Input/output error")

    monkeypatch.setattr(mover, "_send_file", vanished)
    lender.lend = lambda channel: send_state(channel, folder, state())
    # It may break off before the standby has heard that it was let in.
    with pytest.raises(ConnectionError):
        fetched(lender, tmp_path / "into")
    assert "the state could not be read" in lender.closed.get(timeout=10)


def test_a_lender_that_does_not_keep_it_refuses_and_the_standby_hears_why(
    lender: Lender, tmp_path: Path
) -> None:
    lender.refusal = NotYet("snapshot 7 of sessions/1:0 is not kept here")
    with pytest.raises(ConnectionError, match="snapshot 7 of sessions/1:0 is not kept here"):
        fetched(lender, tmp_path / "into")


def test_a_state_that_cannot_be_written_names_the_folder(lender: Lender, tmp_path: Path) -> None:
    lender.sends(piece("f"), piece("f/below"), described())
    with pytest.raises(EnvironmentFailed, match=f"The state cannot be written to {tmp_path}/into: "):
        fetched(lender, tmp_path / "into")


def test_a_fetch_that_is_stopped_ends(lender: Lender, tmp_path: Path) -> None:
    fetch = fetch_from(lender)
    lender.sends(Frame({"kind": "moving", "bytes": 10}), piece("f"))
    # The fetch is stopped once the first piece has arrived; nothing else would end it.
    with pytest.raises(ConnectionError, match="the state did not arrive completely"):
        fetch.run(tmp_path / "into", fetch.stop)


def test_a_fetch_that_was_stopped_before_it_began_ends_at_once(lender: Lender, tmp_path: Path) -> None:
    fetch = fetch_from(lender)
    lender.sends(piece("f"))
    fetch.stop()
    with pytest.raises(ConnectionError, match="the state did not arrive completely"):
        fetch.run(tmp_path / "into", lambda: None)


@pytest.mark.parametrize(
    "change",
    [
        {"node": ...},
        {"standby": ...},
        {"standby": "sessions"},
        {"standby": "s/0:-1"},
        {"lender": "s/0:x"},
        {"lender": 4},
        {"epoch": "late"},
        {"epoch": ...},
        {"version": None},
    ],
    ids=str,
)
def test_a_standby_that_does_not_say_what_it_wants_is_refused(change: dict[str, Any]) -> None:
    hello = {"node": "n", "standby": "s/0:1", "epoch": 1, "lender": "s/0:0", "version": 1, **change}
    given = {name: value for name, value in hello.items() if value is not ...}
    with pytest.raises(PeerError, match="must name itself and the snapshot it wants"):
        request_of(given)
