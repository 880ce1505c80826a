"""Known ways to get the protocol wrong, each built into the real machines by a patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.buffer import Buffer
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.merge import Merge
from understudy.core.edge.messages import Ack, From, Pause, Paused, Reverse, Send
from understudy.core.edge.outlet import Outlet, OutletState
from understudy.core.host import host as host_module
from understudy.core.host.connections import Connections
from understudy.core.host.edges import Edges
from understudy.core.host.host import Host
from understudy.core.host.parcels import Attach, Cut, Dispatch, ParcelFrom, Relay
from understudy.core.host.places import Places
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import AskAgainLater, CaughtUp, KeepSnapshot, TakeSnapshot
from understudy.core.replica.movement import Borrowing, Lending
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy
from understudy.core.view.changes import Fail, changes
from understudy.core.view.controller import Controller
from understudy.core.view.view import Status
from understudy.sim.process import Disk

Patch = pytest.MonkeyPatch
NEVER = 2**62

# --- producers and what they keep ------------------------------------------------------------------------


def reserve_nothing(patch: Patch) -> None:
    """Nothing is kept for a newcomer until it attaches."""
    attach = Outlet._attach

    def avail(outlet: Outlet, replica: int) -> None:
        outlet.buffer.floor[replica] = NEVER
        outlet.buffer.sent[replica] = NOTHING
        outlet.status[replica] = Status.STDBY

    def attached(outlet: Outlet, replica: int, through: int) -> None:
        if outlet.buffer.floor[replica] == NEVER:
            outlet.buffer.floor[replica] = through
        attach(outlet, replica, through)

    patch.setattr(Outlet, "_avail", avail)
    patch.setattr(Outlet, "_attach", attached)


def reserve_what_the_fastest_lacks(patch: Patch) -> None:
    """A newcomer is kept what the fastest of the other copies lacks, not the slowest."""

    def reserve(buffer: Buffer, destination: int, like: Sequence[int]) -> None:
        buffer.floor[destination] = max((buffer.floor[other] for other in like), default=buffer.gone_through)
        buffer.sent[destination] = NOTHING

    patch.setattr(Buffer, "reserve", reserve)


def failures_first(patch: Patch) -> None:
    """Of two views, the deaths are handled before the arrivals."""

    def sorted_changes(old: Any, new: Any) -> list[Any]:
        return sorted(changes(old, new), key=lambda change: not isinstance(change, Fail))

    patch.setattr(host_module, "changes", sorted_changes)


def drop_on_first_ack(patch: Patch) -> None:
    """One copy's acknowledgement lets go of what another one has not got."""
    trim = Buffer.trim

    def eager(buffer: Buffer, required: Sequence[int]) -> None:
        furthest = max(required, key=lambda each: buffer.floor[each], default=None)
        trim(buffer, [] if furthest is None else [furthest])

    patch.setattr(Buffer, "trim", eager)
    patch.setattr(Buffer, "check", lambda *_: None)


def drop_when_sent(patch: Patch) -> None:
    """What was sent counts as delivered."""
    sends = Outlet._sends

    def forgetful(outlet: Outlet) -> list[Send]:
        done = sends(outlet)
        for each in done:
            outlet.buffer.ack(each.replica, outlet.buffer.produced_through)
        outlet.buffer.trim(outlet.live)
        return done

    patch.setattr(Outlet, "_sends", forgetful)


def ignore_reverse(patch: Patch) -> None:
    """A copy that is asked to send goes on from what it sent last."""
    patch.setattr(Buffer, "rewind", lambda *_: None)


def rewind_too_little(patch: Patch) -> None:
    rewind = Buffer.rewind
    patch.setattr(Buffer, "rewind", lambda buffer, to, after: rewind(buffer, to, after + 1))


def reverse_as_acknowledgement(patch: Patch) -> None:
    """What a consumer has received counts as taken."""
    handle = Outlet.handle

    def acknowledging(outlet: Outlet, event: object) -> list[Send]:
        done = handle(outlet, event)
        if isinstance(event, From) and isinstance(event.message, Reverse):
            outlet.buffer.ack(event.replica, event.message.through)
            outlet.buffer.trim(outlet.live)
        return done

    patch.setattr(Outlet, "handle", acknowledging)


