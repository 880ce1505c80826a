"""An event that the protocol does not allow leaves no trace, in any machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from controller_kit import controller, high
from core_kit import (
    ACTIVE,
    COUNTED,
    DEAD,
    SCRATCH,
    all_active,
    assert_rejected,
    copies,
    ident,
    run,
    seats,
    state_of,
    view,
)
from host_kit import SINK, SOURCE, TOPOLOGY, gateway, node, working

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.messages import (
    Ack,
    Attached,
    Data,
    Detached,
    From,
    Held,
    Message,
    Pause,
    Paused,
    Put,
    Refilled,
    Reverse,
    Taken,
)
from understudy.core.edge.outlet import Outlet, OutletState
from understudy.core.host.host import Host
from understudy.core.host.limits import Timing
from understudy.core.host.parcels import (
    Attach,
    Began,
    Cut,
    Inside,
    Lacking,
    Offering,
    Parcel,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Relay,
    Say,
    ViewSeen,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.events import (
    AtEdge,
    CopyState,
    FetchFailed,
    Installed,
    LogRead,
    Offered,
    Processed,
    Produced,
    Received,
    Saved,
    SaveFailed,
    SnapshotFailed,
    SnapshotTaken,
)
from understudy.core.replica.producer import Producer
from understudy.core.replica.replica import Replica
from understudy.core.shape.partition import Copy, Partition
from understudy.core.timers import TimerFired
from understudy.core.view.changes import Activated, Avail
from understudy.core.view.view import View

# --- the ends of an edge ---------------------------------------------------------------------------------


def outlet() -> Outlet:
    """Replica 0 is attached and has acknowledged 2 of 4, replica 1 is not attached, replica 2 is dead."""
    made = Outlet("outlet", {0: ACTIVE, 1: ACTIVE, 2: DEAD})
    made.handle(Attached(0))
    made.handle(Attached(1, 2))
    made.handle(Put(run(1, 2, 3, 4)))
    made.handle(From(0, Reverse(NOTHING)))
    made.handle(From(0, Ack(2)))
    made.handle(Detached(1))
    return made


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Put(run(4)), "bucket 4 comes after 4"),
        (Put(run(5, 7, 6)), "bucket 6 comes after 7"),
        (From(1, Ack(3)), "a connection that is not there"),
        (From(1, Reverse(3)), "a connection that is not there"),
        (From(1, Pause()), "a connection that is not there"),
        (From(7, Ack(3)), "a connection that is not there"),
        (From(0, Reverse(1)), "but acknowledged 2"),
        (From(1, Held(3)), "a connection that is not there"),
        (Held(3), "does not take"),
        (From(0, Data(run(5))), "does not take"),
        (From(0, Paused()), "does not take"),
        (Attached(2, 4), "is dead and attached"),
        (Attached(1, 1), "needs what follows 1, and 2 is gone"),
        (Attached(7, 4), "is no copy of this consumer"),
        (Activated(2), "is dead and was called active"),
        (Avail(0), "a standby came for replica 0"),
        (Taken(3), "does not take"),
        ("nonsense", "does not take nonsense"),
    ],
    ids=ident,
)
def test_an_outlet_that_rejects_an_event_is_as_before(event: object, why: str) -> None:
    assert_rejected(outlet(), event, why)


def refilling() -> Outlet:
    """A copy that began again waits for a piece of the log, after 1."""
    made = Outlet("outlet", {0: ACTIVE, 1: DEAD}, stored=True, backed=True, through=4, forgotten=1)
    made.handle(Attached(0, 1))
    made.handle(From(0, Reverse(1)))
    return made


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Refilled(0, 1, run(1, 2)), "bucket 1 comes after 1"),
        (Refilled(0, 1, run(2, 3, 3)), "bucket 3 comes after 3"),
        (Attached(0, 0), "needs what follows 0, and 1 is gone"),
    ],
    ids=ident,
)
def test_an_outlet_with_a_log_that_rejects_an_event_is_as_before(event: object, why: str) -> None:
    assert_rejected(refilling(), event, why)


def inlet() -> Inlet:
    """Replica 0 sends and has sent 4, of which 2 was taken; replica 1 is not attached, replica 2 is dead."""
    made = Inlet("inlet", {0: ACTIVE, 1: ACTIVE, 2: DEAD}, own=0)
    made.handle(Attached(0))
    made.handle(From(0, Data(run(1, 2, 4))))
    made.handle(Taken(2))
    return made


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (From(0, Data(run(4))), "sent bucket 4 after 4"),
        (From(0, Data(run(5, 7, 6))), "sent bucket 6 after 7"),
        (From(0, Paused()), "paused without being asked to"),
        (From(0, Ack(4)), "does not take"),
        (From(0, Held(4)), "does not take"),
        (From(0, Reverse(4)), "does not take"),
        (From(0, Pause()), "does not take"),
        (Taken(1), "1 was taken of 4 received"),
        (Taken(5), "5 was taken of 4 received"),
        (Attached(2), "is dead and attached"),
        (Activated(2), "is dead and was called active"),
        (Avail(0), "a standby came for replica 0"),
        (Put(run(9)), "does not take"),
        ("nonsense", "does not take nonsense"),
    ],
    ids=ident,
)
def test_an_inlet_that_rejects_an_event_is_as_before(event: object, why: str) -> None:
    assert_rejected(inlet(), event, why)


# --- a copy ----------------------------------------------------------------------------------------------

F, BELOW, ABOVE, OTHER = (Partition(name) for name in ("f", "below", "above", "other"))


def copy_of() -> Replica:
    consumer = Consumer("c", 1, {BELOW: all_active(1)})
    return Replica(Copy(F, 1), consumer, Producer("p", {ABOVE: all_active(2), OTHER: all_active(1)}))


def begun() -> Replica:
    """A copy at work: it was given 1, has 2 waiting, and has put out 1."""
    made = copy_of()
    made.begin()
    made.handle(AtEdge(BELOW, Attached(0)))
    made.handle(AtEdge(BELOW, From(0, Data(run(1)))))
    made.handle(AtEdge(BELOW, From(0, Data(run(2)))))
    made.handle(AtEdge(ABOVE, Attached(0)))
    made.handle(Produced(((ABOVE, run(1)), (OTHER, run(1)))))
    return made


def idle() -> Replica:
    made = begun()
    made.handle(Processed())
    made.handle(Processed())
    return made


def borrower() -> Replica:
    made = copy_of()
    made.borrow()
    made.handle(Offered(Copy(F), 1, 4))
    return made


def installed() -> Replica:
    made = borrower()
    made.handle(Installed(1, STATE))
    return made


def backup() -> Replica:
    """A copy that holds a snapshot of bucket 10 and fetches the next one."""
    consumer = Consumer("c", 1, {BELOW: all_active(1)}, passive=True)
    made = Replica(Copy(F, 1), consumer, Producer("p", {ABOVE: all_active(2), OTHER: all_active(1)}))
    made.borrow(to_hold=True)
    made.handle(Offered(Copy(F), 1, 4))
    made.handle(Received(1, 10))
    made.handle(Offered(Copy(F), 2, 5))
    return made


def moved(*partitions: Partition) -> CopyState:
    return CopyState(4, 10, tuple((each, OutletState(run(9), 10, 8, ((0, 8),))) for each in partitions))


STATE = moved(ABOVE, OTHER)


@pytest.mark.parametrize(
    ("machine", "event", "why"),
    [
        (begun, SnapshotTaken(1), "was not asked for"),
        (begun, SnapshotFailed(1, "x"), "was not asked for"),
        (begun, Saved(1, 1), "was not to be saved"),
        (begun, SaveFailed(1, "x"), "was not to be saved"),
        (begun, LogRead(Copy(Partition("strange")), 1, run(2)), "which is no consumer"),
        (begun, Installed(1, STATE), "did not want a state"),
        (begun, Offered(Copy(F), 1, 4), "does not take"),
        (begun, FetchFailed(1, "x"), "does not take"),
        (begun, Produced(((ABOVE, run(2)), (Partition("strange"), run(2)))), "no consumer of this copy"),
        (begun, Produced(((ABOVE, run(2)), (OTHER, run(1)))), "numbers must rise"),
        (begun, Produced(((ABOVE, run(2)), (OTHER, ()))), "at least one bucket"),
        (begun, AtEdge(Partition("strange"), Attached(0)), "is no producer"),
        (begun, AtEdge(BELOW, From(0, Ack(1))), "does not take"),
        (begun, AtEdge(BELOW, From(0, Data(run(2)))), "sent bucket 2 after 2"),
        (begun, AtEdge(ABOVE, From(1, Ack(1))), "a connection that is not there"),
        (begun, AtEdge(ABOVE, From(0, Data(run(1)))), "does not take"),
        (begun, AtEdge(ABOVE, Avail(0)), "a standby came"),
        (begun, "nonsense", "does not take nonsense"),
        (idle, Processed(), "never given"),
        (borrower, Installed(2, STATE), "did not want a state of attempt 2"),
        (borrower, Installed(1, moved(ABOVE)), "other consumers"),
        (borrower, Installed(1, moved(OTHER, ABOVE)), "other consumers"),
        (borrower, SnapshotTaken(1), "was not asked for"),
        (borrower, Processed(), "never given"),
        (installed, Installed(1, STATE), "did not want a state of attempt 1"),
        (begun, Received(1, 10), "does not take"),
        (borrower, Received(1, 10), "does not take"),
        (backup, Processed(), "never given"),
        (backup, SnapshotTaken(1), "was not asked for"),
        (backup, AtEdge(BELOW, From(0, Paused())), "paused without being asked to"),
    ],
    ids=ident,
)
def test_a_copy_that_rejects_an_event_is_as_before(
    machine: Callable[[], Replica], event: object, why: str
) -> None:
    assert_rejected(machine(), event, why)


def test_a_state_that_was_refused_can_still_be_installed() -> None:
    made = borrower()
    assert_rejected(made, Installed(1, moved(ABOVE)), "other consumers")
    made.handle(Installed(1, STATE))
    assert made.begun


# --- a host: what its own process says -------------------------------------------------------------------

FIRST, SECOND = copies("f", 2)


def standby() -> Host:
    host = Host("c", TOPOLOGY)
    host.handle(ViewSeen(view(3, f=seats(3, "a", "c@3 STDBY"))))
    return host


def backing() -> Host:
    """A node whose copy is to be a backup."""
    host = Host("c", TOPOLOGY, timing=Timing(ship_ms=500))
    host.handle(ViewSeen(view(3, f=seats(3, "a", "c@3 STDBY"))))
    return host


@pytest.mark.parametrize(
    ("machine", "event", "why"),
    [
        (working, Began(FIRST, 1), "began twice"),
        (working, Began(FIRST, 1, STATE), "began twice"),
        (standby, Began(SECOND, 3), "waits for its state"),
        (standby, Began(SECOND, 3, STATE), "waits for its state"),
        (backing, Began(SECOND, 3, STATE), "resumed"),
        (backing, Began(SECOND, 3), "resumed"),
        (working, Inside(FIRST, 1, Received(1, 10)), "does not take"),
        (standby, Inside(SECOND, 3, Received(1, 10)), "does not take"),
        (node, Began(FIRST, 1, STATE), "other consumers"),
        (working, Inside(FIRST, 1, Saved(1, 1)), "was not to be saved"),
        (working, Inside(FIRST, 1, SaveFailed(1, "x")), "was not to be saved"),
        (gateway, Inside(SOURCE, 0, Saved(1, 1)), "was not to be saved"),
        (gateway, Inside(SOURCE, 0, LogRead(Copy(OTHER), 1, run(2))), "which is no consumer"),
        (working, Inside(FIRST, 1, Processed()), "never given"),
        (working, Inside(FIRST, 1, SnapshotTaken(1)), "was not asked for"),
        (working, Inside(FIRST, 1, Installed(1, STATE)), "did not want a state"),
        (standby, Inside(SECOND, 3, Installed(1, STATE)), "did not want a state"),
        (working, Inside(FIRST, 1, FetchFailed(1, "x")), "does not take"),
        (working, Inside(FIRST, 1, Produced(((SINK.partition, ()),))), "at least one bucket"),
        (working, Inside(FIRST, 1, Produced(((OTHER, run(1)),))), "no consumer of this copy"),
        (working, Inside(FIRST, 1, Produced(((SINK.partition, run(2, 1)),))), "numbers must rise"),
        (gateway, Inside(SINK, 0, Produced(((F, run(1)),))), "puts out nothing"),
        (gateway, Inside(SOURCE, 0, Processed()), "takes no input"),
        (working, PeerDown("a", 0), "always connected to itself"),
        (working, TimerFired(("strange", "b")), "no timer"),
        (working, TimerFired("absent"), "no timer"),
        (working, ViewSeen(view(2, f=seats(2, "x", "b"))), "changed from a to x in one seat"),
        (working, ViewSeen(view(2, f=seats(2, "a"))), "the replicas of a flow never change"),
        (working, ViewSeen(view(2, g=seats(2, "a", "b"))), "has other partitions"),
        (working, ViewSeen(View(2, {})), "has other partitions"),
        (gateway, ViewSeen(view(2, f=seats(2, "a", "b STDBY"))), "went from ACTIVE to STDBY"),
    ],
    ids=ident,
)
def test_a_host_that_rejects_an_event_of_its_own_process_is_as_before(
    machine: Callable[[], Host], event: object, why: str
) -> None:
    assert_rejected(machine(), event, why)


def test_a_first_view_of_another_flow_is_rejected() -> None:
    assert_rejected(Host("a", TOPOLOGY), ViewSeen(view(1, g=seats(1, "a"))), "has other partitions")


# --- a host: what its peers say --------------------------------------------------------------------------


def over(message: Message) -> Say:
    return Say(SOURCE, FIRST, 1, message)


def served() -> Host:
    """A gateway with both copies attached to its source, of which buckets 1 and 2 are gone."""
    host = gateway()
    for copy, name in ((FIRST, "a"), (SECOND, "b")):
        host.handle(ParcelFrom(name, 1, Attach(copy, 1, SOURCE, 0, 9, NOTHING)))
    host.handle(Inside(SOURCE, 0, Produced(((F, run(1, 2, 3)),))))
    for copy, name in ((FIRST, "a"), (SECOND, "b")):
        host.handle(ParcelFrom(name, 1, Say(copy, SOURCE, 9, Ack(2))))
    return host


@pytest.mark.parametrize(
    ("machine", "name", "parcel", "why"),
    [
        (working, GATEWAY, over(Ack(1)), "does not take"),
        (working, GATEWAY, over(Reverse(1)), "does not take"),
        (working, GATEWAY, over(Paused()), "paused without being asked to"),
        (working, GATEWAY, over(Data((Bucket(2), Bucket(1)))), "sent bucket 1 after 2"),
        (working, GATEWAY, Attach(SOURCE, 0, FIRST, 1, 9, NOTHING), "takes nothing from"),
        (working, GATEWAY, Say(SINK, FIRST, 70, Data(run(1))), "does not take"),
        (working, GATEWAY, Offering(SINK, 0, FIRST, 1, 1, 1), ""),
        (working, GATEWAY, Relay(view(2, f=seats(2, "x", "b"))), "does not follow 1"),
        (working, GATEWAY, Relay(view(2, f=seats(2, "a"))), "does not follow 1"),
        (working, GATEWAY, Relay(view(2, g=seats(2, "a", "b"))), "does not follow 1"),
        (working, GATEWAY, Relay(View(9, {})), "does not follow 1"),
        (served, "a", Attach(FIRST, 1, SOURCE, 0, 10, 1), "needs what follows 1, and 2 is gone"),
        (served, "a", Say(FIRST, SOURCE, 9, Reverse(1)), "but acknowledged 2"),
        (served, "a", Say(FIRST, SOURCE, 9, Data(run(1))), "does not take"),
        (working, GATEWAY, over(Held(3)), "does not take"),
        (working, GATEWAY, Lacking(SOURCE, FIRST, 1), ""),
        (served, "a", Relay(view(7, f=seats(7, "a STDBY", "b"))), "does not follow 1"),
    ],
    ids=ident,
)
def test_a_host_that_a_peer_breaks_the_protocol_with_cuts_it_off_and_is_as_before(
    machine: Callable[[], Host], name: str, parcel: Parcel, why: str
) -> None:
    host = machine()
    before = state_of(host, SCRATCH | COUNTED)
    done = host.handle(ParcelFrom(name, 1, parcel))
    if why:
        (cut,) = done
        assert isinstance(cut, Cut)
        assert (cut.node, cut.serial) == (name, 1)
        assert why in cut.why
    else:
        assert done == [], "it speaks of no request"
    assert state_of(host, SCRATCH | COUNTED) == before
    host.check()


def test_a_copy_of_another_isolated_replica_may_not_attach() -> None:
    topology = TOPOLOGY.__class__({"f": ("source",), "g": ("f",)}, {"f": 1, "g": 1}, {"sink": "g"})
    host = Host("a", topology, isolated=True)
    host.handle(ViewSeen(view(1, f=seats(1, "a", "c"), g=seats(1, "b", "d"))))
    host.handle(Began(FIRST, 1))
    host.handle(PeerUp("d", 1))
    before = state_of(host, SCRATCH | COUNTED)
    (cut,) = host.handle(ParcelFrom("d", 1, Attach(Copy(Partition("g"), 1), 1, FIRST, 1, 5, NOTHING)))
    assert isinstance(cut, Cut)
    assert "is no copy of this consumer" in cut.why
    assert state_of(host, SCRATCH | COUNTED) == before


def test_a_peer_whose_parcels_are_rejected_can_go_on_over_its_next_connection() -> None:
    host = working()
    host.handle(ParcelFrom(GATEWAY, 1, Relay(view(9, f=seats(9, "x", "b")))))
    host.handle(PeerDown(GATEWAY, 1))
    host.handle(PeerUp(GATEWAY, 2))
    assert host.view is not None
    assert host.view.epoch == 1
    assert FIRST in host.residents


# --- the controller --------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [TimerFired(("strange", "a")), TimerFired("missed"), "nonsense"], ids=ident)
def test_a_controller_that_rejects_an_event_is_as_before(event: object) -> None:
    made = controller("e")
    made.handle(TimerFired(("missed", "a")))
    assert_rejected(made, event, "set no timer")
    assert made.view is not None
    assert made.view.seat(high(0, 0)).status is ACTIVE


# --- events that are allowed and mean nothing ------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "event"),
    [
        (working, Inside(FIRST, 9, Processed())),
        (working, Inside(SECOND, 1, Processed())),
        (working, ParcelFrom(GATEWAY, 9, Relay(view(2, f=seats(2, "a", "b DEAD"))))),
        (working, ParcelFrom("stranger", 1, Relay(view(2, f=seats(2, "a", "b DEAD"))))),
        (working, PeerDown(GATEWAY, 9)),
        (node, ViewSeen(view(1, f=seats(1, "x", "y")))),
        (standby, TimerFired(("ask", FIRST, 1))),
        (backing, TimerFired(("ship", FIRST, 1))),
        (backing, Inside(SECOND, 3, Received(9, 10))),
        (backing, Inside(SECOND, 9, Received(1, 10))),
        (backing, Inside(SECOND, 3, FetchFailed(9, "x"))),
        (working, Began(FIRST, 9, STATE)),
        (working, Inside(FIRST, 9, Saved(1, 1))),
        (working, TimerFired(("save", SECOND, 1))),
        (working, TimerFired(("try", FIRST, 9, SOURCE))),
        (working, ParcelFrom(GATEWAY, 1, Lacking(SOURCE, SECOND, 1))),
    ],
    ids=ident,
)
def test_what_concerns_a_seat_or_a_connection_that_is_gone_changes_nothing(
    machine: Callable[[], Host], event: object
) -> None:
    host = machine()
    before = state_of(host, SCRATCH | COUNTED)
    assert host.handle(event) == []  # type: ignore[arg-type]
    assert state_of(host, SCRATCH | COUNTED) == before
