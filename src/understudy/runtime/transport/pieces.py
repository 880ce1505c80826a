"""Large frames travel in pieces, and are put together again at the other end.

Two limits make that necessary. Flight sends no message of 2 GiB or more. And a message counts as a sign of
life only once all of it has arrived, so one that takes longer than the silence limit would cost the
connection, and the next connection too, for it is sent again.

The bodies go first, cut into frames of the kind `piece`. The frame that they belong to comes last: its head
says how long each body is. Nothing else is sent in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from understudy.core.errors import PeerError
from understudy.runtime.transport.wire import Frame

PIECE_BYTES_MAX = 8 * 2**20
#: What the bodies of one frame may take together: both ends hold them in memory.
FRAME_BYTES_MAX = 2**30

_PIECE = "piece"
_LENGTHS = "pieced"


class FrameTooLarge(Exception):
    """A frame's bodies are more than a connection carries."""


def pieces_of(frame: Frame) -> Iterator[Frame]:
    """The frame as it travels: itself, or its pieces. Raises `FrameTooLarge`."""
    size_bytes = frame.size_bytes
    if size_bytes <= PIECE_BYTES_MAX:
        yield frame
        return
    if size_bytes > FRAME_BYTES_MAX:
        raise FrameTooLarge(
            f"a message of the kind {frame.kind!r} has {size_bytes:,} bytes, and {FRAME_BYTES_MAX:,} are the "
            "most that one may have: choose narrower buckets, or push fewer rows at a time"
        )
    views = [None if body is None else memoryview(body) for body in frame.bodies]
    for view in views:
        for start in range(0, 0 if view is None else view.nbytes, PIECE_BYTES_MAX):
            assert view is not None
            yield Frame({"kind": _PIECE}, (view[start : start + PIECE_BYTES_MAX],))
    yield Frame({**frame.head, _LENGTHS: [None if view is None else view.nbytes for view in views]})


class Assembly:
    """Puts the frames of one connection together."""

    def __init__(self) -> None:
        self._pieces: deque[Any] = deque()
        self._size_bytes = 0

    def completed(self, frame: Frame) -> Frame | None:
        """The frame that is complete now; None while more of it must come. Raises `PeerError`."""
        if frame.kind == _PIECE:
            self._keep(frame)
            return None
        if _LENGTHS not in frame.head:
            if self._pieces:
                raise PeerError(f"a message of the kind {frame.kind!r} came between the pieces of another")
            return frame
        lengths = frame.head[_LENGTHS]
        if not isinstance(lengths, list) or frame.bodies:
            raise PeerError("a message that came in pieces does not say how long its bodies are")
        bodies = tuple(None if length is None else self._body(length) for length in lengths)
        if self._pieces:
            raise PeerError("more pieces came than the message has")
        self._size_bytes = 0
        return Frame({name: value for name, value in frame.head.items() if name != _LENGTHS}, bodies)

    def _keep(self, frame: Frame) -> None:
        piece = frame.bodies[0] if len(frame.bodies) == 1 else None
        if piece is None or not frame.size_bytes:
            raise PeerError("a piece of a message came without its bytes")
        self._size_bytes += frame.size_bytes
        if self._size_bytes > FRAME_BYTES_MAX:
            raise PeerError(f"the pieces of a message have more than {FRAME_BYTES_MAX:,} bytes")
        self._pieces.append(piece)

    def _body(self, length: object) -> bytes:
        pieces = []
        missing = length if type(length) is int else -1
        while missing > 0 and self._pieces:
            pieces.append(self._pieces.popleft())
            missing -= memoryview(pieces[-1]).nbytes
        if missing:
            raise PeerError(f"the pieces of a message do not make a body of {length!r} bytes")
        return b"".join(pieces)
