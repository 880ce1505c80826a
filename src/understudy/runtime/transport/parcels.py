"""Parcels between the processes of a partitioned flow, as frames and back.

A parcel of messages becomes a frame for each run of buckets and for each other message, with the edge in
every head; each of these is a parcel again at the other end.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from understudy.core.errors import PeerError
from understudy.core.flux_view import FluxView
from understudy.core.parcels import Attach, Here, Parcel, Relay, Say, Welcome
from understudy.core.partition import Copy
from understudy.runtime.transport.wire import Frame, frames_of, messages_of

_MESSAGES = {"data", "ack", "reverse", "csync", "psync", "pause", "paused", "folded"}


def frames_of_parcel(parcel: Parcel, since: FluxView | None = None) -> list[Frame]:
    """The parcel as frames, in order. Of a view, only what has changed since one that the receiver knows."""
    match parcel:
        case Say(sender, to, serial, messages):
            edge = _edge(sender, to, serial)
            return [Frame({**frame.head, **edge}, frame.bodies) for frame in frames_of(messages, 0)]
        case Relay(view):
            return [Frame({"kind": "relay", "view": view.to_json(since)})]
        case Here(copy, epoch):
            return [Frame({"kind": "here", "copy": str(copy), "epoch": epoch})]
        case Welcome(sender, to, serial, version):
            return [Frame({"kind": "welcome", **_edge(sender, to, serial), "version": version})]
        case Attach():
            stands = {
                "epoch": parcel.epoch,
                "to_epoch": parcel.to_epoch,
                "through": parcel.through,
                "version": parcel.version,
                "checkpoint": parcel.checkpoint,
            }
            return [Frame({"kind": "attach", **_edge(parcel.sender, parcel.to, parcel.serial), **stands})]


def _edge(sender: Copy, to: Copy, serial: int) -> dict[str, Any]:
    return {"from": str(sender), "to": str(to), "serial": serial}


def parcel_of(frame: Frame, known: Mapping[int, FluxView] = MappingProxyType({})) -> Parcel:
    """The parcel that a frame holds; `known` are the views of which it may tell only the changes. Raises
    `PeerError` if it is none.
    """
    head = frame.head
    try:
        if frame.kind in _MESSAGES:
            return Say(*_edge_of(head), tuple(messages_of(frame)))
        match frame.kind:
            case "relay":
                return Relay(FluxView.from_json(str(head["view"]), known))
            case "here":
                return Here(Copy.of(head["copy"]), _int(head["epoch"]))
            case "welcome":
                return Welcome(*_edge_of(head), _int(head["version"]))
            case "attach":
                sender, to, serial = _edge_of(head)
                names = ("through", "version", "checkpoint")
                stands = [_int(head[name]) for name in names]
                return Attach(sender, _int(head["epoch"]), to, _int(head["to_epoch"]), serial, *stands)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        shown = str(dict(head))[:200]
        raise PeerError(f"a malformed {frame.kind!r} parcel: {shown} ({problem})") from problem
    raise PeerError(f"there is no parcel of the kind {frame.kind!r}")


def _edge_of(head: Mapping[str, Any]) -> tuple[Copy, Copy, int]:
    return Copy.of(head["from"]), Copy.of(head["to"]), _int(head["serial"])


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value
