"""A channel's writing thread, with a writer that keeps what it is given."""

from __future__ import annotations

import json
import threading
from typing import Any

import pyarrow as pa
import pytest

from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.wire import Frame

FRAMES = 10_000


class Kept:
    """Closes the channel when the last frame is written."""

    def __init__(self, channel: Channel) -> None:
        self.numbers: list[int] = []
        self._channel = channel

    def write_metadata(self, metadata: bytes) -> None:
        head: dict[str, Any] = json.loads(metadata)
        if head["kind"] == "number":
            self.numbers.append(head["number"])
        if head.get("number") == FRAMES - 1:
            self._channel.close("that was the last one")

    def write_with_metadata(self, batch: object, metadata: bytes) -> None:
        raise AssertionError("no frame of this test has a body")


def test_of_any_number_of_waiting_frames_each_is_written_once_and_in_order() -> None:
    channel = Channel("peer", lambda _frame: None, lambda _why: None, beat_s=0.05)
    channel.send(*(Frame({"kind": "number", "number": number}) for number in range(FRAMES)))
    kept = Kept(channel)
    writing = threading.Thread(target=channel.write_until_closed, args=(kept,), daemon=True)
    writing.start()
    writing.join(30)
    assert kept.numbers == list(range(FRAMES))


class Chunks:
    """A reader that gives one message, or breaks."""

    def __init__(self, problem: Exception | None) -> None:
        self._problem = problem
        self.app_metadata, self.data = Frame({"kind": "data"}).metadata(), None

    def read_chunk(self) -> Chunks:
        if self._problem is not None:
            raise self._problem
        return self


@pytest.mark.parametrize("problem", [StopIteration(), pa.ArrowIOError("reset"), OSError("reset")])
def test_a_connection_that_breaks_is_closed_as_one(problem: Exception) -> None:
    reasons: list[str] = []
    Channel("peer", lambda _frame: None, reasons.append).read_until_closed(Chunks(problem))
    assert [reason.startswith("the connection broke") for reason in reasons] == [True]


def test_trouble_with_a_message_is_not_taken_for_a_broken_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(_frame: Frame) -> None:
        raise OSError("no space left")

    reasons: list[str] = []
    Channel("peer", full, reasons.append).read_until_closed(Chunks(None))
    assert reasons == ["a message could not be handled: OSError"]
    assert "no space left" in caplog.text
