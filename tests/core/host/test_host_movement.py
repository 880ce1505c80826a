"""How hosts move the state of a copy to a standby."""

from __future__ import annotations

import pytest
from core_kit import copies, seats, view
from host_kit import SINK, SOURCE, TOPOLOGY, node, of_kind, parcels, working

from understudy.core.bucket import NOTHING
from understudy.core.edge.outlet import OutletState
from understudy.core.host.host import Host
from understudy.core.host.parcels import (
    Attach,
    Began,
    Dispatch,
    FetchState,
    Here,
    Inside,
    Leave,
    Lend,
    Offering,
    ParcelFrom,
    PeerDown,
    PeerUp,
    Relay,
    Request,
    Snap,
    Tell,
    Unlend,
    ViewSeen,
    Welcome,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import (
    CopyState,
    FetchFailed,
    Installed,
    MoveFailed,
    Progress,
    SnapshotTaken,
)
from understudy.core.shape.partition import Copy
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.events import CopyCaughtUp, CopyMoveFailed
from understudy.core.view.view import View

FIRST, SECOND, THIRD = copies("f", 3)
#: Replica 1 died on b; its standby sits on d.
WAITING = view(3, f=seats(3, "a", "d@3 STDBY"))
#: The same with a third replica, on c.
OF_THREE = view(3, f=seats(3, "a", "d@3 STDBY", "c"))
ASK_LATER = SetTimer(("ask", SECOND, 3), 500)
ASK_TIMER = TimerFired(("ask", SECOND, 3))
STUCK_TIMER = TimerFired(("stuck", SECOND, 3))
STATE = CopyState(1, 10, ((SINK.partition, OutletState((), 10, 10, ((0, 10),))),))


def request(attempt: int, lender: Copy = FIRST) -> Request:
    return Request(SECOND, 3, lender, attempt)


def offering(attempt: int = 1, lender: Copy = FIRST, to_epoch: int = 3) -> Offering:
    return Offering(lender, 1, SECOND, to_epoch, attempt, 1)


def standby(seated: View = WAITING, up: str = "a") -> Host:
    """The standby's node, connected to these nodes; it asks each active copy that it reaches."""
    host = Host("d", TOPOLOGY)
    host.handle(ViewSeen(seated))
    for name in (*up, GATEWAY):
        host.handle(PeerUp(name, 1))
    return host


def lender() -> Host:
    """The active copy's node, connected to the standby's."""
    host = working("a")
    host.handle(ViewSeen(WAITING))
    host.handle(PeerUp("d", 1))
    return host


# --- the standby -----------------------------------------------------------------------------------------


def test_a_standby_asks_an_active_copy_that_it_can_reach_and_asks_again_later() -> None:
    host = standby(up="")
    assert host.handle(PeerUp("a", 1)) == [
        Dispatch("a", Relay(WAITING)),
        Dispatch("a", request(1)),
        ASK_LATER,
    ]
    assert host.handle(ASK_TIMER) == [Dispatch("a", request(1)), ASK_LATER]


def test_a_standby_that_reaches_no_lender_only_asks_again_later() -> None:
    assert standby(up="").handle(ASK_TIMER) == [ASK_LATER]


def test_an_offer_is_fetched_and_the_state_makes_the_copy_open_its_edges() -> None:
    host = standby()
    host.handle(ASK_TIMER)
    assert host.handle(ParcelFrom("a", 1, offering())) == [FetchState(SECOND, 3, "a", FIRST, 1, 1)]
    assert host.handle(Inside(SECOND, 3, Progress())) == []
    done = host.handle(Inside(SECOND, 3, Installed(1, STATE)))
    assert done == [
        Dispatch(GATEWAY, Relay(WAITING)),
        Dispatch(GATEWAY, Attach(SECOND, 3, SOURCE, 0, 1, 10)),
        Dispatch(GATEWAY, Here(SECOND, 3)),
    ]


def test_a_newcomer_reports_that_it_has_caught_up_once_both_neighbours_let_it_in() -> None:
    host = standby()
    host.handle(ASK_TIMER)
    host.handle(ParcelFrom("a", 1, offering()))
    host.handle(Inside(SECOND, 3, Installed(1, STATE)))
    first = host.handle(ParcelFrom(GATEWAY, 1, Attach(SINK, 0, SECOND, 3, 70, 10)))
    assert of_kind(first, Tell) == []
    second = host.handle(ParcelFrom(GATEWAY, 1, Welcome(SOURCE, SECOND, 1, 10)))
    assert of_kind(second, Tell) == [Tell(CopyCaughtUp(SECOND, 3))]


@pytest.mark.parametrize(
    "parcel",
    [
        offering(attempt=2),
        offering(to_epoch=2),
        Offering(FIRST, 9, SECOND, 3, 1, 1),
        Offering(Copy(SINK.partition), 0, SECOND, 3, 1, 1),
    ],
    ids=["another attempt", "an earlier seat", "a former lender", "no copy on that node"],
)
def test_an_offer_that_is_not_for_this_request_is_ignored(parcel: Offering) -> None:
    host = standby()
    host.handle(ASK_TIMER)
    assert host.handle(ParcelFrom("a", 1, parcel)) == []


def test_an_offer_by_a_copy_of_another_partition_is_ignored() -> None:
    host = standby()
    host.handle(ASK_TIMER)
    foreign = Offering(SOURCE, 0, SECOND, 3, 1, 1)
    assert host.handle(ParcelFrom(GATEWAY, 1, foreign)) == []


def test_after_a_failed_fetch_another_lender_is_asked_if_there_is_one() -> None:
    host = standby(OF_THREE, up="ac")
    assert parcels(host.handle(ASK_TIMER), "a")[-1] == request(1)
    host.handle(ParcelFrom("a", 1, offering()))
    assert host.handle(Inside(SECOND, 3, FetchFailed(1, "broken"))) == [ASK_LATER]
    assert parcels(host.handle(ASK_TIMER), "c")[-1] == request(2, THIRD)
    assert host.handle(ParcelFrom("a", 1, offering())) == [], "the first offer, once more"


def test_of_several_lenders_only_those_that_can_be_reached_are_asked() -> None:
    host = standby(OF_THREE, up="c")
    assert parcels(host.handle(ASK_TIMER), "c")[-1] == request(1, THIRD)


def test_a_standby_whose_fetches_keep_failing_reports_why_and_keeps_its_other_copies() -> None:
    host = standby()
    for attempt in (1, 2, 3):
        host.handle(ASK_TIMER)
        host.handle(ParcelFrom("a", 1, offering(attempt)))
        done = host.handle(Inside(SECOND, 3, FetchFailed(attempt, "the disk is full")))
    assert done == [Tell(CopyMoveFailed(SECOND, 3, "the disk is full"))]


def test_a_standby_without_any_active_copy_left_reports_that_it_cannot_catch_up() -> None:
    host = standby()
    host.handle(ViewSeen(view(4, f=seats(4, "a DEAD", "d@3 STDBY"))))
    done = host.handle(ASK_TIMER)
    assert of_kind(done, Tell) == [Tell(CopyMoveFailed(SECOND, 3, "no copy holds the state any more"))]
    assert host.handle(ASK_TIMER) == []


def test_a_standby_without_progress_is_given_up_after_its_limit_and_watched_no_more() -> None:
    host = standby()
    assert host.handle(STUCK_TIMER) == [
        SetTimer(("stuck", SECOND, 3), 60_000),
        Tell(CopyMoveFailed(SECOND, 3, "its state made no progress for 60 s")),
    ]
    assert host.handle(STUCK_TIMER) == []


def test_that_a_slow_newcomer_holds_the_state_is_part_of_its_report() -> None:
    """The controller spares it, if it is the last one that does."""
    host = standby()
    host.residents[SECOND].machine.stuck = lambda _limit_ms: [MoveFailed("slow", holds_state=True)]  # type: ignore[method-assign]
    told = of_kind(host.handle(STUCK_TIMER), Tell)
    assert told == [Tell(CopyMoveFailed(SECOND, 3, "slow", holds_state=True))]


def test_a_state_that_arrives_too_late_opens_no_edge() -> None:
    host = standby()
    host.handle(ASK_TIMER)
    host.handle(ParcelFrom("a", 1, offering()))
    host.handle(STUCK_TIMER)
    host.handle(STUCK_TIMER)
    assert host.handle(Inside(SECOND, 3, Installed(1, STATE))) == []
    host.check()


def test_timers_of_a_copy_that_left_are_ignored() -> None:
    host = standby()
    host.handle(ViewSeen(view(4, f=seats(4, "a", "d@3 DEAD"))))
    assert host.handle(ASK_TIMER) == host.handle(STUCK_TIMER) == []


# --- the lender ------------------------------------------------------------------------------------------


def asked(host: Host, attempt: int = 1) -> list[object]:
    return host.handle(ParcelFrom("d", 1, request(attempt)))  # type: ignore[return-value]


def test_a_lender_takes_a_snapshot_keeps_it_and_offers_it() -> None:
    host = lender()
    assert asked(host) == [Snap(FIRST, 1, 1)]
    state = CopyState(1, NOTHING, ((SINK.partition, OutletState((), NOTHING, NOTHING, ((0, NOTHING),))),))
    assert host.handle(Inside(FIRST, 1, SnapshotTaken(1))) == [
        Lend(FIRST, 1, state),
        Dispatch("d", Relay(WAITING)),
        Dispatch("d", offering()),
    ]
    assert asked(host) == [Dispatch("d", offering())], "a request that is repeated"


def test_a_lender_that_has_not_begun_does_not_answer() -> None:
    host = node("a")
    host.handle(ViewSeen(WAITING))
    host.handle(PeerUp("d", 1))
    assert asked(host) == []
    host.handle(Began(FIRST, 1))
    assert asked(host) == [Snap(FIRST, 1, 1)]


@pytest.mark.parametrize(
    ("name", "parcel"),
    [
        ("d", Request(SECOND, 2, FIRST, 1)),
        ("b", Request(SECOND, 3, FIRST, 1)),
        (GATEWAY, Request(SINK, 0, FIRST, 1)),
        ("d", Request(SECOND, 3, THIRD, 1)),
    ],
    ids=["an earlier seat", "another node", "a copy of another partition", "no such copy here"],
)
def test_only_the_standby_in_its_seat_may_ask_for_the_state(name: str, parcel: Request) -> None:
    host = lender()
    host.handle(PeerUp("b", 1))
    assert host.handle(ParcelFrom(name, 1, parcel)) == []


def test_a_copy_that_is_active_has_no_state_to_ask_for() -> None:
    host = lender()
    host.handle(ViewSeen(view(4, f=seats(4, "a", "d@3"))))
    assert asked(host) == [], "its request was on its way when it became active"


@pytest.mark.parametrize(
    "gone",
    [
        view(4, f=seats(4, "a", "d@3")),
        view(4, f=seats(4, "a", "d@3 DEAD")),
        view(5, f=seats(5, "a", "e@5 STDBY")),
    ],
    ids=["caught up", "dead", "succeeded by another"],
)
def test_a_snapshot_is_dropped_when_its_standby_caught_up_or_is_dead(gone: View) -> None:
    host = lender()
    asked(host)
    host.handle(Inside(FIRST, 1, SnapshotTaken(1)))
    assert of_kind(host.handle(ViewSeen(gone)), Unlend) == [Unlend(FIRST, 1, 1)]


def test_a_lender_that_loses_its_seat_leaves_and_its_snapshots_with_it() -> None:
    host = lender()
    asked(host)
    host.handle(Inside(FIRST, 1, SnapshotTaken(1)))
    assert host.handle(ViewSeen(view(4, f=seats(4, "a DEAD", "d@3 STDBY")))) == [Leave(FIRST, 1)]


def test_a_lender_whose_standby_cannot_be_reached_offers_when_it_is_asked_again() -> None:
    host = lender()
    asked(host)
    host.handle(PeerDown("d", 1))
    assert parcels(host.handle(Inside(FIRST, 1, SnapshotTaken(1))), "d") == []
    host.handle(PeerUp("d", 2))
    done = host.handle(ParcelFrom("d", 2, request(1)))
    assert parcels(done, "d")[-1] == offering()
