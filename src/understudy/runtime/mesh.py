"""The mesh: one connection between any two processes of a flow that need one.

Nodes call the gateway, and of two nodes the one with the greater name calls the other, so there is never a
question of which connection counts. A connection that breaks is made again for as long as both ends are
needed. Everything that happens to a connection comes to the owner in order, on the owner's actor, with the
connection's serial: up, then parcels, then down. The owner's host decides which of two connections to one
process counts. A peer that breaks the protocol is cut off and kept out for a growing time
(`transport.breaches`).

Views are large in a large flow and go ahead of many messages. So over a connection that has carried a view
before, in either direction, only the changes since then are sent.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from understudy.core.errors import PeerError
from understudy.core.host.parcels import Parcel, Relay
from understudy.core.host.places import GATEWAY
from understudy.core.view.view import View
from understudy.runtime.actor import Actor
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.breaches import Breaches
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint, NotYet
from understudy.runtime.transport.link import Link
from understudy.runtime.transport.parcels import frames_of, parcel_of
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

#: Frames that are not of the protocol: how a node is doing; that it is to save its state now.
STATS, SAVE = "stats", "save"
BESIDE = (STATS, SAVE)
PURPOSE = "peer"
VIEWS_KEPT = 64
KEPT_OUT = "it broke the protocol not long ago"


def purpose_of(version: int) -> str:
    """What a connection is for. Processes of two versions of a flow have nothing to say to each other."""
    return PURPOSE if version == 1 else f"{PURPOSE}@{version}"


class MeshOwner(Protocol):
    """The owner of the mesh. All calls come on the owner's actor."""

    def peer_up(self, node: str, serial: int) -> None: ...

    def peer_down(self, node: str, serial: int) -> None: ...

    def parcel_arrived(self, node: str, serial: int, parcel: Parcel, cause: int) -> None: ...

    def frame_arrived(self, node: str, frame: Frame) -> None:
        """A frame that is not of the protocol: one of `BESIDE`."""


class RecentViews:
    """The views that this process has sent or received lately, and which of them each other process has."""

    def __init__(self) -> None:
        self.known: dict[int, View] = {}
        self._common: dict[str, int] = {}

    def forget(self, node: str) -> None:
        """What a process had before its connection broke does not count: it may have begun anew."""
        self._common.pop(node, None)

    def exchanged(self, node: str, view: View) -> View | None:
        """A view goes to a process, or came from it. Returns an earlier one that both know, if there is one.

        The other side may be ahead, and keeps no more than this one: what is old here may be forgotten there.
        """
        before = self._common.get(node, 0)
        self._common[node] = max(before, view.epoch)
        self.known[view.epoch] = view
        oldest = max(self.known) - VIEWS_KEPT
        for epoch in [epoch for epoch in self.known if epoch < oldest]:
            del self.known[epoch]
        recent = 0 < before <= view.epoch <= before + VIEWS_KEPT // 2
        return self.known.get(before) if recent else None


