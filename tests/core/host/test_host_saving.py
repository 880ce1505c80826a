"""Hosts of a flow that saves its state: which copy saves it when, what it begins with, and what it lacks."""

from __future__ import annotations

import pytest
from core_kit import copies, run, seats, view
from host_kit import SINK, SOURCE, TOPOLOGY, F, first_view, of_kind, parcels

from understudy.core.bucket import NOTHING
from understudy.core.edge.messages import Ack, Data, Held, Reverse
from understudy.core.edge.outlet import OutletState
from understudy.core.edge.refill import PIECE_BYTES
from understudy.core.errors import BrokenInvariant
from understudy.core.host.host import Host
from understudy.core.host.limits import Timing
from understudy.core.host.parcels import (
    Attach,
    Began,
    Here,
    Inside,
    Lacking,
    Lend,
    ParcelFrom,
    PeerUp,
    ReadAgain,
    Save,
    Say,
    Snap,
    Start,
    Tell,
    Unlend,
    ViewSeen,
    Welcome,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import (
    CopyState,
    Installed,
    LogRead,
    Offered,
    Processed,
    Produced,
    Saved,
    SaveFailed,
    SnapshotTaken,
)
from understudy.core.shape.partition import STORE, Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.events import CopyLacks
from understudy.core.view.view import View

FIRST, SECOND = copies("f", 2)
TIMING = Timing(save_ms=1_000)
SAVE_LATER = SetTimer(("save", FIRST, 1), 1_000)
STATE = CopyState(4, 7, ((SINK.partition, OutletState(run(7), 7, 6, ((0, 6),))),))


def host_of(name: str, seen: View, **facts: dict[str, int]) -> Host:
    host = Host(name, TOPOLOGY, timing=TIMING, **facts)  # type: ignore[arg-type]
    host.handle(ViewSeen(seen))
    return host


def node(name: str = "a", replicas: int = 1) -> Host:
    """A node of a flow that saves its state, connected to the gateway; its copy has not begun."""
    host = host_of(name, first_view(replicas))
    host.handle(PeerUp(GATEWAY, 1))
    return host


def at_work(name: str = "a", replicas: int = 1) -> Host:
    """The same with a copy that has taken bucket 3."""
    host = node(name, replicas)
    (copy,) = host.residents
    host.handle(Began(copy, 1))
    host.handle(ParcelFrom(GATEWAY, 1, Welcome(SOURCE, copy, 1, NOTHING)))
    host.handle(ParcelFrom(GATEWAY, 1, Say(SOURCE, copy, 1, Data(run(3)))))
    host.handle(Inside(copy, 1, Produced(((SINK.partition, run(3)),))))
    host.handle(Inside(copy, 1, Processed()))
    return host


# --- saving ----------------------------------------------------------------------------------------------


def test_a_copy_that_began_saves_its_state_from_time_to_time() -> None:
    host = node()
    assert host.handle(Began(FIRST, 1))[-1] == SAVE_LATER
    host = at_work()
    assert host.handle(TimerFired(("save", FIRST, 1))) == [SAVE_LATER, Snap(FIRST, 1, 1)]
    lend, save = host.handle(Inside(FIRST, 1, SnapshotTaken(1)))
    assert isinstance(lend, Lend)
    assert save == Save(FIRST, 1, 1)
    done = host.handle(Inside(FIRST, 1, Saved(1, 3)))
    assert done[0] == Unlend(FIRST, 1, 1)
    assert parcels(done, GATEWAY) == [Say(FIRST, SOURCE, 1, Held(3))]
    assert host.handle(TimerFired(("save", FIRST, 1))) == [SAVE_LATER], "there is nothing new"


def test_a_save_that_fails_costs_its_snapshot_and_nothing_else() -> None:
    host = at_work()
    host.handle(TimerFired(("save", FIRST, 1)))
    host.handle(Inside(FIRST, 1, SnapshotTaken(1)))
    assert host.handle(Inside(FIRST, 1, SaveFailed(1, "the disk is full"))) == [Unlend(FIRST, 1, 1)]


def test_a_flow_that_saves_no_state_sets_no_such_timer() -> None:
    host = Host("a", TOPOLOGY)
    host.handle(ViewSeen(first_view(1)))
    assert of_kind(host.handle(Began(FIRST, 1)), SetTimer) == []


def test_of_the_active_copies_the_first_saves_and_when_it_is_dead_the_next() -> None:
    host = at_work("b", replicas=2)
    later = SetTimer(("save", SECOND, 1), 1_000)
    assert host.handle(TimerFired(("save", SECOND, 1))) == [later]
    host.handle(ViewSeen(view(2, f=seats(2, "a DEAD", "b"))))
    assert host.handle(TimerFired(("save", SECOND, 1))) == [later, Snap(SECOND, 1, 1)]


def test_a_standby_does_not_save_though_it_is_the_first() -> None:
    host = at_work("b", replicas=2)
    host.handle(ViewSeen(view(3, f=seats(3, "c@3 STDBY", "b"))))
    assert of_kind(host.handle(TimerFired(("save", SECOND, 1))), Snap) == [Snap(SECOND, 1, 1)]


def test_a_timer_of_a_seat_that_is_gone_saves_nothing_and_is_not_set_again() -> None:
    host = at_work()
    assert host.handle(TimerFired(("save", FIRST, 9))) == []


def test_a_state_that_arrives_after_it_was_given_up_is_not_saved() -> None:
    host = host_of("d", view(3, f=seats(3, "a", "d@3 STDBY")))
    host.residents[SECOND].machine.handle(Offered(FIRST, 1, 4))
    host.residents[SECOND].machine.give_up("it took too long")
    assert host.handle(Inside(SECOND, 3, Installed(1, STATE))) == []


def test_isolated_replicas_save_nothing() -> None:
    with pytest.raises(BrokenInvariant, match="save nothing"):
        Host("a", TOPOLOGY, timing=TIMING, isolated=True)


# --- beginning again -------------------------------------------------------------------------------------


def test_a_copy_that_begins_again_attaches_with_the_number_of_its_saved_state() -> None:
    host = host_of("c", view(5, f=seats(5, "c@5", "b DEAD")))
    assert host.residents[FIRST].machine.borrowing is None
    host.handle(PeerUp(GATEWAY, 1))
    done = parcels(host.handle(Began(FIRST, 5, STATE)), GATEWAY)
    assert done[-2:] == [Attach(FIRST, 5, SOURCE, 0, 1, 7), Here(FIRST, 5)]
    attached = host.handle(ParcelFrom(GATEWAY, 1, Attach(SINK, 0, FIRST, 5, 70, 6)))
    assert parcels(attached, GATEWAY) == [Welcome(FIRST, SINK, 70, 7)]


def test_a_partition_without_copies_is_started_by_its_new_holder_and_waits_for_no_other() -> None:
    host = Host("c", TOPOLOGY, timing=TIMING)
    assert host.handle(ViewSeen(view(5, f=seats(5, "c@5", "b DEAD"))))[0] == Start(FIRST, 5)


def test_a_sink_that_tried_a_copy_before_it_began_again_is_told_to_try_once_more() -> None:
    host = node()
    host.handle(Began(FIRST, 1, STATE))
    stale = host.handle(ParcelFrom(GATEWAY, 1, Attach(SINK, 0, FIRST, 1, 70, 5)))
    assert parcels(stale, GATEWAY) == [Here(FIRST, 1)]


# --- logs that are read again ----------------------------------------------------------------------------


def source_of(**facts: dict[str, int]) -> Host:
    """A gateway that began again: buckets through 4 are in its log only, those through 1 are gone."""
    host = host_of(GATEWAY, first_view(1), trimmed={"source": 4}, forgotten={"source": 1}, **facts)
    host.handle(PeerUp("a", 1))
    return host


def test_a_gateway_reads_its_log_again_for_a_copy_that_began_again() -> None:
    host = source_of()
    (welcome,) = parcels(host.handle(ParcelFrom("a", 1, Attach(FIRST, 1, SOURCE, 0, 9, 2))), "a")[-1:]
    assert welcome == Welcome(SOURCE, FIRST, 9, 4)
    asked = host.handle(ParcelFrom("a", 1, Say(FIRST, SOURCE, 9, Reverse(2))))
    assert asked == [ReadAgain(SOURCE, FIRST, 2, PIECE_BYTES)]
    done = host.handle(Inside(SOURCE, 0, LogRead(FIRST, 2, run(3, 4))))
    assert parcels(done, "a") == [Say(SOURCE, FIRST, 9, Data(run(3, 4)))]
    done = host.handle(Inside(SOURCE, 0, Produced(((F, run(5)),))))
    assert parcels(done, "a") == [Say(SOURCE, FIRST, 9, Data(run(5)))]


def test_a_gateway_that_saves_nothing_has_all_that_follows_the_number_in_memory() -> None:
    host = Host(GATEWAY, TOPOLOGY, trimmed={"source": 4})
    host.handle(ViewSeen(first_view(1)))
    source = host.end("source")
    assert source is not None
    assert source.above is not None
    assert source.above.outlets[F].buffer.produced_through == NOTHING, "it reads its log from the beginning"


def test_a_copy_that_needs_what_the_log_has_forgotten_is_told_so() -> None:
    done = source_of().handle(ParcelFrom("a", 1, Attach(FIRST, 1, SOURCE, 0, 9, NOTHING)))
    assert parcels(done, "a")[-1] == Lacking(SOURCE, FIRST, 9)


# --- lacking ---------------------------------------------------------------------------------------------

LOW, HIGH = Copy(Partition("low")), Copy(Partition("high"))
LATER = SetTimer(("try", HIGH, 1, LOW), 500)


def consumer(low: int = 1) -> Host:
    """The node of a consumer that began again with bucket 7, and has tried its producers on a and b."""
    host = Host("h", chain_of(low=1, high=1), timing=TIMING)
    host.handle(ViewSeen(view(1, low=seats(1, *"ab"[:low]), high=seats(1, *"hi"[:low]))))
    for name in "ab"[:low]:
        host.handle(PeerUp(name, 1))
    host.handle(Began(HIGH, 1, CopyState(4, 7, ((SINK.partition, OutletState((), 7, 7, ((0, 7),))),))))
    return host


def test_a_copy_that_no_producer_can_serve_reports_it_and_tries_again() -> None:
    host = consumer()
    tried = host.residents[HIGH].tried[LOW]
    done = host.handle(ParcelFrom("a", 1, Lacking(LOW, HIGH, tried.serial)))
    assert done == [LATER, Tell(CopyLacks(HIGH, 1, LOW.partition))]
    again = host.handle(TimerFired(("try", HIGH, 1, LOW)))
    assert parcels(again, "a") == [Attach(HIGH, 1, LOW, 1, tried.serial + 1, 7)]


def test_a_copy_that_another_producer_feeds_only_tries_again() -> None:
    host = consumer(low=2)
    other = Copy(LOW.partition, 1)
    host.handle(ParcelFrom("b", 1, Welcome(other, HIGH, host.residents[HIGH].tried[other].serial, 7)))
    serial = host.residents[HIGH].tried[LOW].serial
    assert host.handle(ParcelFrom("a", 1, Lacking(LOW, HIGH, serial))) == [LATER]


@pytest.mark.parametrize("late", [Lacking(LOW, HIGH, 99), Lacking(Copy(LOW.partition, 1), HIGH, 1)])
def test_an_answer_to_another_attempt_is_ignored(late: Lacking) -> None:
    assert consumer().handle(ParcelFrom("a", 1, late)) == []


def test_a_timer_to_try_again_means_nothing_once_the_edge_stands_or_the_seat_is_gone() -> None:
    host = consumer()
    serial = host.residents[HIGH].tried[LOW].serial
    host.handle(ParcelFrom("a", 1, Welcome(LOW, HIGH, serial, 7)))
    assert host.handle(TimerFired(("try", HIGH, 1, LOW))) == []
    assert host.handle(TimerFired(("try", HIGH, 9, LOW))) == []


def test_a_producer_with_a_gap_says_that_it_lacks_what_the_consumer_needs() -> None:
    host = Host("a", chain_of(low=1, high=1), timing=TIMING)
    host.handle(ViewSeen(view(1, low=seats(1, "a"), high=seats(1, "h"))))
    host.handle(PeerUp("h", 1))
    outlet = OutletState(run(6, 7), 7, 5, ((0, 7), (STORE, 3)))
    host.handle(Began(LOW, 1, CopyState(4, 7, ((HIGH.partition, outlet),))))
    done = host.handle(ParcelFrom("h", 1, Attach(HIGH, 1, LOW, 1, 9, 4)))
    assert parcels(done, "h") == [Lacking(LOW, HIGH, 9)]
    assert HIGH not in host.residents[LOW].edges
    done = host.handle(ParcelFrom("h", 1, Attach(HIGH, 1, LOW, 1, 10, 5)))
    assert parcels(done, "h") == [Welcome(LOW, HIGH, 10, 7)]


def test_what_the_store_holds_reaches_the_outlet() -> None:
    host = source_of()
    host.handle(ParcelFrom("a", 1, Attach(FIRST, 1, SOURCE, 0, 9, 4)))
    host.handle(ParcelFrom("a", 1, Say(FIRST, SOURCE, 9, Ack(4))))
    host.handle(ParcelFrom("a", 1, Say(FIRST, SOURCE, 9, Held(3))))
    source = host.end("source")
    assert source is not None
    assert source.above is not None
    assert source.above.log_needed == 3
