"""A node as a process: a replica, its engine, its mover and its two connections to the gateway.

A node begins as a member without a seat. The view that seats it makes it a replica, active from the start
or a standby. It connects when it has state. The first word on a connection says where its state stands, and
is said in the same step in which the machines learn that the connection is there: whatever they say later
follows it on the same connection. A node that finds its seat gone ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from understudy.core.bucket import Bucket
from understudy.core.controller import MoveFailed
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
    Message,
    MoverReady,
    PairAvailable,
    PairFailed,
    Processed,
    Produced,
    SeatConfirmed,
    SnapshotTaken,
)
from understudy.core.replica import Replica
from understudy.core.view import Activated, Avail, Fail, Status, View, changes
from understudy.sim.checkers import bounded
from understudy.sim.engine import SimEngine, Snapshot
from understudy.sim.items import (
    ABOVE,
    BELOW,
    CONTROLLER,
    ENDS,
    GATEWAY,
    Acting,
    Computed,
    Conn,
    Connect,
    Down,
    Hello,
    Item,
    Lost,
    MoveBroken,
    Moved,
    MoverMet,
    NewView,
    Report,
    Setup,
    SnapshotLinked,
    Token,
    Up,
    WantState,
)

if TYPE_CHECKING:
    from understudy.core.buffer import Acks
    from understudy.sim.world import World


class Node:
    """One process that can hold one replica, once."""

    def __init__(self, name: str, setup: Setup) -> None:
        self.name = name
        self.setup = setup
        self.view: View | None = None
        self.token: Token | None = None
        self.replica: Replica | None = None
        self.engine = SimEngine(lag_buckets=setup.lag_buckets, dense=_dense(setup.acks))
        self.conns: dict[str, Conn | None] = {}
        self.connections = 0
        self._wanted: WantState | None = None
        self._requested = False
        self._met: WantState | None = None
        self._moving_to: WantState | None = None
        self._snapshot: Snapshot | None = None

    def accepts(self, item: Item, world: World) -> bool:
        return world.gateway.up if isinstance(item, Connect) else True

    def take(self, item: Item, world: World) -> None:
        match item:
            case Down(conn, message):
                if self.conns.get(conn.end) == conn:
                    self._drive(message, world)
            case Computed(buckets):
                self._computed(buckets, world)
            case NewView(view):
                self._view(view, world)
            case Lost(conn):
                if self.conns.get(conn.end) == conn:
                    self.conns[conn.end] = None
                    self._drive(IngressDown() if conn.end == BELOW else EgressDown(), world)
                    world.post(("connect", self.name, conn.end), Connect(conn.end))
            case Connect(end):
                self._connect(end, world)
            case SnapshotLinked():
                self._drive(SnapshotTaken(), world)
            case WantState():
                # A call from a standby that is no more may come late.
                if self._wanted is None or item.epoch > self._wanted.epoch:
                    self._wanted = item
                self._meet(world)
            case MoverMet(epoch):
                if self._current(self._wanted) and self._wanted is not None and self._wanted.epoch == epoch:
                    # A snapshot goes to the one whose mover was met, not to whoever has called since.
                    self._met = self._wanted
                    self._drive(MoverReady(), world)
            case Moved(snapshot, state):
                self.engine.restore(snapshot)
                world.observe(self.name, "installed", version=state.version, through=state.through)
                self._drive(state, world)
                for end in ENDS:
                    world.post(("connect", self.name, end), Connect(end))
            case MoveBroken():
                self._move_failed(world)
            case _:
                raise TypeError(f"a node does not take {item}")

    # --- driving the machine -----------------------------------------------------------------------------

    def _drive(self, event: object, world: World) -> None:
        assert self.replica is not None
        self._carry_out(self.replica.handle(event), world)

    def _carry_out(self, instructions: Iterable[Instruction], world: World) -> None:
        for instruction in instructions:
            match instruction:
                case SendIngress(message):
                    self._send(BELOW, message, world)
                case SendEgress(message):
                    self._send(ABOVE, message, world)
                case Process(buckets):
                    world.observe(self.name, "handed", after=self.engine.position, buckets=buckets)
                    world.reference.handed(self.name, self.engine.position, buckets)
                    world.post(("engine", self.name), Computed(buckets))
                case RequestMove(sending):
                    self._request_move(sending, world)
                case TakeSnapshot(version, through):
                    self._snapshot = self.engine.snapshot()
                    self._moving_to = self._met
                    world.observe(self.name, "snapshot", version=version, through=through)
                    world.post(("engine", self.name), SnapshotLinked())
                case ShipState(state):
                    if self._moving_to is not None and self._current(self._moving_to):
                        assert self._snapshot is not None
                        standby = self._moving_to.node
                        if standby in world.nodes:
                            world.post(("mover", standby, self.name), Moved(self._snapshot, state))
                    self._moving_to = None
                case _:
                    raise TypeError(f"a node cannot carry out {instruction}")

    def _send(self, end: str, message: Message, world: World) -> None:
        conn = self.conns.get(end)
        if conn is None or conn not in world.open:
            return
        assert self.token is not None
        world.post(("link", GATEWAY, conn.name), Up(conn, self.token, message))

    def _computed(self, buckets: tuple[Bucket, ...], world: World) -> None:
        for bucket in self.engine.advance(buckets):
            world.observe(self.name, "produced", bucket=bucket)
            world.reference.produced(self.name, bucket)
            self._drive(Produced(bucket), world)
        self._drive(Processed(), world)

    def _connect(self, end: str, world: World) -> None:
        if self.replica is None or self.conns.get(end) is not None:
            return
        assert self.token is not None and self.view is not None
        self.connections += 1
        conn = Conn(self.name, end, self.connections)
        self.conns[end] = conn
        world.open.add(conn)
        s_cons = self.replica.s_cons
        stands = (s_cons.handed, s_cons.version, s_cons.checkpoint)
        hello = Hello(conn, self.token, self.view, *stands)
        world.post(("link", GATEWAY, conn.name), hello)
        self._drive(IngressUp() if end == BELOW else EgressUp(), world)

    # --- views -------------------------------------------------------------------------------------------

    def _view(self, view: View, world: World) -> None:
        old, self.view = self.view, view
        if self.token is None:
            self._first_seen(view, world)
            return
        if not view.holds(self.token.slot, self.name, self.token.epoch) and self.setup.fencing:
            world.fence(self.name)
            return
        for conn in self.conns.values():
            if conn is not None and conn in world.open:
                world.post(("link", GATEWAY, conn.name), Acting(conn, self.token, view))
        self._changed(old, view, world)

    def _changed(self, old: View | None, view: View, world: World) -> None:
        assert self.token is not None
        other = self.token.slot.other
        for change in changes(old, view):
            match change:
                case Fail(slot) if slot is other:
                    # A call from the next standby may have come before this view; it stays.
                    self._requested = False
                    self._drive(PairFailed(), world)
                case Avail(slot) if slot is other:
                    self._drive(PairAvailable(), world)
                    self._meet(world)
                case Activated(slot) if slot is self.token.slot:
                    self._drive(SeatConfirmed(), world)

    def _first_seen(self, view: View, world: World) -> None:
        slot = view.slot_of(self.name)
        if slot is None:
            if view.declared_dead(self.name):
                world.fence(self.name)
            return
        seat = view.seats[slot]
        self.token = Token(slot, self.name, seat.epoch)
        self.replica = Replica(
            self.name,
            seat.status,
            acks=self.setup.acks,
            group_buckets_max=self.setup.group_buckets_max,
            output_buckets_max=self.setup.output_buckets_max,
        )
        if seat.status is Status.ACTIVE:
            for end in ENDS:
                world.post(("connect", self.name, end), Connect(end))
            # It may be late: the other one may already be dead, and a standby be waiting.
            self._changed(None, view, world)
        else:
            self._drive(PairAvailable(), world)

    # --- moving state ------------------------------------------------------------------------------------

    def awaits_state_from(self, name: str) -> bool:
        """Whether this is a standby without state that sits beside the named node."""
        if self.replica is None or self.token is None or self.view is None:
            return False
        beside = self.view.seats[self.token.slot.other].node
        return self.replica.status is Status.STDBY and beside == name

    def _current(self, wanted: WantState | None) -> bool:
        """Whether this is the standby that sits in the other slot."""
        if wanted is None or self.view is None or self.token is None:
            return False
        return self.view.holds(self.token.slot.other, wanted.node, wanted.epoch)

    def _request_move(self, sending: bool, world: World) -> None:
        if sending:
            self._requested = True
            self._meet(world)
            return
        assert self.view is not None and self.token is not None
        active = self.view.seats[self.token.slot.other].node
        if active in world.nodes:
            world.post(("mover", active, self.name), WantState(self.name, self.token.epoch))
        else:
            self._move_failed(world)

    def _meet(self, world: World) -> None:
        if self._requested and self._wanted is not None and self._current(self._wanted):
            self._requested = False
            world.post(("mover", self.name, self.name), MoverMet(self._wanted.epoch))

    def _move_failed(self, world: World) -> None:
        if self.replica is not None and self.replica.status is Status.STDBY and self.token is not None:
            report = Report(MoveFailed(self.token.slot, self.token.epoch))
            world.post(("report", CONTROLLER, self.name), report)

    def check(self) -> None:
        if self.replica is None:
            return
        self.replica.check()
        bounded(f"s-prod of {self.name}", len(self.replica.s_prod.buffer), self.setup.held_max)
        bounded(f"s-cons of {self.name}", len(self.replica.s_cons.queue), self.setup.ingress_buckets_max + 1)


def _dense(acks: Acks) -> bool:
    # Acknowledged one by one, numbers must be the same in both replicas.
    return acks.value == "each"
