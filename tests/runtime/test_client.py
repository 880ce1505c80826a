"""The client that pushes rows, against a gateway of a few lines over real connections."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Any

import pytest

from understudy.flow.errors import EnvironmentFailed, RowError, UserError
from understudy.runtime import client as client_module
from understudy.runtime.client import Client
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint, connect
from understudy.runtime.transport.wire import Frame

SOURCES = {name: {"schema": "id int, ts timestamp", "time": "ts", "last": None} for name in ("a", "b")}
ROWS = [{"id": 1, "ts": "2026-01-01T00:00:00Z"}]


class Gateway:
    """Keeps each push; with `answer` it answers, by a number of late rows that tells the answers apart."""

    def __init__(self) -> None:
        self.pushed: queue.Queue[tuple[Channel, Frame]] = queue.Queue()
        self.endpoint = Endpoint(beat_s=0.1)
        self.endpoint.handle("push", self._admit)
        self.endpoint.ready()

    def _admit(self, _hello: Mapping[str, Any]) -> Accepted:
        box: list[Channel] = []

        def opened(channel: Channel) -> None:
            box.append(channel)
            channel.send(Frame({"kind": "sources", "sources": SOURCES}))

        return Accepted(
            on_open=opened, on_frame=lambda frame: self.frame(box[0], frame), on_closed=lambda _why: None
        )

    def frame(self, channel: Channel, frame: Frame) -> None:
        self.pushed.put((channel, frame))

    def answer(self, channel: Channel, frame: Frame, late: int, *, duplicate: bool = False) -> None:
        head = {name: frame.head[name] for name in ("source", "sequence")}
        channel.send(Frame({"kind": "accepted", **head, "duplicate": duplicate, "late": late}))


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.endpoint.end()


class Interrupted(Exception):
    pass


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGUSR1 breaks off what the test's own thread waits for."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interruptible")
def test_an_answer_that_comes_too_late_is_not_taken_for_that_of_another_source(gateway: Gateway) -> None:
    """Each source counts its own pushes, so that both have the same number."""

    def holds_back(channel: Channel, frame: Frame) -> None:
        if frame.head["source"] == "a":
            Gateway.frame(gateway, channel, frame)
            os.kill(os.getpid(), signal.SIGUSR1)
            return
        gateway.answer(*gateway.pushed.get(timeout=5), late=1_000)
        gateway.answer(channel, frame, late=0)

    gateway.frame = holds_back  # type: ignore[method-assign]
    with Client(gateway.endpoint.address) as client:
        with pytest.raises(Interrupted):
            client.push("a", ROWS)
        pushed = client.push("b", ROWS)
    assert (pushed.sequence, pushed.late) == (0, 0)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("given", "then"), [(None, 1), (7, 8)])
def test_the_number_of_a_push_without_an_answer_is_not_given_to_other_rows(
    gateway: Gateway, given: int | None, then: int
) -> None:
    """Its rows may be in; a gateway would take the others for their repetition."""

    def answers_the_second(channel: Channel, frame: Frame) -> None:
        if gateway.pushed.empty():
            Gateway.frame(gateway, channel, frame)
            os.kill(os.getpid(), signal.SIGUSR1)
        else:
            gateway.answer(channel, frame, late=0)

    gateway.frame = answers_the_second  # type: ignore[method-assign]
    with Client(gateway.endpoint.address) as client:
        with pytest.raises(Interrupted):
            client.push("a", ROWS, sequence=given)
        assert client.push("a", ROWS).sequence == then


def test_a_repeated_push_does_not_set_the_count_back(gateway: Gateway) -> None:
    gateway.frame = partial(gateway.answer, late=0)  # type: ignore[method-assign]
    with Client(gateway.endpoint.address) as client:
        numbers = [client.push("a", ROWS, sequence=number).sequence for number in (None, None, 0, None)]
    assert numbers == [0, 1, 0, 2]


@pytest.mark.parametrize("duplicate", [False, True], ids=["it was lost", "its answer was lost"])
def test_a_push_is_repeated_over_the_next_connection(gateway: Gateway, duplicate: bool) -> None:
    seen = []

    def answers_the_second(channel: Channel, frame: Frame) -> None:
        seen.append(frame.head["sequence"])
        if len(seen) == 1:
            channel.close("for a test")
        else:
            gateway.answer(channel, frame, late=3, duplicate=duplicate)

    gateway.frame = answers_the_second  # type: ignore[method-assign]
    with Client(gateway.endpoint.address) as client:
        assert client.push("a", ROWS).duplicate == duplicate
    assert seen == [0, 0]


@pytest.mark.timeout(60)
def test_a_push_is_given_up_when_the_gateway_stays_away(gateway: Gateway) -> None:
    gateway.frame = partial(gateway.answer, late=0)  # type: ignore[method-assign]
    with Client(gateway.endpoint.address, timeout_s=0.5) as client:
        client.push("a", ROWS)
        gateway.endpoint.end()
        with pytest.raises(EnvironmentFailed, match=r"could not be reached for 0\.5 s.*sequence=1\."):
            client.push("a", ROWS)


def test_rows_that_are_too_many_for_one_push_say_so(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "FRAME_BYTES_MAX", 100)
    with Client(gateway.endpoint.address) as client, pytest.raises(RowError, match="Push them in parts"):
        client.push("a", ROWS)
    assert gateway.pushed.empty()


def test_the_end_of_an_earlier_connection_that_is_told_late_leaves_the_next_one_alone(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that closes a channel may get its turn only when the next one is open."""
    ends: list[Callable[[str], None]] = []

    def keeping_ends(*arguments: Any, on_closed: Callable[[str], None], **options: Any) -> None:
        ends.append(on_closed)
        connect(*arguments, on_closed=lambda _why: None, **options)

    def answers_the_second(channel: Channel, frame: Frame) -> None:
        gateway.pushed.put((channel, frame))
        if gateway.pushed.qsize() == 1:
            channel.close("for a test")
        else:
            ends[0]("told late")
            gateway.answer(channel, frame, late=0)

    monkeypatch.setattr(client_module, "connect", keeping_ends)
    gateway.frame = answers_the_second  # type: ignore[method-assign]
    with Client(gateway.endpoint.address, timeout_s=5) as client:
        assert client.push("a", ROWS).sequence == 0
        assert client.push("a", ROWS).sequence == 1