class Mesh:
    """The connections of one process. Methods with a leading underscore, `want`, `send`, `tell` and `cut`
    belong to the actor.
    """

    def __init__(
        self,
        name: str,
        settings: RunSettings,
        actor: Actor,
        owner: MeshOwner,
        address_of: Callable[[str], str | None],
    ) -> None:
        self._name = name
        self._settings = settings
        self._actor = actor
        self._owner = owner
        self._address_of = address_of
        self._links: dict[str, Link] = {}
        #: The connections that stand, by their serials.
        self._channels: dict[str, dict[int, Channel]] = {}
        self._views = RecentViews()
        #: Attempts of this process, so that a later one is known as such at the other end.
        self._attempts = itertools.count(1)
        self._breaches = Breaches(settings.silence_s)
        self._ended = False

    def listen_on(self, endpoint: Endpoint) -> None:
        endpoint.handle(purpose_of(self._settings.version), self._admit)

    def end(self) -> None:
        """Close everything. Called when the actor has ended."""
        self._ended = True
        for link in self._links.values():
            link.end()
        for channels in list(self._channels.values()):
            for channel in list(channels.values()):
                channel.close("this process is going away")

    # --- on the owner's actor ----------------------------------------------------------------------------

    def want(self, nodes: set[str]) -> None:
        """Keep connections to these processes, and no others of this side's making."""
        for node in nodes - self._links.keys():
            if self._calls(node) and not self._ended:
                self._links[node] = Link(
                    node,
                    self,
                    lambda node=node: self._address_for_link(node),  # type: ignore[misc]
                    epoch=0,
                    beat_s=self._settings.beat_s,
                    silence_s=self._settings.silence_s,
                    purpose=purpose_of(self._settings.version),
                    attempts=self._attempts,
                )
                self._links[node].start()
        for node in self._links.keys() - nodes:
            self._links.pop(node).end()

    def _calls(self, node: str) -> bool:
        return self._name != GATEWAY and (node == GATEWAY or self._name > node)

    def send(self, node: str, parcel: Parcel, cause: int) -> None:
        channel = self._newest(node)
        if channel is not None:
            since = self._views.exchanged(node, parcel.view) if isinstance(parcel, Relay) else None
            channel.send(*frames_of(parcel, cause, since))

    def tell(self, node: str, frame: Frame) -> None:
        channel = self._newest(node)
        if channel is not None:
            channel.send(frame)

    def cut(self, node: str, serial: int, why: str, breach: bool = False) -> None:
        channel = self._channels.get(node, {}).get(serial)
        if channel is not None:
            channel.close(why, broke_protocol=breach)

    def _newest(self, node: str) -> Channel | None:
        channels = self._channels.get(node)
        return channels[max(channels)] if channels else None

    def _opened(self, node: str, channel: Channel, serial: int) -> None:
        if channel.closed:
            return
        if self._ended:
            # It was let in just before.
            channel.close("this process is going away")
            return
        if self._keep_out(node):
            channel.close(KEPT_OUT)
            return
        self._channels.setdefault(node, {})[serial] = channel
        self._views.forget(node)
        self._owner.peer_up(node, serial)

    def _arrived(self, node: str, channel: Channel, serial: int, frame: Frame) -> None:
        if self._channels.get(node, {}).get(serial) is not channel or channel.closed:
            return
        if frame.kind in BESIDE:
            self._owner.frame_arrived(node, frame)
            return
        try:
            parcel, cause = parcel_of(frame, self._views.known)
        except PeerError as problem:
            channel.close(f"it broke the protocol: {problem}", broke_protocol=True)
            return
        if isinstance(parcel, Relay):
            self._views.exchanged(node, parcel.view)
        self._owner.parcel_arrived(node, serial, parcel, cause)

    def _closed(self, node: str, channel: Channel | None, serial: int, why: str) -> None:
        if channel is None or self._channels.get(node, {}).get(serial) is not channel:
            return
        del self._channels[node][serial]
        if channel.broke_protocol:
            self._breaches.note(node, time.monotonic())
        log.info("the connection to %s is gone: %s", node, why)
        self._owner.peer_down(node, serial)

    def _keep_out(self, node: str) -> bool:
        return self._breaches.keep_out(node, time.monotonic())

    # --- connections that others make --------------------------------------------------------------------

    def _admit(self, hello: Mapping[str, Any]) -> Accepted:
        node, serial = hello.get("node"), hello.get("serial")
        if not isinstance(node, str) or not node or type(serial) is not int:
            raise PeerError("a process must name itself and number its attempts")
        if self._keep_out(node):
            raise NotYet(KEPT_OUT)
        box: list[Channel] = []

        def opened(channel: Channel) -> None:
            box.append(channel)
            self._actor.post(self._opened, node, channel, serial)

        return Accepted(
            on_open=opened,
            on_frame=lambda frame: self._actor.post(self._arrived, node, box[0], serial, frame),
            on_closed=lambda why: self._actor.post(self._closed, node, box[0] if box else None, serial, why),
            name=node,
        )

    # --- connections of this side's making: called from their links' threads -----------------------------

    def link_hello(self, end: str) -> Mapping[str, Any]:
        return {"node": self._name}

    def _address_for_link(self, node: str) -> str | None:
        return None if self._keep_out(node) else self._address_of(node)

    def link_up(self, end: str, channel: Channel, serial: int) -> None:
        self._actor.post(self._opened, end, channel, serial)

    def link_frame(self, end: str, channel: Channel, serial: int, frame: Frame) -> None:
        self._actor.post(self._arrived, end, channel, serial, frame)

    def link_down(self, end: str, channel: Channel | None, serial: int, why: str) -> None:
        self._actor.post(self._closed, end, channel, serial, why)

    def link_fenced(self, end: str, why: str) -> None:
        log.warning("%s does not let this process in: %s", end, why)
