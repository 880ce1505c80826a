"""Two real ends of a connection on loopback."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyarrow import flight
from understudy.core.messages import Ack, CSync, Data, Message, PSync, Reverse

from understudy.core.bucket import Bucket
from understudy.core.errors import Fenced
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint, NotYet, Refused, connect
from understudy.runtime.transport.wire import frames_of, messages_of

SILENCE_S = 0.6


class Server:
    """An endpoint that keeps what happens on the purpose `talk`."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(beat_s=0.1, silence_s=SILENCE_S)
        self.opened: queue.Queue[Channel] = queue.Queue()
        self.arrived: queue.Queue[Message] = queue.Queue()
        self.closed: queue.Queue[tuple[float, str]] = queue.Queue()
        self.refuse: Exception | None = None
        self.endpoint.handle("talk", self._admit)
        self.endpoint.ready()

    def _admit(self, hello: Any) -> Accepted:
        if self.refuse is not None:
            raise self.refuse
        return Accepted(
            on_open=self.opened.put,
            on_frame=lambda frame: [self.arrived.put(m) for m in messages_of(frame)],  # type: ignore[func-returns-value]
            on_closed=lambda reason: self.closed.put((time.monotonic(), reason)),
            name="talker",
        )


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.endpoint.end()


class Client:
    """A connection that runs in a thread of its own."""

    def __init__(self, server: Server) -> None:
        self.opened: queue.Queue[Channel] = queue.Queue()
        self.arrived: queue.Queue[Message] = queue.Queue()
        self.closed: queue.Queue[str] = queue.Queue()
        self.thread = threading.Thread(target=self._run, args=(server.endpoint.address,), daemon=True)
        self.thread.start()

    def _run(self, address: str) -> None:
        connect(
            address,
            "talk",
            {},
            on_open=self.opened.put,
            on_frame=lambda frame: [self.arrived.put(m) for m in messages_of(frame)],  # type: ignore[func-returns-value]
            on_closed=self.closed.put,
            beat_s=0.1,
            silence_s=SILENCE_S,
        )


MESSAGES: list[Message] = [
    Data(Bucket(1, b"one", 3)),
    Data(Bucket(5)),
    Ack(5),
    CSync(2, 5),
    Data(Bucket(7, b"", 0)),
    PSync(2),
    Reverse(-3),
]


def test_messages_survive_the_wire_in_order() -> None:
    frames = frames_of(MESSAGES, epoch=4)
    back = [message for frame in frames for message in messages_of(frame)]
    assert [m if not isinstance(m, Data) else m.bucket.number for m in back] == [
        m if not isinstance(m, Data) else m.bucket.number for m in MESSAGES
    ]
    assert all(frame.head["epoch"] == 4 for frame in frames)
    assert len(frames) < len(MESSAGES), "buckets that follow each other share a frame"


def test_both_sides_hear_each_other(server: Server) -> None:
    client = Client(server)
    at_client, at_server = client.opened.get(timeout=5), server.opened.get(timeout=5)
    at_client.send(*MESSAGES)
    at_server.send(Ack(1), Ack(2))
    assert [client.arrived.get(timeout=5) for _ in range(2)] == [Ack(1), Ack(2)]
    heard = [server.arrived.get(timeout=5) for _ in MESSAGES]
    assert [type(m) for m in heard] == [type(m) for m in MESSAGES]
    assert isinstance(heard[0], Data)
    assert bytes(heard[0].bucket.payload) == b"one"  # type: ignore[call-overload]


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


@pytest.mark.parametrize(
    ("refusal", "raised"), [(Fenced("seat 3 is gone"), Fenced), (NotYet("wait"), ConnectionError)]
)
def test_who_is_not_let_in_is_told_why(server: Server, refusal: Exception, raised: type[Exception]) -> None:
    server.refuse = refusal
    with pytest.raises(raised, match=str(refusal)):
        connect(
            server.endpoint.address,
            "talk",
            {},
            on_open=lambda c: None,
            on_frame=lambda f: None,
            on_closed=lambda r: None,
        )


def test_who_comes_before_the_server_is_ready_is_asked_to_try_again() -> None:
    starting = Endpoint()
    try:
        with pytest.raises(ConnectionError, match="still starting"):
            connect(
                starting.address,
                "talk",
                {},
                on_open=lambda c: None,
                on_frame=lambda f: None,
                on_closed=lambda r: None,
            )
    finally:
        starting.end()


def test_an_unknown_purpose_and_a_stranger_are_refused(server: Server) -> None:
    with pytest.raises(Refused, match="nothing here answers to 'dance'"):
        connect(
            server.endpoint.address,
            "dance",
            {},
            on_open=lambda c: None,
            on_frame=lambda f: None,
            on_closed=lambda r: None,
        )
    stranger = flight.connect(f"grpc://{server.endpoint.address}")
    _, reader = stranger.do_exchange(flight.FlightDescriptor.for_command(b"hello there"))
    with pytest.raises(flight.FlightServerError, match="not JSON"):
        reader.read_chunk()


def test_garbage_inside_a_channel_closes_it_and_nothing_of_it_arrives(server: Server) -> None:
    stranger = flight.connect(f"grpc://{server.endpoint.address}")
    descriptor = flight.FlightDescriptor.for_command(b'{"protocol":"understudy/1","purpose":"talk"}')
    writer, _ = stranger.do_exchange(descriptor)
    server.opened.get(timeout=5)
    writer.write_metadata(b'{"kind":"data","numbers":[1,2]}')
    _, reason = server.closed.get(timeout=5)
    assert "2 numbers came with 0 bodies" in reason
    assert server.arrived.empty()


def test_a_taken_port_says_so(server: Server) -> None:
    with pytest.raises(EnvironmentFailed, match=f":{server.endpoint.port}"):
        Endpoint(port=server.endpoint.port)
