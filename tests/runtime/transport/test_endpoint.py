"""Two real ends of a connection on loopback."""

from __future__ import annotations

import gc
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from pyarrow import flight

from understudy.core.bucket import Bucket
from understudy.core.edge.messages import Ack, Data, Message, Pause, Reverse
from understudy.core.errors import Fenced, PeerError
from understudy.core.host.parcels import Here, Parcel, Say
from understudy.core.shape.partition import Copy, Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.transport import pieces
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint, NotYet, Refused, connect
from understudy.runtime.transport.parcels import frames_of, parcel_of
from understudy.runtime.transport.pieces import PIECE_BYTES_MAX
from understudy.runtime.transport.wire import Frame

SILENCE_S = 0.6
TALK = b'{"protocol":"understudy/1","purpose":"talk"}'


PRODUCER, CONSUMER = Copy(Partition("sessions", 1), 1), Copy(Partition("sink"))


def said(message: Message) -> Say:
    return Say(PRODUCER, CONSUMER, 8, message)


def say(channel: Channel, *parcels: Parcel) -> None:
    channel.send(*(frame for parcel in parcels for frame in frames_of(parcel)))


def large(*payloads: bytes | memoryview) -> Say:
    """A run of buckets with these payloads."""
    return said(Data(tuple(Bucket(n, payload, len(payload)) for n, payload in enumerate(payloads, 1))))


def payloads(parcel: Parcel) -> list[object]:
    assert isinstance(parcel, Say)
    assert isinstance(parcel.message, Data)
    return [bucket.payload for bucket in parcel.message.buckets]


class Counted(bytearray):
    """Bytes that tell, by a weak reference, whether anything still holds them."""


