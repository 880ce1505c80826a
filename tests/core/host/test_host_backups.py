"""Hosts of a flow with backups: who ships when, what a backup tells its producers, and how it takes over."""

from __future__ import annotations

from core_kit import copies, run, seats, view
from host_kit import SINK, SOURCE, TOPOLOGY, of_kind, parcels

from understudy.core.bucket import NOTHING
from understudy.core.edge.messages import Ack, Data, Reverse
from understudy.core.edge.outlet import OutletState
from understudy.core.host.host import Host
from understudy.core.host.limits import Timing
from understudy.core.host.parcels import (
    Attach,
    Await,
    Began,
    Dispatch,
    FetchState,
    Here,
    HoldState,
    Inside,
    Leave,
    Lend,
    Offering,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Relay,
    Request,
    Say,
    Snap,
    StartHeld,
    Tell,
    Unlend,
    ViewSeen,
    Welcome,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import (
    CopyState,
    FetchFailed,
    Processed,
    Produced,
    Received,
    SnapshotFailed,
    SnapshotTaken,
)
from understudy.core.replica.movement import FETCHES_MAX
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.events import CopyCaughtUp, CopyMoveFailed

FIRST, SECOND, THIRD = copies("f", 3)
TIMING = Timing(ship_ms=500)
#: One copy works on a; a standby sits on b, holds a snapshot, takes over.
FIRST_VIEW = view(1, f=seats(1, "a", "b DEAD"))
WAITING = view(2, f=seats(2, "a", "b@2 STDBY"))
BACKED = view(3, f=seats(3, "a", "b@2 BACKUP"))
TAKEN_OVER = view(5, f=seats(5, "a DEAD", "b@2"))
STATE = CopyState(1, 10, ((SINK.partition, OutletState(run(10), 10, 9, ((0, 9),))),))
SHIP_LATER = SetTimer(("ship", FIRST, 1), 500)
SHIP_TIMER = TimerFired(("ship", FIRST, 1))
STUCK_TIMER = TimerFired(("stuck", SECOND, 2))


def request(attempt: int, holds: int | None = None) -> Request:
    return Request(SECOND, 2, FIRST, attempt, holds)


def offering(attempt: int, version: int = 1) -> Offering:
    return Offering(FIRST, 1, SECOND, 2, attempt, version)


def host_of(name: str) -> Host:
    return Host(name, TOPOLOGY, timing=TIMING)


def standby() -> Host:
    """The backup's node, connected to the active copy's and the gateway; it has asked for its first one."""
    host = host_of("b")
    host.handle(ViewSeen(WAITING))
    for name in ("a", GATEWAY):
        host.handle(PeerUp(name, 1))
    return host


def holding() -> Host:
    """The same, with a snapshot of bucket 10 that the source knows of; a fetch of the next one is to come."""
    host = standby()
    host.handle(ParcelFrom("a", 1, offering(1)))
    host.handle(Inside(SECOND, 2, Received(1, 10)))
    host.handle(ParcelFrom(GATEWAY, 1, Welcome(SOURCE, SECOND, 1, 20)))
    host.handle(ViewSeen(BACKED))
    return host


def lender() -> Host:
    """The active copy's node, with bucket 3 taken, connected to the backup's."""
    host = host_of("a")
    host.handle(ViewSeen(FIRST_VIEW))
    host.handle(PeerUp(GATEWAY, 1))
    host.handle(Began(FIRST, 1))
    host.handle(ParcelFrom(GATEWAY, 1, Welcome(SOURCE, FIRST, 1, NOTHING)))
    feed(host, 3)
    host.handle(ViewSeen(WAITING))
    host.handle(PeerUp("b", 1))
    return host


def feed(host: Host, number: int) -> None:
    host.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, FIRST, 1, Data(run(number)))))
    host.handle(Inside(FIRST, 1, Produced(((SINK.partition, run(number)),))))
    host.handle(Inside(FIRST, 1, Processed()))


# --- the backup ------------------------------------------------------------------------------------------


def test_a_standby_of_a_flow_with_backups_waits_and_asks() -> None:
    host = host_of("b")
    done = host.handle(ViewSeen(WAITING))
    assert done[0] == Await(SECOND, 2)
    assert SetTimer(("stuck", SECOND, 2), 60_000) in done
    assert host.handle(PeerUp("a", 1))[:2] == [Dispatch("a", Relay(WAITING)), Dispatch("a", request(1))]


