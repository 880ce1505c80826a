"""A seat taken: a replica machine with its engine and its two links, on one actor.

A node takes a seat when the view gives it one and leaves it when the view no longer holds it. There is no
way back: a node that lost its seat was declared dead, whatever it still has in memory is void, and it
starts over with nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.errors import PeerError
from understudy.core.instructions import (
    Instruction,
    Process,
    RequestMove,
    SendEgress,
    SendIngress,
    ShipState,
    TakeSnapshot,
)
from understudy.core.messages import (
    EgressDown,
    EgressUp,
    IngressDown,
    IngressUp,
    Installed,
    MoverReady,
    PairAvailable,
    PairFailed,
    Processed,
    Produced,
    SeatConfirmed,
    SnapshotTaken,
)
from understudy.core.replica import Replica
from understudy.core.view import Activated, Avail, Fail, Slot, Status, View, changes
from understudy.engine.interface import Snapshot
from understudy.engine.segment import Segment
from understudy.runtime.actor import Actor
from understudy.runtime.node.shipping import Shipping
from understudy.runtime.node.worker import SegmentWork, Worker
from understudy.runtime.recording import Recorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.link import Link
from understudy.runtime.transport.wire import Frame, messages_of

log = logging.getLogger(__name__)

INGRESS, EGRESS = "ingress", "egress"


class SeatTaken:
    """The replica of one node in one seat. Methods may be called from any thread."""

    def __init__(
        self,
        settings: RunSettings,
        name: str,
        slot: Slot,
        view: View,
        *,
        segment: Segment,
        recorder: Recorder,
        address: Callable[[], str | None],
        on_fenced: Callable[[str], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._name = name
        self.slot = slot
        self.epoch = view.seats[slot].epoch
        self._view = view
        self._recorder = recorder
        self._on_fenced = on_fenced
        self._on_failure = on_failure
        self._replica = Replica(
            name,
            view.seats[slot].status,
            group_buckets_max=settings.group_buckets_max,
            group_bytes_max=settings.group_bytes_max,
            output_buckets_max=settings.output_buckets_max,
            output_bytes_max=settings.output_bytes_max,
        )
        self._actor = Actor("replica", on_failure)
        self._worker = Worker(SegmentWork(segment), self)
        self._links = {
            end: Link(
                end,
                self,
                address,
                epoch=self.epoch,
                beat_s=settings.beat_s,
                silence_s=settings.silence_s,
            )
            for end in (INGRESS, EGRESS)
        }
        self._channels: dict[str, Channel] = {}
        self._shipping = Shipping(settings.path / "state" / name / "outgoing")

    @property
    def status(self) -> Status:
        return self._replica.status

    def begin(self) -> None:
        """Connect to the gateway. For a standby, call it after `install`."""
        for link in self._links.values():
            link.start()
        threading.Thread(target=self._tell_stats, name="stats", daemon=True).start()

    def install(self, state: Installed) -> None:
        """The state of a checkpoint is in the engine and in this."""
        self._actor.ask(lambda: self._handle(state))
        self._recorder.installed(state)

    def end(self) -> None:
        """Leave the seat."""
        for link in self._links.values():
            link.end()
        self._worker.end()
        self._actor.end()
        self._worker.join(5)

    # --- views -------------------------------------------------------------------------------------------

    def on_view(self, view: View) -> None:
        self._actor.post(self._new_view, view)

    def _new_view(self, view: View) -> None:
        old, self._view = self._view, view
        if not view.holds(self.slot, self._name, self.epoch):
            self._on_fenced(f"view {view.epoch} gives {self.slot.value} to another node or calls it dead")
            return
        # The gateway hears of the view from the controller too, but must not hear of it after what follows.
        for channel in self._channels.values():
            channel.send(Frame({"kind": "view", "view": view.to_json()}))
        for change in changes(old, view):
            match change:
                case Fail(slot) if slot is not self.slot:
                    self._shipping.drop("the standby is dead")
                    self._handle(PairFailed())
                case Avail(slot) if slot is not self.slot:
                    self._handle(PairAvailable())
                case Activated(slot) if slot is self.slot:
                    self._handle(SeatConfirmed())

    # --- the state mover ---------------------------------------------------------------------------------

    def may_fetch(self, slot: Slot, node: str, epoch: int) -> bool:
        """Whether that node may have this replica's state. None of the seats may have changed since."""
        seat = self._view.seats.get(slot)
        return (
            self._view.holds(slot, node, epoch)
            and seat is not None
            and seat.status is Status.STDBY
            and slot is not self.slot
            and self._replica.status is not Status.STDBY
        )

    @property
    def view_epoch(self) -> int:
        return self._view.epoch

    def mover_met(self, channel: Channel) -> None:
        """A standby's mover is there: take a snapshot for it as soon as the engine stands still."""

        def met() -> None:
            self._shipping.met(channel)
            self._handle(PairAvailable())
            self._handle(MoverReady())

        self._actor.post(met)

    def mover_gone(self, channel: Channel) -> None:
        self._actor.post(self._shipping.gone, channel)

    # --- links -------------------------------------------------------------------------------------------

    def link_hello(self, end: str) -> Mapping[str, Any]:
        def hello() -> dict[str, Any]:
            below, above = self._replica.s_cons, self._replica.s_prod
            seat = {
                "slot": self.slot.value,
                "node": self._name,
                "epoch": self.epoch,
                "view": self._view.to_json(),
            }
            if end == INGRESS:
                return {
                    **seat,
                    "through": below.handed,
                    "version": below.version,
                    "checkpoint": below.checkpoint,
                }
            return {**seat, "through": NOTHING, "version": above.version, "checkpoint": NOTHING}

        return self._actor.ask(hello)

    def link_up(self, end: str, channel: Channel) -> None:
        def up() -> None:
            self._channels[end] = channel
            # The hello may have been said under an older one.
            channel.send(Frame({"kind": "view", "view": self._view.to_json()}))
            self._handle(IngressUp() if end == INGRESS else EgressUp())

        self._actor.post(up)

    def link_frame(self, end: str, channel: Channel, frame: Frame) -> None:
        messages = messages_of(frame)

        def arrived() -> None:
            if self._channels.get(end) is not channel:
                return
            try:
                for message in messages:
                    self._handle(message)
            except PeerError as problem:
                log.warning("the gateway broke the protocol: %s", problem)
                channel.close("it broke the protocol")

        self._actor.post(arrived)

    def link_down(self, end: str, channel: Channel | None, why: str) -> None:
        def down() -> None:
            if channel is not None and self._channels.get(end) is channel:
                del self._channels[end]
                log.info("the %s link is down: %s", end, why)
                self._handle(IngressDown() if end == INGRESS else EgressDown())

        self._actor.post(down)

    def link_fenced(self, end: str, why: str) -> None:
        self._on_fenced(f"the {end} link: {why}")

    # --- the worker --------------------------------------------------------------------------------------

    def produced(self, output: Sequence[Bucket]) -> None:
        self._recorder.produced(output)

        def put() -> None:
            for bucket in output:
                self._handle(Produced(bucket))

        self._actor.post(put)

    def processed(self) -> None:
        self._actor.post(self._handle, Processed())

    def snapshot_taken(self, snapshot: Snapshot, pause_us: int) -> None:
        def taken() -> None:
            self._shipping.taken(snapshot)
            self._recorder.snapshot(self._replica.s_cons.version, snapshot, pause_us)
            self._handle(SnapshotTaken())

        self._actor.post(taken)

    def failed(self, error: BaseException) -> None:
        self._on_failure(error)

    # --- on the actor ------------------------------------------------------------------------------------

    def _handle(self, event: object) -> None:
        self._carry_out(self._replica.handle(event))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SendIngress(message):
                    if INGRESS in self._channels:
                        self._channels[INGRESS].send(message)
                case SendEgress(message):
                    if EGRESS in self._channels:
                        self._channels[EGRESS].send(message)
                case Process(buckets):
                    self._recorder.handed(buckets)
                    self._worker.process(buckets)
                case TakeSnapshot(version):
                    self._worker.snapshot(self._shipping.begin(version))
                case ShipState(state):
                    self._shipping.ship(state)
                case RequestMove():
                    # The movers meet when the standby's asks; nothing needs to be prepared here.
                    pass
                case _:
                    raise AssertionError(f"a node cannot carry out {instruction}")

    # --- stats -------------------------------------------------------------------------------------------

    def _tell_stats(self) -> None:
        while True:
            threading.Event().wait(0.5)
            channel = self._channels.get(EGRESS)
            if channel is None:
                continue
            stats = self._worker.stats
            channel.send(
                Frame(
                    {
                        "kind": "stats",
                        "rows_in": stats.rows_in,
                        "rows_out": stats.rows_out,
                        "groups": stats.groups,
                        "last_group_ms": round(stats.last_group_ms, 1),
                        "last_group_buckets": stats.last_group_buckets,
                        "queued_buckets": len(self._replica.s_cons.queue),
                        "unacked_buckets": len(self._replica.s_prod.buffer),
                        "version": self._replica.s_cons.version,
                    }
                )
            )
