"""A host: one process's share of a flow, and its edges to the shares of all others.

A node hosts the copies that the view seats on it; the gateway hosts the ends, sources and sinks. A host owns
the machines of its copies and sees to everything between them and the network that is not I/O: it seats and
unseats copies as views say, opens edges when both ends are ready, passes messages to the machine they are
for, and leaves out what comes over edges that are no more. Two copies on one host talk in the same way; its
driver gives such parcels back in turn.

Who may speak: an edge is opened only by the holder of its seat in the newest view (node, copy and seat epoch
must match), and every message names its edge's serial. A copy whose seat is taken away is dropped with its
edges. That is all the fencing there is, so a node may hold a copy again later, under another epoch.

*When an edge is opened.* The connection must stand and both copies must have their state. The consumer tries
when it gets its state, when a connection comes up, when it hears of a new seat, and when a producer says that
it is `Here`, which a producer does when it gets its state. Whatever comes last causes the attempt that
succeeds, so nothing has to be repeated by the clock.

*Views* come from the controller, and ahead of what others do because of them; the newest counts, and some are
never seen (`core.view.changes` makes up for that). Only the first must come from the controller; one that
came ahead of it is kept until then, since its sender counts on its being known.

*Suspicion.* A process that this host needs and cannot reach is reported to the controller: `suspect_ms` after
its connection broke, unless it stands again by then, and `absent_ms` after it was first needed if it never
stood. A peer that breaks the protocol is cut off, and reported as well once that has happened
`CUTS_MAX` times: making the connection again would only repeat it.

With `isolated`, copies of one replica talk only to copies of that replica, as in the paper's cluster pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.messages import Attached, Data, Detached, From
from understudy.core.errors import BrokenInvariant, PeerError, require
from understudy.core.host.limits import Limits, Timing
from understudy.core.host.parcels import (
    Attach,
    Await,
    Began,
    Cut,
    Dispatch,
    FetchState,
    Here,
    HostEvent,
    HostInstruction,
    Inside,
    Leave,
    Lend,
    Offering,
    Parcel,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Relay,
    Request,
    Say,
    Snap,
    Start,
    Tell,
    Unlend,
    ViewSeen,
    Welcome,
    Work,
)
from understudy.core.host.places import GATEWAY, Places
from understudy.core.host.resident import Opened, Resident, ends_of, resident_of
from understudy.core.machine import Machine
from understudy.core.replica.events import (
    Ask,
    AskAgainLater,
    Asked,
    AtEdge,
    CaughtUp,
    CopyInstruction,
    DropSnapshot,
    Fetch,
    Installed,
    KeepSnapshot,
    MoveFailed,
    Offer,
    Offered,
    Process,
    Produced,
    SendTo,
    StandbyGone,
    TakeSnapshot,
)
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.changes import Activated, Fail, changes
from understudy.core.view.events import CopyCaughtUp, CopyMoveFailed, CopySuspected
from understudy.core.view.view import Status, View

#: A peer that was cut off this often for breaking the protocol is suspected.
CUTS_MAX = 3


class Host(Machine[HostEvent, HostInstruction]):
    """A host that has seen no view hosts nothing. `delivered` says through which number each sink holds its
    output already.
    """

    def __init__(
        self,
        name: str,
        topology: Topology,
        limits: Limits | None = None,
        *,
        timing: Timing | None = None,
        delivered: Mapping[str, BucketId] | None = None,
        isolated: bool = False,
    ) -> None:
        super().__init__(name)
        self.topology = topology
        self.limits = limits or Limits()
        self.timing = timing or Timing()
        self.places = Places(topology, isolated)
        self.residents: dict[Copy, Resident] = {}
        self._delivered = dict(delivered or {})
        self._up: dict[str, int] = {name: 0}
        #: The greatest serial of a connection to each process so far.
        self._newest: dict[str, int] = {}
        self._told_view: dict[str, int] = {}
        #: The newest view that came from another process before the first from the controller.
        self._ahead: View | None = None
        self._awaited: set[str] = set()
        self._cuts: dict[str, int] = {}
        self._serial = 0
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
            for partition, end in resident.machine.ends.items():
                found.update(filter(None, (self.places.node_of(Copy(partition, r)) for r in end.status)))
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
                if self._up.get(node) == serial:
                    self._from_peer(node, serial, parcel)
            case Inside(copy, epoch, inner):
                resident = self._resident(copy, epoch)
                if resident is not None:
                    self._drive(resident, inner)
                    if isinstance(inner, Installed):
                        self._connect(resident)
            case Began(copy, epoch):
                resident = self._resident(copy, epoch)
                if resident is not None:
                    self._carry_out(resident, resident.machine.begin())
                    self._connect(resident)
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

    def _told(self, event: HostEvent) -> object:
        match event:
            case ParcelFrom(node, _, Say(sender, to, _, Data(buckets)), cause):
                return f"Data {_span(buckets)} {sender} > {to}, {node}#{cause}"
            case ParcelFrom(node, _, Relay(view), cause):
                return f"view {view.epoch}, {node}#{cause}"
            case Inside(copy, epoch, Produced(shares)):
                runs = ", ".join(f"{_span(buckets)} > {partition}" for partition, buckets in shares)
                return f"Produced {copy}@{epoch}: {runs}"
            case Inside(copy, epoch, Installed(attempt, state)):
                return f"Installed {copy}@{epoch}: attempt {attempt}, version {state.version}"
            case ViewSeen(view):
                return f"view {view.epoch}"
        return event

    def _resident(self, copy: Copy, epoch: int) -> Resident | None:
        found = self.residents.get(copy)
        return found if found is not None and found.epoch == epoch else None

    # --- views -------------------------------------------------------------------------------------------

    def _see(self, view: View) -> None:
        if self.view is None or view.epoch > self.view.epoch:
            self._expect_follows(view)
            self._turn_to(view)

    def _expect_follows(self, view: View) -> None:
        """Raise `BrokenInvariant` unless this view is of this flow and can come after the newest one."""
        known = set(self.topology.partitions)
        require(view.partitions.keys() == known, f"view {view.epoch} has other partitions than this flow")
        for partition, seats in self.view.partitions.items() if self.view is not None else ():
            changes(seats, view.partitions[partition])

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
            # A producer may have said that it is here before this host had heard of its seat.
            for producer in resident.producers:
                if resident.begun and producer not in resident.tried:
                    self._try(resident, producer)
        for node in sorted(self.needed - self._up.keys() - self._awaited):
            self._await(node, self.timing.absent_ms)

    def _follow(self, resident: Resident, old: View, new: View) -> None:
        for partition, end in resident.machine.ends.items():
            if partition in self.topology.ends or old.partitions[partition] is new.partitions[partition]:
                continue
            for change in changes(old.partitions[partition], new.partitions[partition]):
                if change.replica not in end.status:
                    continue
                if isinstance(change, Fail):
                    # All that the dead one said and that has not arrived is void.
                    resident.edges.pop(Copy(partition, change.replica), None)
                    resident.tried.pop(Copy(partition, change.replica), None)
                self._drive(resident, AtEdge(partition, change))
        own = resident.copy.partition
        if own not in self.topology.ends and not self.places.isolated:
            for change in changes(old.partitions[own], new.partitions[own]):
                waited = old.partitions[own].seats[change.replica].status is Status.STDBY
                if change.replica != resident.copy.replica and waited:
                    self._drive(resident, StandbyGone())
                elif change == Activated(resident.copy.replica):
                    self._carry_out(resident, resident.machine.activated())

    def _take_seat(self, copy: Copy) -> None:
        resident = self.residents[copy] = resident_of(copy, self.places, self.limits)
        if self.places.waits(copy, self.name, resident.epoch):
            self._out.append(Await(copy, resident.epoch))
            self._out.append(SetTimer(("stuck", copy, resident.epoch), self.timing.stuck_ms))
            self._carry_out(resident, resident.machine.borrow())
        else:
            self._out.append(Start(copy, resident.epoch))

    def _take_ends(self) -> None:
        for resident in ends_of(self.places, self.limits, self._delivered):
            self.residents[resident.copy] = resident
        for resident in list(self.residents.values()):
            self._carry_out(resident, resident.machine.begin())
            self._connect(resident)

    # --- connections -------------------------------------------------------------------------------------

    def _peer_up(self, node: str, serial: int) -> None:
        if node == self.name:
            self._out.append(Cut(node, serial, f"{node} is the name of this process", breach=True))
            return
        if serial <= self._newest.get(node, 0):
            # Its caller gave this one up before it made the next; it was only slow to arrive.
            self._out.append(Cut(node, serial, "a newer connection took its place"))
            return
        if node in self._up:
            self._out.append(Cut(node, self._up[node], "a newer connection took its place"))
            self._lose(node)
        self._newest[node] = self._up[node] = serial
        self._told_view.pop(node, None)
        for resident in self.residents.values():
            self._try_all(resident, node)
            if node in self.places.partners(resident.copy.partition):
                # A standby asked in vain as long as it could not reach the copy that lends.
                self._carry_out(resident, resident.machine.ask_again())

    def _peer_down(self, node: str, serial: int) -> None:
        if self._up.get(node) != serial:
            return
        require(node != self.name, "a host is always connected to itself")
        self._lose(node)
        if node in self.needed:
            self._await(node, self.timing.suspect_ms)

    def _lose(self, node: str) -> None:
        del self._up[node]
        for resident in self.residents.values():
            for copy in [copy for copy, edge in resident.edges.items() if edge.node == node]:
                self._close(resident, copy)

    def _await(self, node: str, delay_ms: int) -> None:
        self._awaited.add(node)
        self._out.append(SetTimer(("absent", node), delay_ms))

    def _timer(self, key: object) -> None:
        match key:
            case ("absent", str(node)):
                self._awaited.discard(node)
                if node in self.needed and node not in self._up:
                    self._suspect(node)
                    self._await(node, self.timing.absent_ms)
            case ("ask", Copy() as copy, int(epoch)):
                resident = self._resident(copy, epoch)
                if resident is not None:
                    self._carry_out(resident, resident.machine.ask_again())
            case ("stuck", Copy() as copy, int(epoch)):
                resident = self._resident(copy, epoch)
                told = resident.machine.stuck(self.timing.stuck_ms) if resident is not None else None
                if resident is not None and told is not None:
                    self._out.append(SetTimer(key, self.timing.stuck_ms))
                    self._carry_out(resident, told)
            case _:
                raise BrokenInvariant(f"no timer {key} was set")

    def _suspect(self, node: str) -> None:
        assert self.view is not None
        for copy in self.view.copies_on(node):
            self._out.append(Tell(CopySuspected(copy, self.view.seat(copy).epoch, self.name)))

    # --- edges -------------------------------------------------------------------------------------------

    def _connect(self, resident: Resident) -> None:
        """The copy has its state: open its edges, and let its consumers know that they may open theirs."""
        if not resident.begun:
            return
        self._try_all(resident)
        above = resident.machine.above
        consumers = above.outlets if above is not None else {}
        nodes = {self.places.node_of(Copy(p, r)) for p, outlet in consumers.items() for r in outlet.status}
        for node in sorted(filter(None, nodes)):
            self._dispatch(node, Here(resident.copy, resident.epoch))

    def _try_all(self, resident: Resident, node: str | None = None) -> None:
        if resident.begun:
            for producer in resident.producers:
                if node is None or node == self.places.node_of(producer):
                    self._try(resident, producer)

    def _try(self, resident: Resident, producer: Copy) -> None:
        node = self.places.node_of(producer)
        if node is None or node not in self._up or producer in resident.edges:
            return
        self._serial += 1
        resident.tried[producer] = Opened(self._serial, node)
        through = resident.taken_from(producer)
        attach = Attach(
            resident.copy, resident.epoch, producer, self.places.seat_epoch(producer), self._serial, through
        )
        self._dispatch(node, attach)

    def _close(self, resident: Resident, copy: Copy) -> None:
        del resident.edges[copy]
        self._drive(resident, AtEdge(copy.partition, Detached(copy.replica)))

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
            self._cuts[node] = self._cuts.get(node, 0) + 1
            if self._cuts[node] >= CUTS_MAX:
                self._cuts[node] = 0
                self._suspect(node)

    def _arrived(self, node: str, parcel: Parcel) -> None:
        match parcel:
            case Say(sender, to, serial, message):
                speaks_to = self.residents.get(to)
                if speaks_to is not None and speaks_to.edges.get(sender) == Opened(serial, node):
                    self._drive(speaks_to, AtEdge(sender.partition, From(sender.replica, message)))
            case Relay(view):
                self._relayed(node, view)
            case Here(copy, epoch):
                if self.places.sits(copy, node, epoch):
                    for resident in self.residents.values():
                        if resident.begun and copy in resident.producers:
                            self._try(resident, copy)
            case Attach():
                self._attach(node, parcel)
            case Welcome():
                self._welcome(node, parcel)
            case Request(sender, epoch, to, attempt):
                lender = self.residents.get(to)
                own = sender.partition == to.partition
                if lender is not None and own and self.places.waits(sender, node, epoch):
                    self._drive(lender, Asked(sender, epoch, attempt))
            case Offering(sender, epoch, to, to_epoch, attempt, version):
                borrower = self._resident(to, to_epoch)
                own = sender.partition == to.partition
                if borrower is not None and own and self.places.sits(sender, node, epoch):
                    self._drive(borrower, Offered(sender, attempt, version))

    def _relayed(self, node: str, view: View) -> None:
        known = self.view or self._ahead
        newest = NOTHING if known is None else known.epoch
        follows = view.epoch > newest
        if follows:
            try:
                self._expect_follows(view)
            except BrokenInvariant as problem:
                raise PeerError(f"view {view.epoch} does not follow {newest}: {problem}") from problem
        # It need not be told what it has told.
        self._told_view[node] = max(self._told_view.get(node, 0), view.epoch)
        if follows and self.view is None:
            self._ahead = view
        elif follows:
            try:
                self._turn_to(view)
            except PeerError as problem:
                # The view follows, so this is no fault of the peer.
                raise BrokenInvariant(str(problem)) from problem

    def _attach(self, node: str, parcel: Attach) -> None:
        resident = self._resident(parcel.to, parcel.to_epoch)
        if resident is None or not resident.begun or not self.places.sits(parcel.sender, node, parcel.epoch):
            # It will try again when what is missing has come.
            return
        outlets = resident.machine.above.outlets if resident.machine.above is not None else {}
        if parcel.sender.partition not in outlets:
            raise PeerError(f"{parcel.sender} takes nothing from {parcel.to}")
        outlet, replica = outlets[parcel.sender.partition], parcel.sender.replica
        if outlet.outdated(replica, parcel.through):
            # It tried before this copy had its state, and is to try again with its present number.
            self._dispatch(node, Here(resident.copy, resident.epoch))
            return
        outlet.expect(replica, parcel.through)
        resident.edges[parcel.sender] = Opened(parcel.serial, node)
        produced = resident.produced_for(parcel.sender)
        self._dispatch(node, Welcome(parcel.to, parcel.sender, parcel.serial, produced))
        stands = Attached(replica, parcel.through)
        self._drive(resident, AtEdge(parcel.sender.partition, stands))

    def _welcome(self, node: str, parcel: Welcome) -> None:
        resident = self.residents.get(parcel.to)
        opened = Opened(parcel.serial, node)
        if resident is None or resident.tried.get(parcel.sender) != opened:
            return
        del resident.tried[parcel.sender]
        resident.edges[parcel.sender] = opened
        stands = Attached(parcel.sender.replica, parcel.through)
        self._drive(resident, AtEdge(parcel.sender.partition, stands))

    # --- what copies ask for -----------------------------------------------------------------------------

    def _drive(self, resident: Resident, event: object) -> None:
        self._carry_out(resident, resident.machine.handle(event))

    def _carry_out(self, resident: Resident, instructions: Iterable[CopyInstruction]) -> None:
        copy, epoch = resident.copy, resident.epoch
        for instruction in instructions:
            match instruction:
                case SendTo(to, message):
                    edge = resident.edges.get(to)
                    if edge is not None:
                        self._dispatch(edge.node, Say(copy, to, edge.serial, message))
                case Process(buckets):
                    self._out.append(Work(copy, epoch, buckets))
                case TakeSnapshot(version):
                    self._out.append(Snap(copy, epoch, version))
                case KeepSnapshot(state):
                    self._out.append(Lend(copy, epoch, state))
                case DropSnapshot(version):
                    self._out.append(Unlend(copy, epoch, version))
                case Offer(standby, to_epoch, attempt, version):
                    node = self.places.node_of(standby)
                    if node is not None:
                        self._dispatch(node, Offering(copy, epoch, standby, to_epoch, attempt, version))
                case Ask(attempt):
                    self._ask(resident, attempt)
                case AskAgainLater():
                    self._out.append(SetTimer(("ask", copy, epoch), self.timing.ask_ms))
                case Fetch(lender, attempt, version):
                    node = self.places.node_of(lender)
                    require(node is not None, f"{lender} offered its state and has no seat")
                    assert node is not None
                    self._out.append(FetchState(copy, epoch, node, lender, attempt, version))
                case CaughtUp():
                    self._out.append(Tell(CopyCaughtUp(copy, epoch)))
                case MoveFailed(why):
                    self._out.append(Tell(CopyMoveFailed(copy, epoch, why)))

    def _ask(self, resident: Resident, attempt: int) -> None:
        """Ask an active copy for its state: another one with every attempt."""
        assert self.view is not None
        copy = resident.copy
        seats = self.view.partitions[copy.partition].seats
        active = [r for r, seat in enumerate(seats) if seat.status is Status.ACTIVE]
        if not active:
            self._carry_out(resident, resident.machine.give_up("no copy holds the state any more"))
            return
        reached = [r for r in active if seats[r].node in self._up]
        if reached:
            lender = reached[(attempt - 1) % len(reached)]
            to = Copy(copy.partition, lender)
            self._dispatch(seats[lender].node, Request(copy, resident.epoch, to, attempt))

    def _dispatch(self, node: str, parcel: Parcel) -> None:
        if node not in self._up:
            return
        if self.view is not None and node != self.name and self._told_view.get(node, 0) < self.view.epoch:
            self._told_view[node] = self.view.epoch
            self._out.append(Dispatch(node, Relay(self.view)))
        self._out.append(Dispatch(node, parcel))

    def check(self) -> None:
        for resident in self.residents.values():
            resident.machine.check()
            for copy, edge in resident.edges.items():
                if edge.node not in self._up:
                    raise BrokenInvariant(f"an edge to {copy} stands without its connection")
                end = resident.machine.end_towards(copy.partition)
                if end is None or copy.replica not in end.status:
                    raise BrokenInvariant(f"{copy} is no neighbour")


def _span(buckets: Sequence[Bucket]) -> str:
    """A run of buckets by its numbers, for a story, which also tells of what was rejected."""
    return f"{buckets[0].number}..{buckets[-1].number}" if buckets else "no bucket"