def test_what_a_backup_gets_is_held_and_its_producers_hear_of_it() -> None:
    host = standby()
    done = host.handle(ParcelFrom("a", 1, offering(1)))
    assert done == [FetchState(SECOND, 2, "a", FIRST, 1, 1, hold=True)]
    assert host.handle(Inside(SECOND, 2, Received(1, 10))) == [
        HoldState(SECOND, 2, 1),
        Dispatch("a", request(2, 10)),
        Dispatch(GATEWAY, Relay(WAITING)),
        Dispatch(GATEWAY, Attach(SECOND, 2, SOURCE, 0, 1, 10)),
    ]
    done = host.handle(ParcelFrom(GATEWAY, 1, Welcome(SOURCE, SECOND, 1, 20)))
    assert done == [Dispatch(GATEWAY, Say(SECOND, SOURCE, 1, Ack(10))), Tell(CopyCaughtUp(SECOND, 2))]


def test_every_further_snapshot_is_acknowledged_and_the_edge_is_not_opened_anew() -> None:
    host = holding()
    host.handle(ParcelFrom("a", 1, offering(2, 2)))
    assert host.handle(Inside(SECOND, 2, Received(2, 14))) == [
        HoldState(SECOND, 2, 2),
        Dispatch(GATEWAY, Relay(BACKED)),
        Dispatch(GATEWAY, Say(SECOND, SOURCE, 1, Ack(14))),
        Dispatch("a", Relay(BACKED)),
        Dispatch("a", request(3, 14)),
    ]


def test_a_backup_opens_its_edges_again_when_the_gateway_is_back_and_asks_for_no_data() -> None:
    host = holding()
    host.handle(PeerDown(GATEWAY, 1))
    done = host.handle(PeerUp(GATEWAY, 2))
    assert parcels(done, GATEWAY) == [Relay(BACKED), Attach(SECOND, 2, SOURCE, 0, 2, 10)]
    done = host.handle(ParcelFrom(GATEWAY, 2, Welcome(SOURCE, SECOND, 2, 20)))
    assert done == [Dispatch(GATEWAY, Say(SECOND, SOURCE, 2, Ack(10)))]


def test_a_backup_repeats_its_request_over_a_new_connection_and_to_a_copy_that_has_its_state() -> None:
    host = holding()
    host.handle(PeerDown("a", 1))
    assert parcels(host.handle(PeerUp("a", 2)), "a") == [Relay(BACKED), request(2, 10)]
    assert parcels(host.handle(ParcelFrom("a", 2, Here(FIRST, 1))), "a") == [request(2, 10)]


def test_a_backup_asks_the_copy_that_has_taken_over_as_soon_as_a_view_says_so() -> None:
    host = host_of("c")
    three = view(4, f=seats(4, "a", "b@2 BACKUP", "c@4 STDBY"))
    host.handle(ViewSeen(three))
    for name in ("a", "b"):
        host.handle(PeerUp(name, 1))
    host.handle(ParcelFrom("a", 1, Offering(FIRST, 1, THIRD, 4, 1, 1)))
    host.handle(Inside(THIRD, 4, Received(1, 10)))
    host.handle(ParcelFrom("b", 1, Here(SECOND, 2)))
    done = host.handle(ViewSeen(view(6, f=seats(6, "a DEAD", "b@2", "c@4 BACKUP"))))
    assert parcels(done, "b")[-1] == Request(THIRD, 4, SECOND, 2, 10)


def test_a_backup_takes_no_consumers() -> None:
    host = holding()
    assert host.handle(ParcelFrom(GATEWAY, 1, Attach(SINK, 0, SECOND, 2, 70, NOTHING))) == []


def test_a_backup_that_is_called_active_resumes_asks_for_the_rest_and_says_that_it_is_here() -> None:
    host = holding()
    done = host.handle(ViewSeen(TAKEN_OVER))
    assert StartHeld(SECOND, 2) in done
    done = host.handle(Began(SECOND, 2, STATE))
    assert parcels(done, GATEWAY) == [
        Relay(TAKEN_OVER),
        Say(SECOND, SOURCE, 1, Reverse(10)),
        Here(SECOND, 2),
    ]
    assert SetTimer(("ship", SECOND, 2), 500) in done


def test_a_backup_that_sees_the_newest_view_alone_takes_over_as_well() -> None:
    host = standby()
    host.handle(ParcelFrom("a", 1, offering(1)))
    host.handle(Inside(SECOND, 2, Received(1, 10)))
    assert StartHeld(SECOND, 2) in host.handle(ViewSeen(TAKEN_OVER))


