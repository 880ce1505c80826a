"""The boundary: ingress and egress as machines, and the connections of the replicas to them.

Everything here runs on one actor. Connections are let in only for a seat that the current view holds: node,
slot and seat epoch must match (`View.holds`), and every message repeats the epoch. When a connection
breaks, the machines are told at once, and the controller gets a suspicion. What the controller decides
comes back as a view.

A view comes from the controller, and from every replica ahead of what it does because of that view, whichever
is sooner. Otherwise the active replica's `CSync` could overtake the news of the standby that it is about, and
what that standby needs would not be kept; and a gateway that is cut off from the coordination service while
the nodes are not would hold up their output. Only the first view must come from the controller: a replica may
have slept through its own burial, and a gateway that has just started could not tell.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from understudy.core.bucket import Bucket, BucketId
from understudy.core.egress import Egress
from understudy.core.errors import BrokenInvariant, Fenced, PeerError
from understudy.core.host import GATEWAY
from understudy.core.ingress import Ingress
from understudy.core.instructions import Deliver, FoldedIn, Instruction, Send, Trimmed
from understudy.core.messages import Attached, Delivered, Detached, From, Message, Sealed
from understudy.core.view import Activated, Fail, Seated, Slot, Status, View, changes
from understudy.runtime.actor import Actor
from understudy.runtime.recording import Recorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint, NotYet
from understudy.runtime.transport.wire import Frame, messages_of

log = logging.getLogger(__name__)

INGRESS = "ingress"
EGRESS = "egress"


class Surroundings(Protocol):
    """What the boundary needs of its process. None of these may block."""

    def deliver(self, bucket: Bucket) -> None: ...

    def trim(self, through: BucketId) -> None: ...

    def room(self, there_is: bool) -> None: ...

    def report(self, kind: str, facts: dict[str, Any]) -> None: ...

    def stats(self, node: str, facts: Mapping[str, Any]) -> None: ...


class Boundary:
    """Ingress and egress of one flow. Methods without a leading underscore may be called from any thread."""

    def __init__(
        self,
        settings: RunSettings,
        actor: Actor,
        surroundings: Surroundings,
        *,
        recorder: Recorder,
        recovered: Sequence[Bucket],
        delivered: BucketId,
    ) -> None:
        self._settings = settings
        self._actor = actor
        self._around = surroundings
        self._recorder = recorder
        self._recovered = recovered
        self._delivered = delivered
        self._waiting: deque[Bucket] = deque()
        self._channels: dict[tuple[Slot, str], Channel] = {}
        self._folded: dict[Slot, set[str]] = {}
        self._absent_since: dict[Slot, float] = {}
        self._newest: dict[tuple[Slot, str], tuple[int, int]] = {}
        self.view: View | None = None
        self.ingress: Ingress | None = None
        self.egress: Egress | None = None

    # --- called by other threads -------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether some replica sends output."""
        return self.egress is not None and self.egress.sender is not None

    @property
    def delivered_through(self) -> BucketId | None:
        """What the sinks hold, as far as the replicas were told."""
        return None if self.egress is None else self.egress.delivered

    def status(self) -> dict[str, Any]:
        """What an operator wants to know of it, as plain data."""
        view, ingress, egress = self.view, self.ingress, self.egress
        return {
            "epoch": view.epoch if view else 0,
            "lost": view.lost if view else None,
            "seats": {
                slot.value: {"node": seat.node, "status": seat.status.value, "epoch": seat.epoch}
                for slot, seat in (view.seats.items() if view else ())
            },
            "sender": egress.sender.value if egress and egress.sender else None,
            "delivered_through": self.delivered_through,
            "buffered_buckets": len(ingress.buffer) if ingress else 0,
            "buffered_bytes": ingress.buffer.size_bytes if ingress else 0,
        }

    def listen_on(self, endpoint: Endpoint) -> None:
        """Answer replicas that connect to either end."""
        for end in (INGRESS, EGRESS):
            endpoint.handle(end, self.admit(end))

    def end(self) -> None:
        """Nothing is left to do: connections end with the endpoint."""

    def on_view(self, view: View) -> None:
        self._actor.post(self._view, view)

    def on_sealed(self, buckets: list[Bucket]) -> None:
        self._actor.post(self._sealed, buckets)

    def on_tick(self) -> None:
        """Call it about once a second: suspicions about replicas that stay away are repeated."""
        self._actor.post(self._suspect_absent)

    def on_delivered(self, through: BucketId) -> None:
        self._actor.post(self._sink_holds, through)

    def admit(self, end: str) -> Callable[[Mapping[str, Any]], Accepted]:
        """The handler for replicas that connect to this end."""

        def handler(hello: Mapping[str, Any]) -> Accepted:
            slot, node, epoch, seen = _claim_of(hello)
            _check_seat(self._newer(seen), slot, node, epoch)
            box: list[Channel] = []

            def opened(channel: Channel) -> None:
                box.append(channel)
                self._actor.post(self._open, slot, end, channel, dict(hello))

            return Accepted(
                on_open=opened,
                on_frame=lambda frame: self._actor.post(self._frame, slot, end, box[0], node, frame),
                on_closed=lambda why: self._actor.post(self._closed, slot, end, box and box[0], node, why),
                name=f"{node} ({slot.value}, {end})",
                epoch=epoch,
            )

        return handler

    def _newer(self, seen: View) -> View:
        """The newer one of this gateway's view and another's."""
        view = self.view
        if view is None:
            raise NotYet("no view has reached the gateway")
        return seen if seen.epoch > view.epoch else view

    # --- on the actor: views -----------------------------------------------------------------------------

    def _view(self, view: View) -> None:
        if self.view is not None and view.epoch <= self.view.epoch:
            return
        old, self.view = self.view, view
        self._recorder.view(view)
        if self.ingress is None or self.egress is None:
            self._begin(view)
            return
        for change in changes(old, view):
            if isinstance(change, Fail):
                self._drop(change.slot, "the controller declared it dead")
                self._folded.pop(change.slot, None)
            self._tell_both(change)
            if isinstance(change, Activated) and change.slot not in self.ingress.sending:
                for end in self._drop(change.slot, "it must attach again as an active replica"):
                    self._handle(end, Detached(change.slot))
        # A dead replica's buckets are gone now, so there may be room.
        self._seal_waiting()

    def _begin(self, view: View) -> None:
        statuses = {slot: seat.status for slot, seat in view.seats.items()}
        self.ingress = Ingress(
            statuses,
            buckets_max=self._settings.input_buckets_max,
            bytes_max=self._settings.input_bytes_max,
            recovered=self._recovered,
        )
        self.egress = Egress(statuses, delivered=self._delivered)
        self._recorder.sealed(self._recovered)
        self._recovered = ()
        self._seal_waiting()

    def _tell_both(self, event: object) -> None:
        if self.ingress is not None and self.egress is not None and not isinstance(event, Seated):
            self._carry_out(INGRESS, self.ingress.handle(event))
            self._carry_out(EGRESS, self.egress.handle(event))

    def _drop(self, slot: Slot, why: str) -> list[str]:
        """Close a slot's connections; returns the ends that had one."""
        ends = [end for end in (INGRESS, EGRESS) if (slot, end) in self._channels]
        for end in ends:
            self._channels.pop((slot, end)).close(why)
        return ends

    # --- on the actor: connections -----------------------------------------------------------------------

    def _open(self, slot: Slot, end: str, channel: Channel, hello: dict[str, Any]) -> None:
        try:
            slot, node, epoch, seen = _claim_of(hello)
            self._relayed(seen)
            _check_seat(self._newer(seen), slot, node, epoch)
            attached = Attached(slot, hello["through"], hello["version"], hello["checkpoint"])
            serial = (int(hello["epoch"]), int(hello["serial"]))
        except (NotYet, PeerError, KeyError, TypeError, ValueError) as problem:
            channel.close(f"not let in: {problem}")
            return
        if channel.closed:
            # Its end was told before it was here to be ended.
            return
        if serial <= self._newest.get((slot, end), (0, 0)):
            # The replica gave this one up before it made the next; its hello was only slow to arrive.
            channel.close("a newer connection is there")
            return
        self._newest[slot, end] = serial
        former = self._channels.pop((slot, end), None)
        if former is not None:
            former.close("a newer connection took its place")
            self._handle(end, Detached(slot))
        self._channels[slot, end] = channel
        self._recorder.attached(slot, end)
        self._guarded(channel, end, attached)

    def _frame(self, slot: Slot, end: str, channel: Channel, node: str, frame: Frame) -> None:
        if self._channels.get((slot, end)) is not channel:
            return
        if frame.kind == "stats":
            self._around.stats(node, frame.head)
            return
        try:
            if frame.kind == "view":
                self._relayed(View.from_json(str(frame.head.get("view"))))
                return
            messages = _messages_of(frame, channel.epoch)
        except PeerError as problem:
            channel.close(f"it broke the protocol: {problem}")
            return
        for message in messages:
            self._guarded(channel, end, From(slot, message))

    def _relayed(self, view: View) -> None:
        """A replica acts on this view. Raises `PeerError` if it cannot follow the one that is here."""
        if self.view is None or view.epoch <= self.view.epoch:
            return
        try:
            changes(self.view, view)
        except BrokenInvariant as problem:
            raise PeerError(f"view {view.epoch} does not follow {self.view.epoch}: {problem}") from problem
        try:
            self._view(view)
        except PeerError as problem:
            # The view is sound, so this is no fault of the peer.
            raise BrokenInvariant(str(problem)) from problem

    def _guarded(self, channel: Channel, end: str, event: object) -> None:
        """Let the machine handle what a peer caused. A peer that breaks the protocol is cut off."""
        if channel.closed:
            return
        try:
            self._handle(end, event)
        except PeerError as problem:
            log.warning("%s broke the protocol: %s", channel.name, problem)
            channel.close(f"it broke the protocol: {str(problem).splitlines()[0]}")

    def _closed(self, slot: Slot, end: str, channel: Channel | None, node: str, why: str) -> None:
        if channel is None or self._channels.get((slot, end)) is not channel:
            return
        del self._channels[slot, end]
        log.info("%s: %s", channel.name, why)
        self._recorder.detached(slot, end)
        self._handle(end, Detached(slot))
        self._around.report("suspected", {"node": node, "epoch": channel.epoch, "by": GATEWAY})

    def _suspect_absent(self) -> None:
        """Report active replicas that stay away: a first report may have come when none could stand in."""
        if self.view is None:
            return
        now = time.monotonic()
        for slot, seat in self.view.seats.items():
            if all((slot, end) in self._channels for end in (INGRESS, EGRESS)):
                self._absent_since.pop(slot, None)
            elif seat.status is Status.ACTIVE:
                since = self._absent_since.setdefault(slot, now)
                if now - since > self._settings.silence_s:
                    self._absent_since[slot] = now
                    self._around.report("suspected", {"node": seat.node, "epoch": seat.epoch, "by": GATEWAY})

    # --- on the actor: data ------------------------------------------------------------------------------

    def _sealed(self, buckets: list[Bucket]) -> None:
        self._waiting.extend(buckets)
        self._seal_waiting()

    def _seal_waiting(self) -> None:
        if self.ingress is not None:
            while self._waiting and not self.ingress.full:
                bucket = self._waiting.popleft()
                self._recorder.sealed([bucket])
                self._carry_out(INGRESS, self.ingress.handle(Sealed(bucket)))
        self._around.room(not self._waiting and not (self.ingress is not None and self.ingress.full))

    def _sink_holds(self, through: BucketId) -> None:
        self._handle(EGRESS, Delivered(through))

    def _handle(self, end: str, event: object) -> None:
        machine = self.ingress if end == INGRESS else self.egress
        if machine is None:
            raise PeerError("nobody may attach before the first view")
        sender = self.egress.sender if self.egress is not None else None
        self._carry_out(end, machine.handle(event))
        if end == INGRESS:
            self._seal_waiting()
        if self.egress is not None and self.egress.sender is not sender and self.egress.sender is not None:
            self._recorder.sender(self.egress.sender, self.egress.received)

    def _carry_out(self, end: str, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(slot, message):
                    channel = self._channels.get((slot, end))
                    if channel is not None:
                        channel.send(message)
                case Deliver(bucket):
                    self._around.deliver(bucket)
                case Trimmed(through):
                    self._around.trim(through)
                case FoldedIn(slot):
                    self._fold_in(slot, end)
                case _:
                    raise AssertionError(f"the gateway cannot carry out {instruction}")

    def _fold_in(self, slot: Slot, end: str) -> None:
        ends = self._folded.setdefault(slot, set())
        ends.add(end)
        if ends == {INGRESS, EGRESS} and self.view is not None:
            self._around.report("folded_in", {"slot": slot.value, "epoch": self.view.seats[slot].epoch})


def _claim_of(hello: Mapping[str, Any]) -> tuple[Slot, str, int, View]:
    """Slot, node and seat epoch that a replica claims, and the view it acts on."""
    try:
        slot, node, epoch, seen = Slot(hello["slot"]), hello["node"], hello["epoch"], hello["view"]
    except (KeyError, ValueError) as problem:
        raise PeerError(f"a replica must name slot, node, epoch and view: {problem}") from problem
    if not isinstance(node, str) or type(epoch) is not int or not isinstance(seen, str):
        raise PeerError(f"a replica must name slot, node, epoch and view, not {node!r}, {epoch!r}, {seen!r}")
    return slot, node, epoch, View.from_json(seen)


def _messages_of(frame: Frame, epoch: int) -> list[Message]:
    if frame.head.get("epoch") != epoch:
        raise PeerError(f"a message of epoch {frame.head.get('epoch')}, its seat has {epoch}")
    return messages_of(frame)


def _check_seat(view: View, slot: Slot, node: str, epoch: int) -> None:
    if not view.holds(slot, node, epoch):
        raise Fenced(f"{node} does not hold {slot.value} since epoch {epoch} any more")
