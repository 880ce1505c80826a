"""The edges of a host: how its copies are joined to their producers and consumers over connections.

*When an edge is opened.* The connection must stand and both copies must have their state. The consumer tries
when it gets its state, when a connection comes up, when it hears of a new seat, and when a producer says that
it is `Here`, which a producer does when it gets its state. Whatever comes last causes the attempt that
succeeds, so nothing has to be repeated by the clock. The exception is a producer that is `Lacking` what a
consumer needs which began again from a saved state: the consumer takes that from another copy, and tries
again from time to time. If there is no other copy, the controller hears of it.

*Who may speak.* An edge is opened only by the holder of its seat in the newest view (node, copy and seat
epoch must match), and every message names its edge's serial. What names another one is left out.

Each method is about one copy of this host. It changes the copy's edges and answers in order with the parcels
to dispatch and the events to give to the copy's machine.
"""

from __future__ import annotations

from understudy.core.edge.messages import Attached, Detached, From, Message
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.host.connections import Connections
from understudy.core.host.parcels import Attach, Dispatch, Here, Lacking, Say, Welcome
from understudy.core.host.places import Places
from understudy.core.host.resident import Opened, Resident
from understudy.core.replica.events import AtEdge
from understudy.core.shape.partition import Copy


class Edges:
    """The serial of an attempt to open an edge rises over all copies of this host."""

    def __init__(self, places: Places, connections: Connections) -> None:
        self.places = places
        self.connections = connections
        self._serial = 0

    # --- opening -----------------------------------------------------------------------------------------

    def connect(self, resident: Resident) -> list[Dispatch]:
        """The copy has its state: open its edges, and let its consumers know that they may open theirs."""
        if not resident.begun:
            return []
        done = self.open_all(resident)
        nodes = set(filter(None, map(self.places.node_of, resident.consumers)))
        for node in sorted(nodes):
            done += self.connections.dispatch(node, Here(resident.copy, resident.epoch))
        return done

    def open_all(self, resident: Resident, node: str | None = None) -> list[Dispatch]:
        """Try every edge to a producer, or every one to that process. A backup has these edges, too."""
        done: list[Dispatch] = []
        for producer in resident.producers if resident.machine.holds else ():
            if node is None or node == self.places.node_of(producer):
                done += self._try(resident, producer)
        return done

    def open_untried(self, resident: Resident) -> list[Dispatch]:
        """A producer may have said that it is here before this host had heard of its seat."""
        done: list[Dispatch] = []
        for producer in resident.producers if resident.machine.holds else ():
            if producer not in resident.tried:
                done += self._try(resident, producer)
        return done

    def producer_here(self, resident: Resident, producer: Copy) -> list[Dispatch]:
        """A producer says that it has its state, or may have more to offer than when it was last tried."""
        known = resident.machine.holds and producer in resident.producers
        return self._try(resident, producer) if known else []

    def _try(self, resident: Resident, producer: Copy) -> list[Dispatch]:
        node = self.places.node_of(producer)
        if node is None or not self.connections.stands(node) or producer in resident.edges:
            return []
        self._serial += 1
        resident.tried[producer] = Opened(self._serial, node)
        through = resident.taken_from(producer)
        attach = Attach(
            resident.copy, resident.epoch, producer, self.places.seat_epoch(producer), self._serial, through
        )
        return self.connections.dispatch(node, attach)

    def attach(self, resident: Resident, node: str, parcel: Attach) -> list[Dispatch | AtEdge]:
        """A consumer opens an edge to this copy. Raises `PeerError` if it is none."""
        if not resident.begun or not self.places.sits(parcel.sender, node, parcel.epoch):
            # It will try again when what is missing has come.
            return []
        outlets = resident.machine.above.outlets if resident.machine.above is not None else {}
        if parcel.sender.partition not in outlets:
            raise PeerError(f"{parcel.sender} takes nothing from {parcel.to}")
        outlet, replica = outlets[parcel.sender.partition], parcel.sender.replica
        if outlet.outdated(replica, parcel.through):
            # It tried before this copy had its state, and is to try again with its present number.
            return [*self.connections.dispatch(node, Here(resident.copy, resident.epoch))]
        if outlet.stored and outlet.lacks(parcel.through):
            return [*self.connections.dispatch(node, Lacking(parcel.to, parcel.sender, parcel.serial))]
        outlet.expect(replica, parcel.through)
        resident.edges[parcel.sender] = Opened(parcel.serial, node)
        produced = resident.produced_for(parcel.sender)
        welcome = Welcome(parcel.to, parcel.sender, parcel.serial, produced)
        stands = AtEdge(parcel.sender.partition, Attached(replica, parcel.through))
        return [*self.connections.dispatch(node, welcome), stands]

    def welcome(self, resident: Resident, node: str, parcel: Welcome) -> list[AtEdge]:
        """A producer answers an attempt of this copy."""
        opened = Opened(parcel.serial, node)
        if resident.tried.get(parcel.sender) != opened:
            return []
        del resident.tried[parcel.sender]
        resident.edges[parcel.sender] = opened
        return [AtEdge(parcel.sender.partition, Attached(parcel.sender.replica, parcel.through))]

    def lacking(self, resident: Resident, node: str, parcel: Lacking) -> bool:
        """A producer cannot serve an attempt of this copy; whether the attempt was its last."""
        if resident.tried.get(parcel.sender) != Opened(parcel.serial, node):
            return False
        del resident.tried[parcel.sender]
        return True

    # --- open edges --------------------------------------------------------------------------------------

    def say(self, resident: Resident, node: str, parcel: Say) -> list[AtEdge]:
        """A neighbour says something over an edge."""
        sender = parcel.sender
        if resident.edges.get(sender) != Opened(parcel.serial, node):
            return []
        return [AtEdge(sender.partition, From(sender.replica, parcel.message))]

    def send(self, resident: Resident, to: Copy, message: Message) -> list[Dispatch]:
        """The copy says something to a neighbour; without an edge it is left out."""
        edge = resident.edges.get(to)
        if edge is None:
            return []
        return self.connections.dispatch(edge.node, Say(resident.copy, to, edge.serial, message))

    def lose(self, resident: Resident, node: str) -> list[AtEdge]:
        """The connection to that process is gone, and with it the copy's edges to there."""
        lost = [copy for copy, edge in resident.edges.items() if edge.node == node]
        for copy in lost:
            del resident.edges[copy]
        return [AtEdge(copy.partition, Detached(copy.replica)) for copy in lost]

    def drop(self, resident: Resident, neighbour: Copy) -> None:
        """The neighbour is dead: all that it said and that has not arrived is void."""
        resident.edges.pop(neighbour, None)
        resident.tried.pop(neighbour, None)

    def check(self, resident: Resident) -> None:
        for copy, edge in resident.edges.items():
            if not self.connections.stands(edge.node):
                raise BrokenInvariant(f"an edge to {copy} stands without its connection")
            end = resident.machine.end_towards(copy.partition)
            if end is None or copy.replica not in end.status:
                raise BrokenInvariant(f"{copy} is no neighbour")