def test_a_backup_whose_fetches_fail_time_and_again_tells_the_controller_and_goes_on() -> None:
    host = holding()
    for attempt in range(2, 2 + FETCHES_MAX):
        assert of_kind(host.handle(ParcelFrom("a", 1, offering(attempt, attempt))), FetchState)
        done = host.handle(Inside(SECOND, 2, FetchFailed(attempt, "full")))
        told = attempt == 1 + FETCHES_MAX
        assert done[-1] == SetTimer(("ask", SECOND, 2), 500)
        assert of_kind(done, Tell) == ([Tell(CopyMoveFailed(SECOND, 2, "full", True))] if told else [])
        asked = parcels(host.handle(TimerFired(("ask", SECOND, 2))), "a")
        assert asked[-1] == request(attempt + 1, 10)


def test_a_fetch_that_hangs_is_begun_anew_when_its_limit_has_passed_twice() -> None:
    host = holding()
    host.handle(ParcelFrom("a", 1, offering(2)))
    assert parcels(host.handle(STUCK_TIMER), "a") == []
    assert parcels(host.handle(STUCK_TIMER), "a")[-1] == request(3, 10)
    assert host.handle(Inside(SECOND, 2, Received(2, 99))) == [], "it comes too late"


def test_a_backup_that_is_given_up_leaves() -> None:
    assert Leave(SECOND, 2) in holding().handle(ViewSeen(view(4, f=seats(4, "a", "b@2 DEAD"))))


# --- the active copy -------------------------------------------------------------------------------------


def test_an_active_copy_ships_at_once_and_then_every_so_often_if_there_is_more() -> None:
    host = lender()
    assert of_kind(host.handle(ParcelFrom("b", 1, request(1))), Snap) == [Snap(FIRST, 1, 1)]
    done = host.handle(Inside(FIRST, 1, SnapshotTaken(1)))
    assert of_kind(done, Lend)
    assert parcels(done, "b")[-1] == offering(1)
    assert host.handle(ParcelFrom("b", 1, request(2, 3))) == [Unlend(FIRST, 1, 1)]
    assert host.handle(SHIP_TIMER) == [SHIP_LATER], "the backup holds as much"
    assert of_kind(host.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, FIRST, 1, Data(run(4))))), Snap) == []
    assert host.handle(Inside(FIRST, 1, Processed())) == [Snap(FIRST, 1, 2)]


def test_the_time_to_ship_comes_to_an_engine_that_works_and_the_snapshot_waits() -> None:
    host = lender()
    host.handle(ParcelFrom("b", 1, request(1)))
    host.handle(Inside(FIRST, 1, SnapshotTaken(1)))
    host.handle(ParcelFrom("b", 1, request(2, 3)))
    host.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, FIRST, 1, Data(run(4)))))
    assert host.handle(SHIP_TIMER) == [SHIP_LATER]
    assert host.handle(Inside(FIRST, 1, Processed())) == [Snap(FIRST, 1, 2)]


def test_a_snapshot_that_failed_is_taken_again_when_the_next_time_has_come() -> None:
    host = lender()
    host.handle(ParcelFrom("b", 1, request(2, NOTHING)))
    assert host.handle(Inside(FIRST, 1, SnapshotFailed(1, "full"))) == []
    assert host.handle(SHIP_TIMER) == [SHIP_LATER, Snap(FIRST, 1, 2)]


def test_a_standby_that_becomes_a_backup_keeps_its_snapshot_and_one_that_dies_does_not() -> None:
    host = lender()
    host.handle(ParcelFrom("b", 1, request(1)))
    host.handle(Inside(FIRST, 1, SnapshotTaken(1)))
    assert of_kind(host.handle(ViewSeen(BACKED)), Unlend) == []
    done = host.handle(ViewSeen(view(4, f=seats(4, "a", "b@2 DEAD"))))
    assert of_kind(done, Unlend) == [Unlend(FIRST, 1, 1)]


def test_a_producer_keeps_what_its_consumers_backup_does_not_hold() -> None:
    host = host_of(GATEWAY)
    host.handle(ViewSeen(FIRST_VIEW))
    for name in ("a", "b"):
        host.handle(PeerUp(name, 1))
    host.handle(ParcelFrom("a", 1, Attach(FIRST, 1, SOURCE, 0, 9, NOTHING)))
    host.handle(ViewSeen(WAITING))
    host.handle(Inside(SOURCE, 0, Produced(((FIRST.partition, run(1, 2, 3)),))))
    host.handle(ParcelFrom("a", 1, Say(FIRST, SOURCE, 9, Ack(3))))
    outlet = host.residents[SOURCE].machine.above.outlets[FIRST.partition]  # type: ignore[union-attr]
    assert len(outlet.buffer) == 3
    host.handle(ParcelFrom("b", 1, Attach(SECOND, 2, SOURCE, 0, 4, 1)))
    assert len(outlet.buffer) == 2
    done = host.handle(ParcelFrom("b", 1, Say(SECOND, SOURCE, 4, Ack(3))))
    assert (done, len(outlet.buffer)) == ([], 0)
