"""An outlet whose consumer's state is saved, by exact instructions: what is kept for the store, in memory or
in a log, and for copies that begin again from there.
"""

from __future__ import annotations

import pytest
from core_kit import ACTIVE, DEAD, STDBY, all_active, numbers, run

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.messages import (
    Ack,
    Attached,
    Data,
    Detached,
    From,
    Held,
    Pause,
    Paused,
    Put,
    Refilled,
    Reread,
    Reverse,
    Send,
)
from understudy.core.edge.outlet import Outlet, OutletState
from understudy.core.edge.refill import PIECE_BYTES, WINDOW_BYTES
from understudy.core.errors import PeerError
from understudy.core.shape.partition import STORE
from understudy.core.view.changes import Activated, Avail, Fail


def kept(outlet: Outlet) -> list[int]:
    return numbers(outlet.buffer)


def stored(*produced: int, replicas: int = 1, buckets_max: int = 100) -> Outlet:
    """A copy's outlet: every copy of the consumer is attached and has acknowledged all that is produced."""
    outlet = Outlet("outlet", all_active(replicas), stored=True, buckets_max=buckets_max)
    for replica in range(replicas):
        outlet.handle(Attached(replica))
    for number in produced:
        outlet.handle(Put(run(number)))
        for replica in range(replicas):
            outlet.handle(From(replica, Ack(number)))
    return outlet


def backed(*produced: int, replicas: int = 1) -> Outlet:
    """The same of a source with a log."""
    outlet = Outlet("outlet", all_active(replicas), stored=True, backed=True)
    for replica in range(replicas):
        outlet.handle(Attached(replica))
    for number in produced:
        outlet.handle(Put(run(number)))
        for replica in range(replicas):
            outlet.handle(From(replica, Ack(number)))
    return outlet


def begin_again(outlet: Outlet, replica: int = 0) -> None:
    """The copy is lost, and another sits in its seat."""
    for change in (Fail(replica), Avail(replica), Activated(replica)):
        assert outlet.handle(change) == []


# --- kept in memory --------------------------------------------------------------------------------------


def test_the_store_counts_as_a_copy_that_has_what_its_oldest_snapshot_holds() -> None:
    outlet = stored(1, 2, 3)
    assert kept(outlet) == [1, 2, 3]
    assert outlet.handle(From(0, Held(2))) == []
    assert (kept(outlet), outlet.store_floor) == ([3], 2)
    outlet.handle(From(0, Held(1)))
    assert (kept(outlet), outlet.store_floor) == ([3], 2), "one that comes late changes nothing"


def test_an_outlet_whose_consumer_is_not_saved_keeps_nothing_for_a_store() -> None:
    outlet = Outlet("outlet", all_active(1))
    outlet.handle(Attached(0))
    outlet.handle(Put(run(1)))
    outlet.handle(From(0, Ack(1)))
    assert kept(outlet) == []
    assert outlet.handle(From(0, Held(1))) == []
    assert not outlet.gap


def test_what_is_kept_for_the_store_alone_makes_no_outlet_full_and_the_oldest_of_it_may_go() -> None:
    outlet = stored(1, 2, 3, 4, buckets_max=2)
    assert not outlet.full
    assert kept(outlet) == [3, 4]
    assert outlet.gap
    outlet.handle(From(0, Held(2)))
    assert not outlet.gap


def test_a_copy_that_begins_again_is_kept_all_that_the_store_lacks_and_is_sent_it() -> None:
    outlet = stored(1, 2, 3)
    outlet.handle(From(0, Held(1)))
    begin_again(outlet)
    assert outlet.handle(Attached(0, 1)) == []
    assert outlet.handle(From(0, Reverse(1))) == [Send(0, Data(run(2, 3)))]


def test_without_any_copy_what_the_store_lacks_is_wanted_and_fills_the_outlet() -> None:
    outlet = stored(1, 2, 3, buckets_max=3)
    assert not outlet.full
    outlet.handle(Fail(0))
    assert outlet.full