@pytest.mark.parametrize(
    "address",
    ["localhost", ":7700", "localhost:", "localhost:gate", "localhost:²", "my host:7700", "[::1:7700"],
)
def test_an_address_without_host_or_port_is_refused_at_once(address: str) -> None:
    with pytest.raises(UserError, match="is no address"):
        Client(address)


@pytest.mark.parametrize("port", [0, 65_536, 99_999])
def test_a_port_that_there_cannot_be_is_refused_at_once(port: int) -> None:
    with pytest.raises(UserError, match="its port must lie between 1 and 65535"):
        Client(f"127.0.0.1:{port}")


def test_a_name_that_cannot_be_written_is_refused_at_once() -> None:
    with pytest.raises(UserError, match=r"'a\\udcff' is no name for a client"):
        Client("127.0.0.1:7700", name="a\udcff")


def test_a_client_that_was_closed_says_so(gateway: Gateway) -> None:
    client = Client(gateway.endpoint.address)
    client.close()
    with pytest.raises(UserError, match="was closed"):
        client.push("a", ROWS)


def test_a_client_that_is_closed_before_it_is_connected_does_not_stay_connected(gateway: Gateway) -> None:
    client = Client(gateway.endpoint.address)
    client.close()
    assert not client._thread.is_alive()


@pytest.mark.parametrize("sequence", [-1, "a", 1.0, True])
def test_a_sequence_number_that_is_none_is_refused(gateway: Gateway, sequence: Any) -> None:
    with Client(gateway.endpoint.address) as client:
        with pytest.raises(UserError, match="no sequence number"):
            client.push("a", ROWS, sequence=sequence)
        assert gateway.pushed.empty()


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="5 is no name"):
        Client("127.0.0.1:1", name=5)  # type: ignore[arg-type]


FORKED = """
import os, sys
import understudy as us

client = us.Client(sys.argv[1])
client._source("a")
child = os.fork()
if not child:
    for attempt in (lambda: client.push("a", []), lambda: us.Client(sys.argv[1])):
        try:
            attempt()
        except (us.UserError, us.EnvironmentFailed) as problem:
            print(type(problem).__name__, "forked" in str(problem), flush=True)
    client.close()
    sys.exit(0)
_, status = os.waitpid(child, 0)
client._source("a")
print(os.waitstatus_to_exitcode(status), "still connected" if client._connection else "disconnected")
client.close()
"""


def test_a_client_in_a_forked_process_says_at_once_that_it_cannot_work(gateway: Gateway) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKED, gateway.endpoint.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expected = ["UserError True", "EnvironmentFailed True", "0 still connected"]
    assert (ended.stdout.splitlines(), ended.stderr) == (expected, "")