def move_without_outlets(patch: Patch) -> None:
    """A state is moved without the output that no consumer has acknowledged."""
    state = Outlet.state

    def emptied(outlet: Outlet) -> OutletState:
        return replace(state(outlet), kept=())

    patch.setattr(Outlet, "state", emptied)


def install_as_if_nothing_was_gone(patch: Patch) -> None:
    """A consumer that speaks of an old number is cut off."""
    patch.setattr(Outlet, "outdated", lambda *_: False)


# --- consumers and what they take ------------------------------------------------------------------------


def ack_on_receipt(patch: Patch) -> None:
    data = Inlet._data

    def acknowledging(inlet: Inlet, replica: int, buckets: tuple[Bucket, ...]) -> list[Any]:
        done = data(inlet, replica, buckets)
        return [*done, *(Send(each, Ack(inlet.received)) for each in sorted(inlet.attached) if done)]

    patch.setattr(Inlet, "_data", acknowledging)


def ack_ahead_of_engine(patch: Patch) -> None:
    """A group is acknowledged as far as input is complete, not as far as it was handed on."""
    acknowledge = Consumer._acknowledge

    def ahead(consumer: Consumer) -> list[Any]:
        handed, consumer.merge.handed = consumer.merge.handed, consumer.merge.frontier
        try:
            return acknowledge(consumer)
        finally:
            consumer.merge.handed = handed

    patch.setattr(Consumer, "_acknowledge", ahead)
    patch.setattr(Consumer, "check", lambda _: None)


def sink_acks_before_it_wrote(patch: Patch) -> None:
    init = Consumer.__init__

    def hasty(consumer: Consumer, *args: Any, acks_when_processed: bool = False, **rest: Any) -> None:
        init(consumer, *args, **rest)

    patch.setattr(Consumer, "__init__", hasty)


def await_pauses_of_the_old_connection(patch: Patch) -> None:
    attach = Inlet._attach

    def remembering(inlet: Inlet, replica: int) -> list[Any]:
        pausing = inlet._pausing[replica]
        done = attach(inlet, replica)
        inlet._pausing[replica] = pausing
        return done

    patch.setattr(Inlet, "_attach", remembering)


def take_data_before_paused(patch: Patch) -> None:
    data = Inlet._data

    def eager(inlet: Inlet, replica: int, buckets: tuple[Bucket, ...]) -> list[Any]:
        pausing, inlet._pausing[replica] = inlet._pausing[replica], 0
        try:
            return data(inlet, replica, buckets)
        finally:
            inlet._pausing[replica] += pausing

    patch.setattr(Inlet, "_data", eager)


def keep_the_lost_sender(patch: Patch) -> None:
    """A sender whose connection broke stays the sender."""

    def detach(inlet: Inlet, replica: int) -> list[Any]:
        inlet.attached.discard(replica)
        return []

    patch.setattr(Inlet, "_detach", detach)
    patch.setattr(Inlet, "check", lambda _: None)


def merge_without_waiting(patch: Patch) -> None:
    """What the fastest producer sent counts as complete."""
    put = Merge.put

    def eager(merge: Merge, producer: Any, buckets: Any) -> None:
        put(merge, producer, buckets)
        merge.frontier = max(merge._received.values())

    patch.setattr(Merge, "put", eager)
    patch.setattr(Merge, "check", lambda _: None)
    patch.setattr(Inlet, "_take", lambda inlet, through: _taken(inlet, min(through, inlet.received)))
    patch.setattr(Consumer, "check", lambda _: None)


def _taken(inlet: Inlet, through: int) -> list[Send]:
    inlet.taken = through
    return [Send(replica, Ack(through)) for replica in sorted(inlet.attached)]


# --- states that move ------------------------------------------------------------------------------------


def snapshot_while_busy(patch: Patch) -> None:
    def asked(lending: Lending, request: Any) -> list[Any]:
        if request == lending.lent:
            return [lending._offer(request)]
        if lending.taking is not None:
            return []
        lending.taking, lending.version, lending.unwanted = request, lending.version + 1, False
        return [TakeSnapshot(lending.version)]

    patch.setattr(Lending, "asked", asked)
    patch.setattr(Replica, "check", lambda _: None)