def test_a_copy_in_a_new_seat_says_itself_what_it_has_whatever_was_guessed() -> None:
    """A view that was skipped: replica 0 was lost, then replica 1, and replica 0 began again."""
    outlet = stored(1, 2, 3, replicas=2)
    for change in (Fail(0), Avail(0), Activated(0), Fail(1)):
        outlet.handle(change)
    assert outlet.buffer.floor[0] == 3, "replica 1 was alive as far as this outlet knew"
    outlet.handle(Attached(0, 1))
    assert outlet.handle(From(0, Reverse(1))) == [Send(0, Data(run(2, 3)))]


def test_a_copy_that_was_heard_of_cannot_take_back_what_it_has() -> None:
    outlet = stored(1, 2, 3)
    begin_again(outlet)
    outlet.handle(Attached(0, 1))
    outlet.handle(From(0, Ack(3)))
    outlet.handle(Attached(0, 3))
    with pytest.raises(PeerError, match="asks for what follows 2, but acknowledged 3"):
        outlet.handle(From(0, Reverse(2)))


def test_an_outlet_with_a_gap_lacks_what_a_copy_needs_that_begins_with_an_old_state() -> None:
    outlet = stored(1, 2, 3, 4, buckets_max=2)
    assert outlet.lacks(1)
    assert not outlet.lacks(2)


# --- moved and saved -------------------------------------------------------------------------------------


def test_what_the_store_lacks_moves_with_the_outlet() -> None:
    outlet = stored(1, 2, 3)
    outlet.handle(From(0, Held(1)))
    assert outlet.state() == OutletState(run(2, 3), 3, 1, ((0, 3), (STORE, 1)))
    newcomer = Outlet("newcomer", all_active(1), stored=True)
    newcomer.install(outlet.state())
    assert newcomer.state() == outlet.state()


def test_an_outlet_without_a_store_that_is_given_the_state_of_one_with_it_keeps_nothing_for_it() -> None:
    newcomer = Outlet("newcomer", all_active(1))
    newcomer.install(OutletState(run(2, 3), 3, 1, ((0, 2), (STORE, 1))))
    assert (kept(newcomer), newcomer.buffer.floor) == ([3], {0: 2})


def test_the_state_of_an_outlet_says_nothing_of_a_copy_that_was_not_heard_of() -> None:
    outlet = stored(1, 2, 3, replicas=2)
    begin_again(outlet, 1)
    assert outlet.state().floors == ((0, 3), (STORE, NOTHING))
    outlet.handle(Attached(1, 2))
    assert outlet.state().floors == ((0, 3), (1, 2), (STORE, NOTHING))


SAVED = OutletState(run(3, 4), 4, 2, ((0, 3), (1, 4), (STORE, 2)))


def test_what_a_saved_outlet_says_of_copies_is_void_and_of_the_store_it_stands() -> None:
    outlet = Outlet("outlet", {0: ACTIVE, 1: STDBY, 2: DEAD}, stored=True)
    outlet.install(SAVED, saved=True)
    assert outlet.buffer.floor == {0: 2, 1: 2, 2: NOTHING, STORE: 2}
    assert kept(outlet) == [3, 4]
    assert not outlet.outdated(1, 3), "it may have begun again since"


def test_what_a_saved_outlet_says_of_a_sink_stands_as_well() -> None:
    outlet = Outlet("outlet", all_active(1))
    outlet.install(OutletState(run(4), 4, 3, ((0, 3),)), saved=True)
    assert outlet.outdated(0, 2), "the sink named its number before this copy began"
    assert not outlet.outdated(0, 3)


@pytest.mark.parametrize("seated", ["while the state was moved", "after it was installed"])
def test_a_moved_outlet_does_not_hold_the_former_occupant_against_a_copy_that_began_again(
    seated: str,
) -> None:
    outlet = Outlet("outlet", all_active(1), stored=True)
    state = OutletState(run(3, 4), 4, 2, ((0, 4), (STORE, 2)))
    if seated == "while the state was moved":
        begin_again(outlet)
        outlet.install(state)
    else:
        outlet.install(state)
        begin_again(outlet)
    assert not outlet.outdated(0, 2)
    outlet.expect(0, 2)
    outlet.handle(Attached(0, 2))
    assert outlet.handle(From(0, Reverse(2))) == [Send(0, Data(run(3, 4)))]