class Server:
    """An endpoint that keeps what happens on the purpose `talk`."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(beat_s=0.1, silence_s=SILENCE_S)
        self.opened: queue.Queue[Channel] = queue.Queue()
        self.arrived: queue.Queue[Parcel] = queue.Queue()
        self.closed: queue.Queue[tuple[float, str]] = queue.Queue()
        self.refuse: Exception | None = None
        self.trouble: Exception | None = None
        self.endpoint.handle("talk", self._admit)
        self.endpoint.ready()

    def _admit(self, hello: Any) -> Accepted:
        if self.refuse is not None:
            raise self.refuse
        return Accepted(
            on_open=self.opened.put,
            on_frame=self._frame,
            on_closed=lambda reason: self.closed.put((time.monotonic(), reason)),
            name="talker",
        )

    def _frame(self, frame: Frame) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.arrived.put(parcel_of(frame)[0])


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.endpoint.end()


class Client:
    """A connection that runs in a thread of its own."""

    def __init__(self, server: Server) -> None:
        self.opened: queue.Queue[Channel] = queue.Queue()
        self.arrived: queue.Queue[Parcel] = queue.Queue()
        self.closed: queue.Queue[str] = queue.Queue()
        self.thread = threading.Thread(target=self._run, args=(server.endpoint.address,), daemon=True)
        self.thread.start()

    def _run(self, address: str) -> None:
        connect(
            address,
            "talk",
            {},
            on_open=self.opened.put,
            on_frame=lambda frame: self.arrived.put(parcel_of(frame)[0]),
            on_closed=self.closed.put,
            beat_s=0.1,
            silence_s=SILENCE_S,
        )


SAID: list[Parcel] = [
    said(Data((Bucket(1, b"one", 3), Bucket(5), Bucket(7, b"", 0)))),
    said(Ack(5)),
    Here(PRODUCER, 4),
    said(Pause()),
    said(Reverse(-3)),
]


def test_both_sides_hear_each_other_in_order(server: Server) -> None:
    client = Client(server)
    at_client, at_server = client.opened.get(timeout=5), server.opened.get(timeout=5)
    say(at_client, *SAID)
    say(at_server, said(Ack(1)), said(Ack(2)))
    assert [client.arrived.get(timeout=5) for _ in range(2)] == [said(Ack(1)), said(Ack(2))]
    assert [server.arrived.get(timeout=5) for _ in SAID] == SAID


def test_an_idle_channel_stays_open_by_its_beats(server: Server) -> None:
    client = Client(server)
    client.opened.get(timeout=5)
    channel = server.opened.get(timeout=5)
    assert not channel.wait_closed(3 * SILENCE_S)


def test_closing_one_side_closes_the_other(server: Server) -> None:
    client = Client(server)
    client.opened.get(timeout=5)
    server.opened.get(timeout=5).close("done")
    assert client.closed.get(timeout=5)
    client.thread.join(timeout=5)
    assert not client.thread.is_alive()


OTHER_PROCESS = textwrap.dedent(
    """
    import sys
    from understudy.runtime.transport.endpoint import connect
    connect(sys.argv[1], "talk", {}, on_open=lambda c: None, on_frame=lambda f: None,
            on_closed=lambda r: None, beat_s=0.1, silence_s=60)
    """
)


def test_a_killed_peer_is_noticed_at_once_and_a_stopped_one_by_its_silence(server: Server) -> None:
    for sign, limit_s in ((signal.SIGKILL, 0.3), (signal.SIGSTOP, SILENCE_S + 1.0)):
        process = subprocess.Popen([sys.executable, "-c", OTHER_PROCESS, server.endpoint.address])
        try:
            server.opened.get(timeout=20)
            at = time.monotonic()
            process.send_signal(sign)
            noticed_at, reason = server.closed.get(timeout=5)
            assert noticed_at - at < limit_s, reason
        finally:
            process.kill()
            process.wait()


def call(endpoint: Endpoint, purpose: str = "talk") -> None:
    """Open a channel over which nothing is sent and nothing is heard."""

    def ignore(_: object) -> None:
        pass

    connect(endpoint.address, purpose, {}, on_open=ignore, on_frame=ignore, on_closed=ignore)


@pytest.mark.parametrize(
    ("refusal", "raised"), [(Fenced("seat 3 is gone"), Fenced), (NotYet("wait"), ConnectionError)]
)
def test_a_caller_that_is_not_let_in_gets_the_reason(
    server: Server, refusal: Exception, raised: type[Exception]
) -> None:
    server.refuse = refusal
    with pytest.raises(raised, match=str(refusal)):
        call(server.endpoint)


def test_who_comes_before_the_server_is_ready_is_asked_to_try_again() -> None:
    starting = Endpoint()
    try:
        with pytest.raises(ConnectionError, match="still starting"):
            call(starting)
    finally:
        starting.end()


def refusal_of(server: Server, command: bytes) -> str:
    """The refusal that a stranger gets who opens an exchange with these bytes."""
    stranger = flight.connect(f"grpc://{server.endpoint.address}")
    _, reader = stranger.do_exchange(flight.FlightDescriptor.for_command(command))
    with pytest.raises(flight.FlightError) as answer:
        reader.read_chunk()
    return str(answer.value)


def test_an_unknown_purpose_and_a_stranger_are_refused(server: Server) -> None:
    with pytest.raises(Refused, match="nothing here answers to 'dance'"):
        call(server.endpoint, "dance")
    assert "not JSON" in refusal_of(server, b"hello there")


def test_garbage_inside_a_channel_closes_it_and_nothing_of_it_arrives(server: Server) -> None:
    stranger = flight.connect(f"grpc://{server.endpoint.address}")
    writer, _ = stranger.do_exchange(flight.FlightDescriptor.for_command(TALK))
    server.opened.get(timeout=5)
    writer.write_metadata(frames_of(SAID[0])[0].metadata())
    _, reason = server.closed.get(timeout=5)
    assert "3 numbers came with 0 bodies" in reason
    assert server.arrived.empty()


def test_an_opening_that_is_nested_too_deeply_is_refused_without_a_stack_trace(server: Server) -> None:
    answer = refusal_of(server, b"[" * 5_000)
    assert "nested too deeply" in answer
    assert "Traceback" not in answer
    Client(server).opened.get(timeout=5)


def test_a_failure_here_is_not_shown_to_a_stranger_as_a_stack_trace(server: Server) -> None:
    server.refuse = KeyError("a mistake of ours")
    assert "Traceback" not in refusal_of(server, TALK)


@pytest.mark.parametrize("head", [b"[" * 5_000, b'{"kind":"data","numbers":7}', b'{"kind":"piece"}'])
def test_a_malformed_head_closes_its_channel_and_no_other(server: Server, head: bytes) -> None:
    well_behaved = Client(server)
    at_client = well_behaved.opened.get(timeout=5)
    server.opened.get(timeout=5)
    stranger = flight.connect(f"grpc://{server.endpoint.address}")
    writer, _ = stranger.do_exchange(flight.FlightDescriptor.for_command(TALK))
    server.opened.get(timeout=5)
    writer.write_metadata(head)
    _, reason = server.closed.get(timeout=5)
    assert "it broke the protocol" in reason
    say(at_client, said(Ack(1)))
    assert server.arrived.get(timeout=5) == said(Ack(1))


def test_a_message_that_cannot_be_handled_closes_its_channel_and_no_other(server: Server) -> None:
    first, second = Client(server), Client(server)
    at_first, at_second = first.opened.get(timeout=5), second.opened.get(timeout=5)
    server.trouble = KeyError("a mistake of ours")
    say(at_first, said(Ack(1)))
    assert "KeyError" in server.closed.get(timeout=5)[1]
    assert "Traceback" not in first.closed.get(timeout=5)
    server.trouble = None
    say(at_second, said(Ack(2)))
    assert server.arrived.get(timeout=5) == said(Ack(2))


def test_what_was_sent_is_let_go_of(server: Server) -> None:
    client = Client(server)
    channel = client.opened.get(timeout=5)
    bodies = [Counted(number * 1_000) for number in range(1, 20)]
    held = [weakref.ref(body) for body in bodies]
    say(channel, *(large(memoryview(body)) for body in bodies), large(*map(memoryview, bodies)))
    for _ in range(len(bodies) + 1):
        server.arrived.get(timeout=5)
    del bodies
    deadline_s = time.monotonic() + 5
    while any(ref() is not None for ref in held) and time.monotonic() < deadline_s:
        # The writer keeps the last message in hand until it writes the next beat.
        time.sleep(0.05)
        gc.collect()
    assert [ref() for ref in held] == [None] * len(held)


def test_a_message_of_any_size_arrives(server: Server) -> None:
    """A message is a sign of life only when all of it is there, so a large one travels in pieces."""
    client = Client(server)
    sent = large(bytes(range(256)) * (3 * PIECE_BYTES_MAX // 256) + b"the end")
    say(client.opened.get(timeout=5), sent, said(Ack(1)))
    assert payloads(server.arrived.get(timeout=20)) == payloads(sent)
    assert server.arrived.get(timeout=5) == said(Ack(1))


def test_a_message_beyond_all_bounds_ends_the_connection_with_the_reason(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "FRAME_BYTES_MAX", PIECE_BYTES_MAX + 1)
    client = Client(server)
    say(client.opened.get(timeout=5), large(bytes(PIECE_BYTES_MAX + 2)))
    assert "choose narrower buckets" in client.closed.get(timeout=5)


def test_a_taken_port_says_so(server: Server) -> None:
    with pytest.raises(EnvironmentFailed, match=f":{server.endpoint.port}"):
        Endpoint(port=server.endpoint.port)


ENDS_WHILE_SENDING = textwrap.dedent(
    """
    import queue, threading
    from understudy.runtime.transport.endpoint import Accepted, Endpoint, connect
    from understudy.runtime.transport.wire import Frame

    nothing = lambda _: None
    endpoint = Endpoint()
    endpoint.handle("talk", lambda hello: Accepted(on_open=nothing, on_frame=nothing, on_closed=nothing))
    endpoint.ready()
    opened = queue.Queue()
    callbacks = dict(on_open=opened.put, on_frame=nothing, on_closed=nothing)
    call = threading.Thread(target=connect, args=(endpoint.address, "talk", {}), kwargs=callbacks)
    call.daemon = True
    call.start()
    channel = opened.get()
    channel.send(*(Frame({"kind": "data"}, (bytes(50_000),)) for _ in range(3_000)))
    endpoint.end()
    """
)


def test_a_process_may_end_while_it_sends() -> None:
    """What Flight's threads still hold must not keep it."""
    ended = subprocess.run([sys.executable, "-c", ENDS_WHILE_SENDING], check=False, timeout=30)
    assert ended.returncode == 0