def lend_nothing(patch: Patch) -> None:
    """A snapshot is offered and not kept."""
    taken = Lending.taken
    patch.setattr(
        Lending,
        "taken",
        lambda lending, *rest: [x for x in taken(lending, *rest) if not isinstance(x, KeepSnapshot)],
    )


def keep_snapshots(patch: Patch) -> None:
    """A lender does not hear that its standby has caught up."""
    patch.setattr(Lending, "standby_gone", lambda _: [])


def ask_once(patch: Patch) -> None:
    ask = Borrowing.ask
    patch.setattr(
        Borrowing, "ask", lambda b: [each for each in ask(b) if not isinstance(each, AskAgainLater)]
    )


def take_any_offer(patch: Patch) -> None:
    """An offer of an earlier attempt is fetched as if it were of this one."""
    offered = Borrowing.offered
    patch.setattr(Borrowing, "offered", lambda b, event: offered(b, replace(event, attempt=b.attempt)))


def active_without_neighbours(patch: Patch) -> None:
    """A newcomer counts as caught up before it is connected to every active neighbour."""

    def early(replica: Replica) -> list[Any]:
        if not replica.catching_up:
            return []
        replica.catching_up = False
        return [CaughtUp()]

    patch.setattr(Replica, "_caught_up", early)


def goal_of_the_fastest(patch: Patch) -> None:
    """A newcomer waits for what the fastest of its producers had put out."""
    caught_up = Replica._caught_up

    def late(replica: Replica) -> list[Any]:
        goal = max(replica._goals.values(), default=NOTHING)
        return caught_up(replica) if not replica.catching_up or replica._below.processed >= goal else []

    patch.setattr(Replica, "_caught_up", late)


# --- hosts -----------------------------------------------------------------------------------------------


def do_not_try_again(patch: Patch) -> None:
    """A new view is no reason to try edges again."""
    turn = Host._turn_to

    def lazy(host: Host, view: Any) -> None:
        host.edges.__dict__["_try"] = lambda *_: []
        try:
            turn(host, view)
        finally:
            del host.edges.__dict__["_try"]

    patch.setattr(Host, "_turn_to", lazy)


def views_do_not_travel(patch: Patch) -> None:
    def bare(connections: Connections, node: str, parcel: Any) -> list[Dispatch]:
        return [Dispatch(node, parcel)] if node in connections.up else []

    patch.setattr(Connections, "dispatch", bare)


def views_travel_once(patch: Patch) -> None:
    """A view is not sent again over a connection that is made anew."""
    peer_up = Host._peer_up

    def forgetful(host: Host, node: str, serial: int) -> None:
        views = dict(host.connections._told_view)
        peer_up(host, node, serial)
        host.connections._told_view.update(views)
        host._out[:] = [
            each for each in host._out if not (isinstance(each, Dispatch) and isinstance(each.parcel, Relay))
        ]

    patch.setattr(Host, "_peer_up", forgetful)


def forget_views_that_came_early(patch: Patch) -> None:
    relayed = Host._relayed

    def deaf(host: Host, node: str, view: Any) -> None:
        relayed(host, node, view)
        host._ahead = None

    patch.setattr(Host, "_relayed", deaf)


def no_fencing(patch: Patch) -> None:
    """Edges are opened by and to whichever epoch."""
    arrived = Host._arrived

    def let_in(host: Host, node: str, parcel: Any) -> None:
        resident = host.residents.get(parcel.to) if isinstance(parcel, Attach) else None
        if resident is not None:
            parcel = replace(parcel, to_epoch=resident.epoch)

        def sits(copy: Copy, of: str, epoch: int) -> bool:
            known = host.view is not None and copy.partition in host.view.partitions
            return Places.sits(host.places, copy, of, epoch) or (of != host.name and known)

        host.places.__dict__["sits"] = sits
        try:
            arrived(host, node, parcel)
        finally:
            del host.places.__dict__["sits"]

    patch.setattr(Host, "_arrived", let_in)


def any_serial_of_an_edge(patch: Patch) -> None:
    """What is left of an earlier attempt to open an edge counts."""
    arrived = Host._arrived

    def lax(host: Host, node: str, parcel: Any) -> None:
        resident = host.residents.get(parcel.to) if hasattr(parcel, "message") else None
        edge = resident.edges.get(parcel.sender) if resident is not None else None
        if edge is not None:
            parcel = replace(parcel, serial=edge.serial)
        arrived(host, node, parcel)

    patch.setattr(Host, "_arrived", lax)


