"""Frames that are too large for one message."""

from __future__ import annotations

import pytest

from understudy.core.errors import PeerError
from understudy.runtime.transport import pieces
from understudy.runtime.transport.pieces import PIECE_BYTES_MAX, Assembly, FrameTooLarge, pieces_of
from understudy.runtime.transport.wire import Bodies, Frame, frame_of

MANY = bytes(range(256)) * (PIECE_BYTES_MAX // 200)


def arrived(sent: Frame) -> list[Frame | None]:
    assembly = Assembly()
    return [assembly.completed(frame_of(piece.metadata(), piece.batch())) for piece in pieces_of(sent)]


@pytest.mark.parametrize(
    "bodies",
    [(MANY,), (b"", MANY, None, b"few", memoryview(MANY)), (MANY[:PIECE_BYTES_MAX], b"one byte more")],
    ids=["one body", "several", "a body of just one piece"],
)
def test_a_large_frame_arrives_completely(bodies: Bodies) -> None:
    *before, last = arrived(Frame({"kind": "push", "source": "s"}, bodies))
    assert before
    assert not any(before)
    assert last == Frame({"kind": "push", "source": "s"}, tuple(b if b is None else bytes(b) for b in bodies))


def test_no_piece_is_larger_than_a_message_should_be() -> None:
    sent = list(pieces_of(Frame({"kind": "push"}, (MANY, MANY))))
    assert max(piece.size_bytes for piece in sent) <= PIECE_BYTES_MAX


def test_a_small_frame_travels_as_it_is() -> None:
    frame = Frame({"kind": "push"}, (b"few", None))
    assert list(pieces_of(frame)) == [frame]


def test_a_frame_beyond_all_bounds_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "FRAME_BYTES_MAX", len(MANY))
    assert list(pieces_of(Frame({"kind": "push"}, (MANY,))))
    with pytest.raises(FrameTooLarge, match="narrower buckets, or push fewer rows"):
        list(pieces_of(Frame({"kind": "push"}, (MANY, b"1"))))


PIECE = Frame({"kind": "piece"}, (b"12345",))


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([PIECE, Frame({"kind": "push"})], "between the pieces"),
        ([Frame({"kind": "piece"})], "without its bytes"),
        ([Frame({"kind": "piece"}, (b"",))], "without its bytes"),
        ([Frame({"kind": "piece"}, (b"1", b"2"))], "without its bytes"),
        ([PIECE, Frame({"kind": "push", "pieced": [4]})], "do not make a body of 4 bytes"),
        ([PIECE, Frame({"kind": "push", "pieced": [6]})], "do not make a body of 6 bytes"),
        ([PIECE, Frame({"kind": "push", "pieced": [-1]})], "do not make a body of -1 bytes"),
        ([PIECE, Frame({"kind": "push", "pieced": ["5"]})], "do not make a body of '5' bytes"),
        ([PIECE, Frame({"kind": "push", "pieced": []})], "more pieces"),
        ([PIECE, Frame({"kind": "push", "pieced": 5})], "how long its bodies are"),
        ([PIECE, Frame({"kind": "push", "pieced": [5]}, (b"x",))], "how long its bodies are"),
    ],
)
def test_pieces_that_do_not_fit_are_the_peers_fault(frames: list[Frame], why: str) -> None:
    assembly = Assembly()
    with pytest.raises(PeerError, match=why):
        for frame in frames:
            assembly.completed(frame)


def test_more_pieces_than_a_frame_may_have_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "FRAME_BYTES_MAX", 12)
    assembly = Assembly()
    assert assembly.completed(PIECE) is None
    assert assembly.completed(PIECE) is None
    with pytest.raises(PeerError, match="more than 12 bytes"):
        assembly.completed(PIECE)
