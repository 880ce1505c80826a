"""The gateway as a process: ingress and egress, the log of the one and the sink of the other.

Of a gateway only the disk outlives a crash: the log of sealed buckets, trimmed when ingress allows it, and
the sink with its position. A restarted gateway reads the newest view, builds both machines anew from it and
from the disk, and waits for the replicas to connect.

Every message must come from a seat that the gateway's view holds. A view reaches the gateway from the
controller or, ahead of what they do because of it, from the replicas that act on it, whichever is sooner.
Without the second way a `CSync` could overtake the news of the standby that it is about, and nothing would be
kept for that standby.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.buffer import Acks
from understudy.core.controller import FoldedIn as BothFoldedIn
from understudy.core.controller import Suspected
from understudy.core.egress import Egress
from understudy.core.errors import require
from understudy.core.ingress import Ingress
from understudy.core.instructions import Deliver, FoldedIn, Instruction, Send, Trimmed
from understudy.core.messages import Attached, Delivered, Detached, From, Sealed
from understudy.core.view import Fail, Seated, Slot, Status, View, changes
from understudy.sim.checkers import bounded
from understudy.sim.items import (
    ABOVE,
    BELOW,
    CONTROLLER,
    ENDS,
    GATEWAY,
    Acting,
    Conn,
    Down,
    Hello,
    Item,
    Lost,
    NewView,
    Report,
    Restart,
    Seal,
    Setup,
    SuspectNow,
    Token,
    Up,
    Write,
)

if TYPE_CHECKING:
    from understudy.sim.world import World


class Disk:
    """What outlives a gateway."""

    def __init__(self) -> None:
        self.log: tuple[Bucket, ...] = ()
        self.sealed_count = 0
        self.delivered: BucketId = NOTHING

    def keep(self, writes: Iterable[Item], world: World) -> None:
        """Hold these buckets for ever, in one commit."""
        after = self.delivered
        buckets = [write.bucket for write in writes if isinstance(write, Write)]
        for bucket in buckets:
            world.reference.delivered(self.delivered, bucket)
            self.delivered = bucket.number
        if buckets:
            world.observe(GATEWAY, "delivered", after=after, buckets=buckets)


class Gateway:
    """Ingress and egress in one process."""

    def __init__(self, setup: Setup) -> None:
        self.name = GATEWAY
        self.setup = setup
        self.up = True
        self.disk = Disk()
        self.view: View | None = None
        self.conns: dict[tuple[Slot, str], Conn | None] = {}
        self.newest: dict[tuple[Slot, str], tuple[int, int]] = {}
        self.folded: dict[int, frozenset[str]] = {}
        self._build(dict.fromkeys(setup.slots, Status.ACTIVE))

    def _build(self, statuses: dict[Slot, Status]) -> None:
        setup = self.setup
        self.ingress = Ingress(
            statuses, acks=setup.acks, buckets_max=setup.ingress_buckets_max, recovered=self.disk.log
        )
        # Acknowledged on receipt, buckets may wait for a slow sink in any number.
        undelivered_max = setup.held_max if setup.acks is Acks.CUMULATIVE else 100_000
        self.egress = Egress(
            statuses, acks=setup.acks, delivered=self.disk.delivered, undelivered_max=undelivered_max
        )

    def crash(self) -> None:
        self.up = False
        self.view = None
        self.conns = {}
        self.newest = {}
        self.folded = {}

    def accepts(self, item: Item, world: World) -> bool:
        if isinstance(item, Restart):
            return not self.up and world.controller.view is not None and world.controller_answers
        if not self.up:
            return False
        if isinstance(item, Seal):
            return not self.ingress.full and world.may_seal(self.disk.sealed_count)
        if isinstance(item, Hello):
            seen = self.view.epoch if self.view is not None else 0
            return seen > 0 and (self.setup.views_travel or seen >= item.view.epoch)
        return True

    def take(self, item: Item, world: World) -> None:
        match item:
            case Up():
                self._message(item, world)
            case Seal():
                self._seal(world)
            case Write():
                waiting = world.channels.pop(("disk", GATEWAY), ())
                count = world.commit_buckets(len(waiting))
                if waiting[count:]:
                    world.channels[("disk", GATEWAY)] = waiting[count:]
                self.disk.keep((item, *waiting[:count]), world)
                self._above(Delivered(self.disk.delivered), world)
            case Hello():
                self._hello(item, world)
            case Lost(conn):
                self._lost(conn, world)
            case NewView(view):
                self._view(view, world)
            case Acting(conn, token, view):
                if self.setup.views_travel and self.conns.get((token.slot, conn.end)) == conn:
                    self._view(view, world)
            case SuspectNow(token, end):
                self._suspect(token, end, world)
            case Restart():
                self._restart(world)
            case _:
                raise TypeError(f"the gateway does not take {item}")

    # --- driving the machines ----------------------------------------------------------------------------

    def _below(self, event: object, world: World) -> None:
        self._carry_out(self.ingress.handle(event), BELOW, world)

    def _above(self, event: object, world: World) -> None:
        before = self.egress.sender
        instructions = self.egress.handle(event)
        if self.egress.sender is not before and self.egress.sender is not None:
            world.observe(GATEWAY, "sender", slot=self.egress.sender, through=self.egress.received)
        self._carry_out(instructions, ABOVE, world)

    def _carry_out(self, instructions: Iterable[Instruction], end: str, world: World) -> None:
        for instruction in instructions:
            match instruction:
                case Send(slot, message):
                    conn = self.conns.get((slot, end))
                    if conn is not None and conn in world.open:
                        world.post(("link", conn.node, conn.name), Down(conn, message))
                case Deliver(bucket):
                    world.post(("disk", GATEWAY), Write(bucket))
                case Trimmed(through):
                    self.disk.log = tuple(b for b in self.disk.log if b.number > through)
                case FoldedIn(slot):
                    self._folded_in(slot, end, world)
                case _:
                    raise TypeError(f"the gateway cannot carry out {instruction}")

    def _folded_in(self, slot: Slot, end: str, world: World) -> None:
        require(self.view is not None, "a replica was folded in without a view")
        assert self.view is not None
        epoch = self.view.seats[slot].epoch
        self.folded[epoch] = self.folded.get(epoch, frozenset()) | {end}
        if len(self.folded[epoch]) == len(ENDS):
            world.post(("report", CONTROLLER, GATEWAY), Report(BothFoldedIn(slot, epoch)))

    # --- what comes in -----------------------------------------------------------------------------------

    def _seal(self, world: World) -> None:
        inputs = world.reference.inputs
        bucket = inputs[self.disk.sealed_count]
        self.disk.sealed_count += 1
        self.disk.log += (bucket,)
        world.observe(GATEWAY, "sealed", bucket=bucket)
        self._below(Sealed(bucket), world)
        if self.disk.sealed_count < len(inputs):
            world.post(("source", GATEWAY), Seal())

    def _holds(self, token: Token) -> bool:
        held = self.view is not None and self.view.holds(token.slot, token.node, token.epoch)
        return held or not self.setup.fencing

    def _message(self, item: Up, world: World) -> None:
        if self.conns.get((item.token.slot, item.conn.end)) != item.conn:
            return
        if not self._holds(item.token):
            world.sever(item.conn, (item.conn.node,))
            return
        event = From(item.token.slot, item.message)
        if item.conn.end == BELOW:
            self._below(event, world)
        else:
            self._above(event, world)

    def _hello(self, hello: Hello, world: World) -> None:
        slot, end = hello.token.slot, hello.conn.end
        if self.setup.views_travel:
            self._view(hello.view, world)
        if not self._holds(hello.token):
            world.sever(hello.conn, (hello.conn.node,))
            return
        serial = (hello.token.epoch, hello.conn.serial)
        if serial <= self.newest.get((slot, end), (0, 0)):
            # The replica gave this connection up before it made the next; its hello was only slow.
            world.sever(hello.conn, (hello.conn.node,))
            return
        self.newest[slot, end] = serial
        replaced = self.conns.get((slot, end))
        drive = self._below if end == BELOW else self._above
        if replaced is not None:
            world.sever(replaced, (replaced.node,))
            if self.setup.detach_replaced:
                self.conns[slot, end] = None
                drive(Detached(slot), world)
        self.conns[slot, end] = hello.conn
        world.observe(GATEWAY, "attached", slot=slot, end=end)
        drive(Attached(slot, hello.through, hello.version, hello.checkpoint), world)

    def _lost(self, conn: Conn, world: World) -> None:
        slot = next((slot for (slot, end), each in self.conns.items() if each == conn), None)
        if slot is None:
            return
        self.conns[slot, conn.end] = None
        world.observe(GATEWAY, "detached", slot=slot, end=conn.end)
        if conn.end == BELOW:
            self._below(Detached(slot), world)
        else:
            self._above(Detached(slot), world)
        if self.setup.suspicion and self.view is not None:
            token = Token(slot, conn.node, self.view.seats[slot].epoch)
            self._watch(token, conn.end, world)

    def _watch(self, token: Token, end: str, world: World) -> None:
        if self._holds(token):
            world.post(("silence", GATEWAY, token.node, end), SuspectNow(token, end))

    def _suspect(self, token: Token, end: str, world: World) -> None:
        if not self._holds(token) or self.conns.get((token.slot, end)) is not None:
            return
        if world.may_accuse(token.node):
            world.observe(GATEWAY, "suspected", node=token.node)
            report = Report(Suspected(token.node, token.epoch, GATEWAY))
            world.post(("report", CONTROLLER, GATEWAY), report)
        else:
            self._watch(token, end, world)

    # --- views -------------------------------------------------------------------------------------------

    def _view(self, view: View, world: World) -> None:
        if self.view is not None and view.epoch <= self.view.epoch:
            return
        old, self.view = self.view, view
        for change in changes(old, view):
            if isinstance(change, Seated):
                continue
            if isinstance(change, Fail):
                for end in ENDS:
                    conn = self.conns.pop((change.slot, end), None)
                    if conn is not None and self.setup.fencing:
                        world.sever(conn, (conn.node,))
            self._below(change, world)
            self._above(change, world)

    def _restart(self, world: World) -> None:
        view = world.controller.view
        require(view is not None, "a gateway restarted without a view")
        assert view is not None
        self.up = True
        self.view = view
        self._build({slot: seat.status for slot, seat in view.seats.items()})
        if self.disk.sealed_count < len(world.reference.inputs):
            world.post(("source", GATEWAY), Seal())

    def check(self) -> None:
        if not self.up:
            return
        self.ingress.check()
        self.egress.check()
        recovered = len(self.disk.log)
        bounded("ingress", len(self.ingress.buffer), max(self.setup.ingress_buckets_max, recovered))