# --- kept in a log ---------------------------------------------------------------------------------------


def test_a_source_keeps_nothing_in_memory_for_the_store_and_its_log_as_much_as_the_store_lacks() -> None:
    outlet = backed(1, 2, 3)
    assert (kept(outlet), outlet.log_needed) == ([], NOTHING)
    outlet.handle(From(0, Held(2)))
    assert outlet.log_needed == outlet.store_floor == 2
    assert not outlet.gap


def test_a_log_is_kept_for_a_slow_copy_as_well() -> None:
    outlet = backed(1, replicas=2)
    outlet.handle(Put(run(2, 3)))
    outlet.handle(From(0, Ack(3)))
    outlet.handle(From(0, Held(3)))
    assert outlet.log_needed == 1
    outlet.handle(Fail(1))
    assert outlet.log_needed == 3


def test_a_source_whose_consumer_is_not_saved_forgets_what_is_gone_from_memory() -> None:
    outlet = Outlet("outlet", all_active(1), backed=True)
    outlet.handle(Attached(0))
    outlet.handle(Put(run(1, 2)))
    outlet.handle(From(0, Ack(1)))
    assert outlet.log_needed == 1
    outlet.handle(From(0, Ack(2)))
    assert outlet.log_needed == 2
    assert outlet.lacks(1)


def test_a_newcomer_is_kept_in_the_log_whatever_it_may_begin_with() -> None:
    outlet = backed(1, 2, 3, replicas=2)
    outlet.handle(From(0, Held(1)))
    begin_again(outlet, 1)
    outlet.handle(From(0, Held(3)))
    assert outlet.log_needed == 1
    outlet.handle(Attached(1, 2))
    assert outlet.log_needed == 2


def refilling(after: int = 1) -> Outlet:
    """A copy that began again has asked for what follows this number; memory begins after 4."""
    outlet = backed(1, 2, 3, 4)
    begin_again(outlet)
    outlet.handle(Put(run(5, 6)))
    outlet.handle(Attached(0, after))
    assert outlet.handle(From(0, Reverse(after))) == [Reread(0, after, PIECE_BYTES)]
    return outlet


def test_a_copy_that_needs_more_than_memory_holds_is_sent_the_log_and_then_the_rest_from_memory() -> None:
    outlet = refilling()
    assert outlet.handle(Put(run(7))) == [], "the log comes first"
    assert outlet.handle(Refilled(0, 1, run(2, 3))) == [Send(0, Data(run(2, 3))), Reread(0, 3, PIECE_BYTES)]
    assert outlet.handle(Refilled(0, 3, run(4))) == [Send(0, Data(run(4))), Send(0, Data(run(5, 6, 7)))]
    assert outlet.handle(Put(run(8))) == [Send(0, Data(run(8)))]


def test_a_piece_of_the_log_that_reaches_into_memory_is_not_sent_twice() -> None:
    outlet = refilling()
    assert outlet.handle(Refilled(0, 1, run(2, 3, 4, 5))) == [
        Send(0, Data(run(2, 3, 4, 5))),
        Send(0, Data(run(6))),
    ]


def test_a_piece_of_the_log_may_be_ahead_of_what_was_put_into_memory() -> None:
    outlet = refilling()
    outlet.handle(Refilled(0, 1, run(2, 3, 4, 5, 6, 7)))
    assert outlet.handle(Put(run(7, 8))) == [Send(0, Data(run(8)))]


def test_the_log_is_read_no_further_than_the_copy_follows() -> None:
    outlet = refilling()
    large = (Bucket(2, "many rows", WINDOW_BYTES),)
    assert outlet.handle(Refilled(0, 1, large)) == [Send(0, Data(large))]
    assert outlet.handle(From(0, Ack(2))) == [Reread(0, 2, PIECE_BYTES)]


