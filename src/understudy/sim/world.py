"""A world: processes, and channels between them. It knows no time.

Everything that is under way waits in a channel: a message on a connection, a view on its way to a process, a
group in an engine, a write in a sink. Channels are FIFO. One step takes the head of one channel and gives it
to the one process that owns the channel, which changes nobody but itself and posts further items. So a run
is a sequence of channels, and whoever chooses the sequence decides what kind of run it is: virtual time and
a seed (`understudy.sim.timed`), or every possible choice (`understudy.sim.explore`).

A connection that breaks loses the end of what is in flight; after the rest each end finds `Lost`, each in
its own time. A process that crashes loses its state and its connections, save what it keeps on disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from understudy.core.buffer import Acks
from understudy.core.controller import MemberJoined, MemberLeft, MoveFailed, Suspected
from understudy.core.view import Slot, Status
from understudy.sim.checkers import Reference
from understudy.sim.control import ControllerProcess
from understudy.sim.gateway import Gateway
from understudy.sim.items import (
    CONTROLLER,
    GATEWAY,
    Channel,
    Conn,
    Item,
    Lost,
    MoveBroken,
    NewView,
    Report,
    Restart,
    Seal,
    Setup,
)
from understudy.sim.node import Node


class Process(Protocol):
    """What every process of a world can do."""

    name: str

    def take(self, item: Item, world: World) -> None: ...

    def accepts(self, item: Item, world: World) -> bool: ...

    def check(self) -> None: ...


class World:
    """Processes and channels. `step` makes one thing happen; the faults are methods beside it."""

    def __init__(self, setup: Setup, reference: Reference) -> None:
        self.setup = setup
        self.reference = reference
        self.gateway = Gateway(setup)
        self.controller = ControllerProcess(setup)
        self.nodes: dict[str, Node] = {}
        self.channels: dict[Channel, tuple[Item, ...]] = {}
        self.open: set[Conn] = set()
        self.joined = 0

    def begin(self) -> None:
        """Start the nodes and the source."""
        self.post(("source", GATEWAY), Seal())
        for _ in range(self.setup.nodes):
            self.add_node()

    # --- running -----------------------------------------------------------------------------------------

    def process(self, name: str) -> Process | None:
        if name == GATEWAY:
            return self.gateway
        return self.controller if name == CONTROLLER else self.nodes.get(name)

    def post(self, channel: Channel, item: Item) -> None:
        self.channels[channel] = (*self.channels.get(channel, ()), item)

    def head(self, channel: Channel) -> Item | None:
        """What the channel's owner could take now."""
        queue = self.channels.get(channel)
        process = self.process(channel[1])
        if not queue or process is None or not process.accepts(queue[0], self):
            return None
        return queue[0]

    def step(self, channel: Channel) -> None:
        """Let the owner of the channel take its head."""
        item, *rest = self.channels[channel]
        if rest:
            self.channels[channel] = tuple(rest)
        else:
            del self.channels[channel]
        process = self.process(channel[1])
        if process is not None:
            process.take(item, self)
            process.check()

    def keep(self, count: int) -> int:
        """How much of what is in flight survives a break. A world without chance keeps nothing."""
        return 0

    def commit_buckets(self, waiting: int) -> int:
        """How many of the waiting writes the sink commits together with the first one."""
        return 0

    def may_seal(self, sealed: int) -> bool:
        """Whether the source has another bucket ready, so many being sealed."""
        return True

    @property
    def controller_answers(self) -> bool:
        return True

    def observe(self, by: str, record: str, /, **facts: object) -> None:
        """A process tells what it did."""

    # --- connections -------------------------------------------------------------------------------------

    def sever(self, conn: Conn, ends: Iterable[str]) -> None:
        """Break the connection; the processes named in `ends` will notice."""
        if conn not in self.open:
            return
        self.open.discard(conn)
        for channel, owner in ((up(conn), GATEWAY), (down(conn), conn.node)):
            in_flight = self.channels.pop(channel, ())
            if owner in ends:
                self.channels[channel] = in_flight[: self.keep(len(in_flight))]
                self.post(channel, Lost(conn))

    # --- nodes -------------------------------------------------------------------------------------------

    def add_node(self) -> str:
        """A new process, with a name never used before, joins as a member without a seat."""
        self.joined += 1
        node = Node(f"n{self.joined}", self.setup)
        self.nodes[node.name] = node
        self.post(("report", CONTROLLER, "members"), Report(MemberJoined(node.name, self.joined)))
        return node.name

    def remove_node(self, name: str) -> None:
        """The process is gone: it crashed, or ended because it was fenced."""
        node = self.nodes.pop(name)
        for conn in node.conns.values():
            if conn is not None:
                self.sever(conn, (GATEWAY,))
        for channel in [c for c in self.channels if c[1] == name]:
            del self.channels[channel]
        for other in self.nodes.values():
            self.break_move(other.name, name)
        self.post(("report", CONTROLLER, "members"), Report(MemberLeft(name)))

    def kill(self, name: str) -> None:
        self.observe(name, "fault", what="kill", target=name)
        self.remove_node(name)

    def fence(self, name: str) -> None:
        """A process found that it was declared dead. It ends."""
        self.observe(name, "fenced")
        self.remove_node(name)

    def break_move(self, standby: str, active: str) -> None:
        """The movers lose each other; what was under way between them is gone."""
        node = self.nodes.get(standby)
        if node is None or not node.awaits_state_from(active):
            return
        for channel in (("mover", standby, active), ("mover", active, standby)):
            self.channels.pop(channel, None)
        self.post(("mover", standby, active), MoveBroken())

    # --- the gateway -------------------------------------------------------------------------------------

    def crash_gateway(self) -> None:
        self.observe(GATEWAY, "fault", what="kill", target=GATEWAY)
        writes = self.channels.pop(("disk", GATEWAY), ())
        self.gateway.disk.keep(writes[: self.keep(len(writes))], self)
        for conn in sorted(self.open, key=lambda conn: conn.name):
            self.sever(conn, (conn.node,))
        for channel in [c for c in self.channels if c[1] == GATEWAY]:
            del self.channels[channel]
        reports = self.channels.pop(("report", CONTROLLER, GATEWAY), ())
        if kept := reports[: self.keep(len(reports))]:
            self.channels[("report", CONTROLLER, GATEWAY)] = kept
        self.gateway.crash()
        self.post(("restart", GATEWAY), Restart())

    # --- what may fail without destroying the last copy of the state -------------------------------------

    def accused(self) -> set[str]:
        """Whom the controller is about to declare dead."""
        names: set[str] = set()
        view = self.controller.view
        for channel, items in self.channels.items():
            if channel[:2] != ("report", CONTROLLER):
                continue
            for item in items:
                match item:
                    case Report(Suspected(node, _, _) | MemberLeft(node)):
                        names.add(node)
                    case Report(MoveFailed(slot, epoch)) if view is not None:
                        seat = view.seats[slot]
                        if seat.epoch == epoch:
                            names.add(seat.node)
        return names

    def complete(self, name: str) -> bool:
        """Whether this node holds the whole state, in a seat that it will keep.

        The paper's own rules drop what is sent, so what was in flight when the state moved is in no copy:
        with them a newcomer counts only once it is folded in.
        """
        node, view = self.nodes.get(name), self.controller.view
        if node is None or node.token is None or view is None or node.replica is None:
            return False
        token = node.token
        if self.setup.acks is Acks.EACH and view.seats[token.slot].status is not Status.ACTIVE:
            return False
        return node.replica.status is not Status.STDBY and view.holds(token.slot, token.node, token.epoch)

    def survives_without(self, name: str) -> bool:
        """Whether some other node holds the whole state."""
        accused = self.accused()
        return any(each != name and each not in accused and self.complete(each) for each in self.nodes)

    def may_accuse(self, name: str) -> bool:
        """Whether a detector may speak. A false alarm about the last copy is what no pair survives."""
        return name not in self.nodes or self.survives_without(name)

    def seated(self, slot: Slot) -> str | None:
        """Who sits alive in the slot, as the controller has it."""
        view = self.controller.view
        seat = view.seats.get(slot) if view is not None else None
        return seat.node if seat is not None and seat.alive else None

    def publish(self, view: object, to: Iterable[str]) -> None:
        for name in to:
            self.post(("view", name), NewView(view))  # type: ignore[arg-type]


def up(conn: Conn) -> Channel:
    return ("link", GATEWAY, conn.name)


def down(conn: Conn) -> Channel:
    return ("link", conn.node, conn.name)