def any_connection(patch: Patch) -> None:
    """What comes over a connection that was replaced counts."""
    handle = Host._handle

    def lax(host: Host, event: Any) -> list[Any]:
        if isinstance(event, ParcelFrom) and event.node in host.connections.up:
            event = replace(event, serial=host.connections.up[event.node])
        return handle(host, event)

    patch.setattr(Host, "_handle", lax)


def older_connection_wins(patch: Patch) -> None:
    """A connection that was slow to arrive takes the place of the newer one."""
    refused = Connections.refused

    def lax(connections: Connections, node: str, serial: int) -> Cut | None:
        connections._newest.pop(node, None)
        return refused(connections, node, serial)

    patch.setattr(Connections, "refused", lax)


def edges_outlive_their_connection(patch: Patch) -> None:
    """A connection that is replaced leaves its edges open."""
    patch.setattr(Edges, "lose", lambda *_: [])
    patch.setattr(Host, "check", lambda _: None)


def never_suspect(patch: Patch) -> None:
    patch.setattr(Connections, "_suspicions", lambda *_: [])


# --- the controller --------------------------------------------------------------------------------------


def bury_the_last_on_suspicion(patch: Patch) -> None:
    decide = Controller._decide

    def grave(controller: Controller, event: Any) -> list[Any]:
        if type(event).__name__ != "CopySuspected":
            return decide(controller, event)
        seat = controller._seat_of(event.copy, event.epoch)
        return [] if seat is None else controller._bury([event.copy], "was suspected")

    patch.setattr(Controller, "_decide", grave)


def bury_the_last_at_once(patch: Patch) -> None:
    """The last holder is given no time to come back."""
    left = Controller._left

    def hasty(controller: Controller, nodes: Sequence[str]) -> list[Any]:
        done = left(controller, nodes)
        return [*done, *(each for node in nodes for each in controller._given_up(node))]

    patch.setattr(Controller, "_left", hasty)


def any_epoch_in_reports(patch: Patch) -> None:
    """What is said of a former occupant of a seat counts for its successor."""

    def seat_of(controller: Controller, copy: Copy, epoch: int) -> Any:
        seat = controller.view.seat(copy) if controller.view is not None else None
        return seat if seat is not None and seat.alive else None

    patch.setattr(Controller, "_seat_of", seat_of)


def all_levels_at_once(patch: Patch) -> None:
    """Standbys of several levels are seated side by side."""

    def standbys(controller: Controller) -> Any:
        view = controller.view
        if view is None or view.lost or controller.isolated:
            return None
        if not controller.members.keys() | controller._missed >= view.nodes_named:
            return None
        return controller._fill(controller.topology.partitions) or None

    patch.setattr(Controller, "_standbys", standbys)


def never_seat(patch: Patch) -> None:
    patch.setattr(Controller, "_standbys", lambda _: None)


def bury_a_copy_of_a_cluster_alone(patch: Patch) -> None:
    """With isolated replicas, a dead copy leaves the rest of its replica in place."""
    bury = Controller._bury

    def alone(controller: Controller, *args: Any) -> list[Any]:
        isolated, controller.isolated = controller.isolated, False
        try:
            return bury(controller, *args)
        finally:
            controller.isolated = isolated

    patch.setattr(Controller, "_bury", alone)


def any_partition_makes_a_replica_safe(patch: Patch) -> None:
    """With isolated replicas, a copy may be buried if another of its own partition is active."""

    def replaceable(controller: Controller, copy: Copy) -> bool:
        seats = enumerate(controller._current.partitions[copy.partition].seats)
        return any(seat.status is Status.ACTIVE for r, seat in seats if r != copy.replica)

    patch.setattr(Controller, "_replaceable", replaceable)


# --- the gateway -----------------------------------------------------------------------------------------


def forget_the_log(patch: Patch) -> None:
    patch.setattr(Disk, "unread", lambda disk, source, _: disk.sealed[source])


__all__ = ["Cut", "Pause", "Paused"]