@pytest.mark.parametrize(
    "change",
    [From(0, Pause()), Detached(0), Attached(0, 1), Fail(0)],
    ids=["pause", "detach", "attach", "fail"],
)
def test_a_piece_that_comes_after_the_copy_has_stopped_is_dropped(change: object) -> None:
    outlet = refilling()
    assert outlet.handle(change) == ([Send(0, Paused())] if isinstance(change, From) else [])
    assert outlet.handle(Refilled(0, 1, run(2))) == []


def test_of_two_requests_each_piece_is_sent_once() -> None:
    outlet = refilling()
    assert outlet.handle(From(0, Reverse(1))) == [Reread(0, 1, PIECE_BYTES)]
    assert outlet.handle(Refilled(0, 1, run(2))) == [Send(0, Data(run(2))), Reread(0, 2, PIECE_BYTES)]
    assert outlet.handle(Refilled(0, 1, run(2))) == [], "the answer to the earlier request"
    assert outlet.handle(From(0, Reverse(2))) == [Reread(0, 2, PIECE_BYTES)]


def test_a_piece_that_was_not_asked_for_is_dropped() -> None:
    outlet = refilling()
    outlet.handle(Refilled(0, 1, (Bucket(2, "many rows", WINDOW_BYTES),)))
    assert outlet.handle(Refilled(0, 2, run(3))) == []


def test_two_copies_are_sent_the_log_side_by_side() -> None:
    outlet = backed(1, 2, 3, replicas=2)
    for replica in (0, 1):
        begin_again(outlet, replica)
        outlet.handle(Attached(replica, NOTHING))
    assert outlet.handle(From(0, Reverse(NOTHING))) == [Reread(0, NOTHING, PIECE_BYTES)]
    assert outlet.handle(From(1, Reverse(NOTHING))) == [Reread(1, NOTHING, PIECE_BYTES)]
    assert outlet.handle(Refilled(1, NOTHING, run(1)))[0] == Send(1, Data(run(1)))


def test_a_gateway_that_began_again_has_what_was_trimmed_in_its_log_only() -> None:
    outlet = Outlet("outlet", all_active(1), stored=True, backed=True, through=4, forgotten=2)
    outlet.handle(Put(run(5)))
    assert outlet.log_needed == NOTHING, "it has heard of no copy, nor of the store"
    assert outlet.lacks(1)
    outlet.expect(0, 2)
    outlet.handle(Attached(0, 2))
    assert outlet.handle(From(0, Reverse(2))) == [Reread(0, 2, PIECE_BYTES)]
    assert outlet.handle(Refilled(0, 2, run(3, 4))) == [Send(0, Data(run(3, 4))), Send(0, Data(run(5)))]


def test_a_copy_whose_saved_state_is_none_of_those_that_are_kept_now_lacks_what_the_log_has_forgotten() -> (
    None
):
    outlet = backed(1, 2, 3)
    outlet.handle(From(0, Held(3)))
    begin_again(outlet)
    assert outlet.lacks(2)
    with pytest.raises(PeerError, match="needs what follows 2, and 3 is gone"):
        outlet.expect(0, 2)
    outlet.expect(0, 3)


# --- what the consumer has taken -------------------------------------------------------------------------


def test_a_log_tells_what_the_slowest_live_copy_has_taken_also_from_before_its_memory() -> None:
    outlet = Outlet("outlet", all_active(2), stored=True, backed=True, through=8)
    assert outlet.taken_through == NOTHING, "nothing was heard of them yet"
    outlet.handle(Attached(0, 9))
    outlet.handle(Attached(1, 3))
    assert outlet.taken_through == 3
    outlet.handle(From(1, Ack(7)))
    assert outlet.taken_through == 7
    outlet.handle(Fail(1))
    assert outlet.taken_through == 9
    outlet.handle(Fail(0))
    assert outlet.taken_through == NOTHING