ENDS_CONNECTED = textwrap.dedent(
    """
    import atexit, queue, sys, threading
    left = threading.Event()
    # Registered first, so it comes last.
    atexit.register(lambda: print("left" if left.wait(1) else "still inside"))
    from understudy.runtime.transport.endpoint import connect

    def call():
        nothing = lambda _: None
        try:
            connect(sys.argv[1], "talk", {}, on_open=opened.put, on_frame=nothing, on_closed=nothing)
        except ConnectionError:
            pass
        left.set()

    opened = queue.Queue()
    threading.Thread(target=call, daemon=True).start()
    if sys.argv[2] == "admitted":
        opened.get()
    else:
        print(sys.stdin.readline(), end="")
    """
)


@pytest.mark.parametrize("when", ["admitted", "not admitted yet"])
def test_a_process_that_ends_connected_leaves_flight_first(server: Server, when: str) -> None:
    """A thread that comes back from Flight while Python shuts down aborts the process, now and then."""
    admitting, may_admit = threading.Event(), threading.Event()
    admit = server._admit

    def slowly(hello: Any) -> Accepted:
        admitting.set()
        if when != "admitted":
            may_admit.wait(20)
        return admit(hello)

    server.endpoint.handle("talk", slowly)
    process = subprocess.Popen(
        [sys.executable, "-c", ENDS_CONNECTED, server.endpoint.address, when],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert admitting.wait(20)
    said, _ = process.communicate("", timeout=30)
    may_admit.set()
    assert (process.returncode, said) == (0, "left\n")


@pytest.mark.parametrize("why", [None, PeerError("not you"), Fenced("too old"), NotYet("later")])
def test_a_call_holds_nothing_of_flights_when_it_returns(
    server: Server, monkeypatch: pytest.MonkeyPatch, why: Exception | None
) -> None:
    """Freeing it later would be a call into Flight that nobody waits for at the end of the process."""
    server.refuse = why
    made: list[weakref.ref[Any]] = []
    honest = flight.connect

    def noted(address: str) -> Any:
        client = honest(address)
        made.append(weakref.ref(client))
        return client

    monkeypatch.setattr(flight, "connect", noted)
    nothing = [lambda _: None] * 2
    kept: Exception | None = None
    try:
        connect(
            server.endpoint.address,
            "talk",
            {},
            on_open=lambda channel: channel.close("that was all"),
            on_frame=nothing[0],
            on_closed=nothing[1],
        )
    except (ConnectionError, Fenced, Refused) as problem:
        kept = problem
    assert (kept is None) == (why is None)
    assert [ref() for ref in made] == [None]
