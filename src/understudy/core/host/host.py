"""A host: one process's share of a flow.

A node hosts the copies that the view seats on it; the gateway hosts the ends, sources and sinks. A host owns
the machines of its copies and sees to everything between them and the network that is not I/O: it seats and
unseats copies as views say, passes parcels to the machine they are for, and carries out what the machines ask
for. `Connections` keeps which processes it can reach, `Edges` joins its copies to those of others, and
`Interpreter` puts what they ask for into the host's terms. Two copies on one host talk in the same way; its
driver gives such parcels back in turn.

*Fencing.* Only the holder of a seat in the newest view opens an edge, and a copy whose seat is taken away is
dropped with its edges. That is all the fencing there is, so a node may hold a copy again later, under another
epoch.

*Views* come from the controller, and ahead of what others do because of them; the newest counts, and some are
never seen (`core.view.changes` makes up for that). Only the first must come from the controller; one that
came ahead of it is kept until then, since its sender counts on its being known.

With `isolated`, copies of one replica talk only to copies of that replica, as in the paper's cluster pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from understudy.core.bucket import BucketId
from understudy.core.errors import BrokenInvariant, PeerError, require
from understudy.core.host.connections import Connections
from understudy.core.host.edges import Edges
from understudy.core.host.interpreter import DUE, Interpreter
from understudy.core.host.limits import Limits, Timing
from understudy.core.host.parcels import (
    Attach,
    Await,
    Began,
    Cut,
    Dispatch,
    Here,
    HostEvent,
    HostInstruction,
    Inside,
    Lacking,
    Leave,
    Offering,
    Parcel,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Relay,
    Request,
    Say,
    Start,
    Tell,
    ViewSeen,
    Welcome,
)
from understudy.core.host.places import GATEWAY, Places
from understudy.core.host.resident import Resident, ends_of, resident_of
from understudy.core.host.story import told
from understudy.core.machine import Machine
from understudy.core.replica.events import (
    Asked,
    AtEdge,
    CopyInstruction,
    Installed,
    Offered,
    Received,
    StandbyGone,
)
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.changes import Activated, Fail, changes
from understudy.core.view.events import CopyLacks
from understudy.core.view.view import Status, View


class Host(Machine[HostEvent, HostInstruction]):
    """A host that has seen no view hosts nothing. `delivered` says through which number each sink holds its
    output already, `trimmed` through which number all live copies had taken a source's buckets, and
    `forgotten` through which number its log is gone. With `rests`, its sinks do until they are woken.
    """

    def __init__(
        self,
        name: str,
        topology: Topology,
        limits: Limits | None = None,
        *,
        timing: Timing | None = None,
        delivered: Mapping[str, BucketId] | None = None,
        trimmed: Mapping[str, BucketId] | None = None,
        forgotten: Mapping[str, BucketId] | None = None,
        isolated: bool = False,
        rests: bool = False,
    ) -> None:
        super().__init__(name)
        self.topology = topology
        self.limits = limits or Limits()
        self.timing = timing or Timing()
        self.places = Places(topology, isolated)
        self.connections = Connections(name, self.places, self.timing)
        self.edges = Edges(self.places, self.connections)
        self.interpreter = Interpreter(self.places, self.connections, self.edges, self.timing)
        self.residents: dict[Copy, Resident] = {}
        self._delivered = dict(delivered or {})
        self._trimmed = dict(trimmed or {})
        self._forgotten = dict(forgotten or {})
        self._rests = rests
        #: Whether the state of copies is saved in a store.
        self.saved = self.timing.save_ms > 0
        require(not (isolated and self.saved), "isolated replicas are a baseline, and save nothing")
        #: The newest view that came from another process before the first from the controller.
        self._ahead: View | None = None
        self._out: list[HostInstruction] = []

    # --- reading -----------------------------------------------------------------------------------------

    @property
    def view(self) -> View | None:
        return self.places.view

    @property
    def needed(self) -> set[str]:
        """The other processes that this one needs a connection to."""
        found: set[str] = set()
        for resident in self.residents.values():
            found.update(filter(None, map(self.places.node_of, resident.neighbours)))
            found.update(self.places.partners(resident.copy.partition))
        return found - {self.name}

    def end(self, name: str) -> Replica | None:
        """A source or a sink that is hosted here."""
        found = self.residents.get(Copy(Partition(name)))
        return None if found is None else found.machine

    # --- the one way in ----------------------------------------------------------------------------------

    def _handle(self, event: HostEvent) -> list[HostInstruction]:
        self._out = []
        match event:
            case ParcelFrom(node, serial, parcel):
                if self.connections.counts(node, serial):
                    self._from_peer(node, serial, parcel)
            case Inside(copy, epoch, inner):
                resident = self._resident(copy, epoch)
                if resident is not None:
                    self._drive(resident, inner)
                    if isinstance(inner, Installed):
                        self._begun(resident)
                    elif isinstance(inner, Received):
                        self._out += self.edges.open_untried(resident)
            case Began(copy, epoch, saved):
                resident = self._resident(copy, epoch)
                if resident is not None:
                    self._carry_out(resident, resident.machine.begin(saved))
                    self._begun(resident)
            case ViewSeen(view):
                ahead, self._ahead = self._ahead, None
                self._see(ahead if ahead is not None and ahead.epoch > view.epoch else view)
            case PeerUp(node, serial):
                self._peer_up(node, serial)
            case PeerDown(node, serial):
                self._peer_down(node, serial)
            case TimerFired(key):
                self._timer(key)
        return self._out

    def _begun(self, resident: Resident) -> None:
        self._out += self.edges.connect(resident)
        if self.saved and resident.begun:
            self._out.append(SetTimer(("save", resident.copy, resident.epoch), self.timing.save_ms))
        if self.timing.ship_ms:
            for node in self.places.partners(resident.copy.partition):
                self._out += self.connections.dispatch(node, Here(resident.copy, resident.epoch))
            resident.machine.lending.paced = True
            self._out.append(SetTimer(("ship", resident.copy, resident.epoch), self.timing.ship_ms))

    def _told(self, event: HostEvent) -> object:
        return told(event)

    def _resident(self, copy: Copy, epoch: int) -> Resident | None:
        found = self.residents.get(copy)
        return found if found is not None and found.epoch == epoch else None

    # --- views -------------------------------------------------------------------------------------------

    def _see(self, view: View) -> None:
        if self.view is None or view.epoch > self.view.epoch:
            self.places.expect_follows(view)
            self._turn_to(view)

    def _turn_to(self, view: View) -> None:
        old, self.places.view = self.view, view
        if old is None and self.name == GATEWAY:
            self._take_ends()
        if old is not None:
            for resident in list(self.residents.values()):
                if self.places.sits(resident.copy, self.name, resident.epoch):
                    self._follow(resident, old, view)
                else:
                    del self.residents[resident.copy]
                    self._out.append(Leave(resident.copy, resident.epoch))
        for copy in view.copies_on(self.name):
            if copy not in self.residents:
                self._take_seat(copy)
        for resident in self.residents.values():
            self._out += self.edges.open_untried(resident)
        self._out += self.connections.await_missing(self.needed)

    def _follow(self, resident: Resident, old: View, new: View) -> None:
        for partition, end in resident.machine.ends.items():
            if partition in self.topology.ends or old.partitions[partition] is new.partitions[partition]:
                continue
            for change in changes(old.partitions[partition], new.partitions[partition]):
                if change.replica not in end.status:
                    continue
                if isinstance(change, Fail):
                    self.edges.drop(resident, Copy(partition, change.replica))
                self._drive(resident, AtEdge(partition, change))
        own = resident.copy.partition
        if own not in self.topology.ends and not self.places.isolated:
            for change in changes(old.partitions[own], new.partitions[own]):
                waited = old.partitions[own].seats[change.replica].status in (Status.STDBY, Status.BACKUP)
                if change.replica != resident.copy.replica and waited:
                    self._drive(resident, StandbyGone(Copy(own, change.replica)))
                elif change == Activated(resident.copy.replica):
                    self._carry_out(resident, resident.machine.activated())
                if isinstance(change, Activated) and resident.machine.backs_up:
                    # The copy that takes over may have said that it is here before this host had heard of it.
                    self._carry_out(resident, resident.machine.ask_again())
        if own not in self.topology.ends:
            resident.machine.saves = self.saved and self.places.saves(resident.copy)

    def _take_seat(self, copy: Copy) -> None:
        waits = self.places.waits(copy, self.name, self.places.seat_epoch(copy))
        backup = waits and self.timing.ship_ms > 0
        resident = self.residents[copy] = resident_of(
            copy, self.places, self.limits, saved=self.saved, backup=backup
        )
        if waits:
            self._out.append(Await(copy, resident.epoch))
            self._out.append(SetTimer(("stuck", copy, resident.epoch), self.timing.stuck_ms))
            self._carry_out(resident, resident.machine.borrow(to_hold=backup))
        else:
            self._out.append(Start(copy, resident.epoch))

    def _take_ends(self) -> None:
        logs = self._trimmed, self._forgotten
        for resident in ends_of(
            self.places, self.limits, self._delivered, *logs, saved=self.saved, rest=self._rests
        ):
            self.residents[resident.copy] = resident
        for resident in list(self.residents.values()):
            self._carry_out(resident, resident.machine.begin())
            self._out += self.edges.connect(resident)

    # --- connections -------------------------------------------------------------------------------------

    def _peer_up(self, node: str, serial: int) -> None:
        refused = self.connections.refused(node, serial)
        if refused is not None:
            self._out.append(refused)
            return
        if self.connections.stands(node):
            self._out.append(self.connections.replaced(node))
            self._lose(node)
        self.connections.made(node, serial)
        for resident in self.residents.values():
            self._out += self.edges.open_all(resident, node)
            if node in self.places.partners(resident.copy.partition):
                # A standby asked in vain as long as it could not reach the copy that lends.
                self._carry_out(resident, resident.machine.ask_again())

    def _peer_down(self, node: str, serial: int) -> None:
        if not self.connections.counts(node, serial):
            return
        require(node != self.name, "a host is always connected to itself")
        self._lose(node)
        if node in self.needed:
            self._out.append(self.connections.await_again(node))

    def _lose(self, node: str) -> None:
        self.connections.gone(node)
        for resident in self.residents.values():
            self._at_edges(resident, self.edges.lose(resident, node))

    def _timer(self, key: object) -> None:
        match key:
            case ("absent", str(node)):
                self._out += self.connections.waited(node, needed=node in self.needed)
            case (what, Copy() as copy, int(epoch), *_) if what in DUE:
                resident = self._resident(copy, epoch)
                if resident is not None:
                    self._out += self.interpreter.fired(resident, key)
            case _:
                raise BrokenInvariant(f"no timer {key} was set")

    # --- parcels -----------------------------------------------------------------------------------------

    def _from_peer(self, node: str, serial: int, parcel: Parcel) -> None:
        before = len(self._out)
        try:
            self._arrived(node, parcel)
        except PeerError as problem:
            if node == self.name:
                raise BrokenInvariant(f"this host broke the protocol itself: {problem}") from problem
            # Decided before anything changed, so nothing stands but the end of this connection.
            del self._out[before:]
            self._out.append(Cut(node, serial, str(problem), breach=True))

    def _arrived(self, node: str, parcel: Parcel) -> None:
        match parcel:
            case Say():
                speaks_to = self.residents.get(parcel.to)
                if speaks_to is not None:
                    self._at_edges(speaks_to, self.edges.say(speaks_to, node, parcel))
            case Relay(view):
                self._relayed(node, view)
            case Here(copy, epoch):
                if self.places.sits(copy, node, epoch):
                    for resident in self.residents.values():
                        self._out += self.edges.producer_here(resident, copy)
                        if resident.copy.partition == copy.partition and resident.machine.backs_up:
                            self._carry_out(resident, resident.machine.ask_again())
            case Attach():
                producer = self._resident(parcel.to, parcel.to_epoch)
                if producer is not None:
                    self._at_edges(producer, self.edges.attach(producer, node, parcel))
            case Welcome():
                consumer = self.residents.get(parcel.to)
                if consumer is not None:
                    self._at_edges(consumer, self.edges.welcome(consumer, node, parcel))
            case Lacking(sender, to):
                lacking = self.residents.get(to)
                if lacking is not None and self.edges.lacking(lacking, node, parcel):
                    self._out.append(SetTimer(("try", to, lacking.epoch, sender), self.timing.ask_ms))
                    if not lacking.is_fed_by(sender.partition):
                        self._out.append(Tell(CopyLacks(to, lacking.epoch, sender.partition)))
            case Request(sender, epoch, to, attempt, holds):
                lender = self.residents.get(to)
                own = sender.partition == to.partition
                if lender is not None and own and self.places.waits(sender, node, epoch):
                    self._drive(lender, Asked(sender, epoch, attempt, holds))
            case Offering(sender, epoch, to, to_epoch, attempt, version):
                borrower = self._resident(to, to_epoch)
                own = sender.partition == to.partition
                if borrower is not None and own and self.places.sits(sender, node, epoch):
                    self._drive(borrower, Offered(sender, attempt, version))

    def _relayed(self, node: str, view: View) -> None:
        known = self.view or self._ahead
        newest = 0 if known is None else known.epoch
        follows = view.epoch > newest
        if follows:
            try:
                self.places.expect_follows(view)
            except BrokenInvariant as problem:
                raise PeerError(f"view {view.epoch} does not follow {newest}: {problem}") from problem
        self.connections.knows_view(node, view.epoch)
        if follows and self.view is None:
            self._ahead = view
        elif follows:
            try:
                self._turn_to(view)
            except PeerError as problem:
                # The view follows, so this is no fault of the peer.
                raise BrokenInvariant(str(problem)) from problem

    # --- copies ------------------------------------------------------------------------------------------

    def _at_edges(self, resident: Resident, done: Iterable[Dispatch | AtEdge]) -> None:
        for each in done:
            if isinstance(each, AtEdge):
                self._drive(resident, each)
            else:
                self._out.append(each)

    def _drive(self, resident: Resident, event: object) -> None:
        self._out += self.interpreter.handle(resident, event)

    def _carry_out(self, resident: Resident, instructions: Iterable[CopyInstruction]) -> None:
        self._out += self.interpreter.carry_out(resident, instructions)

    def check(self) -> None:
        for resident in self.residents.values():
            resident.machine.check()
            self.edges.check(resident)
