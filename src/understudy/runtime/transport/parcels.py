"""Parcels between the processes of a flow, as frames and back.

A run of buckets becomes as many frames as it takes, each with the edge in its head; each of these is a parcel
again at the other end. Every other parcel is one frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from understudy.core.bucket import Bucket
from understudy.core.edge.messages import Ack, Data, Held, Message, Pause, Paused, Reverse
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.host.parcels import (
    Attach,
    Here,
    Lacking,
    Offering,
    Parcel,
    Relay,
    Request,
    Say,
    Welcome,
)
from understudy.core.shape.partition import Copy
from understudy.core.view.view import View
from understudy.runtime.transport.wire import MESSAGE_BUCKETS_MAX, MESSAGE_BYTES_MAX, Bodies, Frame

_MESSAGES = {"data", "ack", "held", "reverse", "pause", "paused"}


def frames_of(parcel: Parcel, cause: int = 0, since: View | None = None) -> list[Frame]:
    """The parcel as frames, in order. Of a view, only the changes since one that the receiver knows."""
    match parcel:
        case Say(sender, to, serial, Data(buckets)):
            edge = {**_edge(sender, to, serial), "cause": cause}
            return [_data_frame(run, edge) for run in runs_of(buckets)]
        case Say(sender, to, serial, message):
            return [Frame({**_said(message), **_edge(sender, to, serial), "cause": cause})]
        case Relay(view):
            return [Frame({"kind": "relay", "view": view.to_json(since), "cause": cause})]
        case Here(copy, epoch):
            return [Frame({"kind": "here", "copy": str(copy), "epoch": epoch, "cause": cause})]
        case Welcome(sender, to, serial, through):
            edge = _edge(sender, to, serial)
            return [Frame({"kind": "welcome", **edge, "through": through, "cause": cause})]
        case Lacking(sender, to, serial):
            return [Frame({"kind": "lacking", **_edge(sender, to, serial), "cause": cause})]
        case Attach(sender, epoch, to, to_epoch, serial, through):
            stands = {"epoch": epoch, "to_epoch": to_epoch, "through": through, "cause": cause}
            return [Frame({"kind": "attach", **_edge(sender, to, serial), **stands})]
        case Request(sender, epoch, to, attempt, holds):
            asked = {"from": str(sender), "epoch": epoch, "to": str(to), "attempt": attempt, "holds": holds}
            return [Frame({"kind": "request", **asked, "cause": cause})]
        case Offering(sender, epoch, to, to_epoch, attempt, version):
            seats: dict[str, Any] = {"from": str(sender), "epoch": epoch, "to": str(to), "to_epoch": to_epoch}
            offer = {"attempt": attempt, "version": version, "cause": cause}
            return [Frame({"kind": "offering", **seats, **offer})]


def parcel_of(frame: Frame, known: Mapping[int, View] = MappingProxyType({})) -> tuple[Parcel, int]:
    """The parcel that a frame holds, and its cause; `known` are the views of which it may tell only changes.

    Raises `PeerError` if it is none.
    """
    head = frame.head
    try:
        return _parcel(frame, head, known), _int(head["cause"])
    except (KeyError, TypeError, ValueError, AttributeError, BrokenInvariant) as problem:
        shown = str(dict(head))[:200]
        raise PeerError(f"a malformed {frame.kind!r} parcel: {shown} ({problem})") from problem


def _parcel(frame: Frame, head: Mapping[str, Any], known: Mapping[int, View]) -> Parcel:
    if frame.kind in _MESSAGES:
        return Say(*_edge_of(head), _message(frame, head))
    match frame.kind:
        case "relay":
            return Relay(View.from_json(str(head["view"]), known))
        case "here":
            return Here(Copy.of(head["copy"]), _int(head["epoch"]))
        case "welcome":
            return Welcome(*_edge_of(head), _int(head["through"]))
        case "lacking":
            return Lacking(*_edge_of(head))
        case "attach":
            sender, to, serial = _edge_of(head)
            through = _int(head["through"])
            return Attach(sender, _int(head["epoch"]), to, _int(head["to_epoch"]), serial, through)
        case "request":
            sender, to = Copy.of(head["from"]), Copy.of(head["to"])
            holds = None if head["holds"] is None else _int(head["holds"])
            return Request(sender, _int(head["epoch"]), to, _int(head["attempt"]), holds)
        case "offering":
            sender, to = Copy.of(head["from"]), Copy.of(head["to"])
            numbers = [_int(head[name]) for name in ("to_epoch", "attempt", "version")]
            return Offering(sender, _int(head["epoch"]), to, *numbers)
    raise PeerError(f"there is no parcel of the kind {frame.kind!r}")


def _message(frame: Frame, head: Mapping[str, Any]) -> Message:
    match frame.kind:
        case "data":
            numbers = [_int(number) for number in head["numbers"]]
            if len(numbers) != len(frame.bodies):
                raise PeerError(f"{len(numbers)} numbers came with {len(frame.bodies)} bodies")
            return Data(tuple(_bucket(n, body) for n, body in zip(numbers, frame.bodies, strict=True)))
        case "ack":
            return Ack(_int(head["through"]))
        case "held":
            return Held(_int(head["through"]))
        case "reverse":
            return Reverse(_int(head["through"]))
        case "pause":
            return Pause()
    return Paused()


def _said(message: Message) -> dict[str, Any]:
    match message:
        case Ack(through):
            return {"kind": "ack", "through": through}
        case Held(through):
            return {"kind": "held", "through": through}
        case Reverse(through):
            return {"kind": "reverse", "through": through}
        case Pause():
            return {"kind": "pause"}
        case Paused():
            return {"kind": "paused"}
    raise PeerError(f"{message} has no form on the wire")


def runs_of(buckets: tuple[Bucket, ...]) -> Iterator[tuple[Bucket, ...]]:
    """The buckets in runs that fit into a frame each; one empty run if there are none."""
    first = size_bytes = 0
    for at, bucket in enumerate(buckets):
        full = size_bytes + bucket.size_bytes > MESSAGE_BYTES_MAX or at - first == MESSAGE_BUCKETS_MAX
        if at > first and full:
            yield buckets[first:at]
            first, size_bytes = at, 0
        size_bytes += bucket.size_bytes
    yield buckets[first:]


def _data_frame(buckets: tuple[Bucket, ...], edge: Mapping[str, Any]) -> Frame:
    bodies = cast(Bodies, tuple(bucket.payload for bucket in buckets))
    return Frame({"kind": "data", "numbers": [bucket.number for bucket in buckets], **edge}, bodies)


def _bucket(number: int, body: Any) -> Bucket:
    return Bucket(number) if body is None else Bucket(number, body, memoryview(body).nbytes)


def _edge(sender: Copy, to: Copy, serial: int) -> dict[str, Any]:
    return {"from": str(sender), "to": str(to), "serial": serial}


def _edge_of(head: Mapping[str, Any]) -> tuple[Copy, Copy, int]:
    return Copy.of(head["from"]), Copy.of(head["to"]), _int(head["serial"])


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value
