"""An outlet by exact instructions: sending, keeping, take-over and catch-up."""

from __future__ import annotations

import pytest
from core_kit import ACTIVE, DEAD, STDBY, all_active, numbers, run

from understudy.core.bucket import NOTHING
from understudy.core.edge.messages import (
    Ack,
    Attached,
    Data,
    Detached,
    From,
    Pause,
    Paused,
    Put,
    Reverse,
    Send,
)
from understudy.core.edge.outlet import Outlet, OutletState
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.view.changes import Activated, Avail, Fail


def outlet_with(*produced: int, replicas: int = 2) -> Outlet:
    """All copies of the consumer are attached, the first one takes data, and this much is produced."""
    outlet = Outlet("outlet", all_active(replicas))
    for replica in range(replicas):
        assert outlet.handle(Attached(replica)) == []
    assert outlet.handle(From(0, Reverse(NOTHING))) == []
    if produced:
        assert outlet.handle(Put(run(*produced))) == [Send(0, Data(run(*produced)))]
    return outlet


def kept(outlet: Outlet) -> list[int]:
    return numbers(outlet.buffer)


# --- normal case -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_an_outlet_sends_to_the_copy_that_asked_and_keeps_until_every_copy_has_it(replicas: int) -> None:
    outlet = outlet_with(1, replicas=replicas)
    assert outlet.handle(Put(run(2, 3))) == [Send(0, Data(run(2, 3)))]
    for replica in range(replicas):
        assert kept(outlet) == [1, 2, 3]
        assert outlet.handle(From(replica, Ack(2))) == []
    assert kept(outlet) == [3]


def test_every_copy_that_asked_is_sent_its_own_rest() -> None:
    outlet = outlet_with(1, 2, replicas=3)
    assert outlet.handle(From(2, Reverse(1))) == [Send(2, Data(run(2)))]
    assert outlet.handle(Put(run(3))) == [Send(0, Data(run(3))), Send(2, Data(run(3)))]


def test_a_copy_that_asked_to_pause_is_sent_nothing_more_until_it_asks_again() -> None:
    outlet = outlet_with(1)
    assert outlet.handle(From(0, Pause())) == [Send(0, Paused())]
    assert outlet.handle(Put(run(2, 3))) == []
    assert outlet.handle(From(0, Reverse(2))) == [Send(0, Data(run(3)))]


def test_a_copy_may_have_received_more_than_this_producer_has_produced() -> None:
    outlet = outlet_with(1, 2)
    assert outlet.handle(From(1, Reverse(4))) == []
    assert outlet.handle(Put(run(3, 4, 5))) == [Send(0, Data(run(3, 4, 5))), Send(1, Data(run(5)))]


def test_acknowledgements_are_cumulative_and_one_that_is_late_changes_nothing() -> None:
    outlet = outlet_with(1, 2, 3)
    for replica, through in ((0, 3), (1, 2), (1, 1)):
        outlet.handle(From(replica, Ack(through)))
    assert kept(outlet) == [3]


def test_an_outlet_is_full_until_the_slowest_copy_acknowledges() -> None:
    outlet = Outlet("outlet", all_active(2), buckets_max=2)
    for replica in range(2):
        outlet.handle(Attached(replica))
    outlet.handle(Put(run(1, 2)))
    outlet.handle(From(0, Ack(2)))
    assert outlet.full
    outlet.handle(From(1, Ack(1)))
    assert not outlet.full


# --- connections -----------------------------------------------------------------------------------------


def test_a_connection_that_is_made_again_goes_on_from_what_the_copy_has_taken() -> None:
    outlet = outlet_with(1, 2, 3)
    assert outlet.handle(Detached(0)) == []
    assert outlet.handle(Put(run(4))) == []
    assert outlet.handle(Attached(0, 1)) == [], "nothing is sent before it asks"
    assert outlet.handle(From(0, Reverse(2))) == [Send(0, Data(run(3, 4)))]


def test_a_copy_that_attaches_over_a_connection_not_seen_to_break_is_sent_nothing_before_it_asks() -> None:
    outlet = outlet_with(1)
    outlet.handle(Attached(0))
    assert outlet.handle(Put(run(2))) == []


def test_attaching_acknowledges_what_the_copy_has_taken() -> None:
    outlet = outlet_with(1, 2, 3)
    outlet.handle(From(0, Ack(3)))
    outlet.handle(Attached(1, 2))
    assert kept(outlet) == [3]


# --- take-over -------------------------------------------------------------------------------------------


def test_a_consumer_whose_own_producer_died_is_sent_the_rest_and_nothing_twice() -> None:
    outlet = outlet_with(1, 2, 3)
    outlet.handle(From(1, Ack(1)))
    assert outlet.handle(From(1, Reverse(2))) == [Send(1, Data(run(3)))]


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_dead_consumer_is_no_longer_waited_for(replicas: int) -> None:
    outlet = outlet_with(1, 2, replicas=replicas)
    for replica in range(replicas - 1):
        outlet.handle(From(replica, Ack(1)))
    assert outlet.handle(Fail(replicas - 1)) == []
    assert kept(outlet) == [2]
    assert replicas - 1 not in outlet.attached


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_if_no_consumer_is_left_everything_is_kept(replicas: int) -> None:
    outlet = outlet_with(1, 2, replicas=replicas)
    for replica in range(replicas):
        outlet.handle(Fail(replica))
    assert outlet.handle(Put(run(3))) == []
    assert kept(outlet) == [1, 2, 3]


# --- catch-up of a consumer ------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [2, 3])
def test_from_its_seating_on_a_newcomer_is_kept_what_the_slowest_live_copy_lacks(replicas: int) -> None:
    outlet = outlet_with(1, 2, 3, 4, replicas=replicas)
    last = replicas - 1
    for replica in range(replicas):
        outlet.handle(From(replica, Ack(1 + replica)))
    outlet.handle(Fail(last))
    assert outlet.handle(Avail(last)) == []
    assert outlet.status[last] is STDBY
    for replica in range(last):
        outlet.handle(From(replica, Ack(4)))
    assert kept(outlet) == [2, 3, 4], "the copies that hold the state have it, the newcomer does not"
    assert outlet.handle(Attached(last, 1)) == []
    assert outlet.handle(From(last, Reverse(1))) == [Send(last, Data(run(2, 3, 4)))]
    assert outlet.handle(Activated(last)) == []
    outlet.handle(From(last, Ack(4)))
    assert kept(outlet) == []


def test_a_newcomer_keeps_what_it_needs_even_if_its_lender_dies() -> None:
    outlet = outlet_with(1, 2, 3)
    outlet.handle(From(0, Ack(1)))
    outlet.handle(Fail(1))
    outlet.handle(Avail(1))
    outlet.handle(From(0, Ack(3)))
    outlet.handle(Fail(0))
    assert kept(outlet) == [2, 3]
    outlet.handle(Attached(1, 1))
    assert outlet.handle(From(1, Reverse(1))) == [Send(1, Data(run(2, 3)))]


def test_a_newcomer_after_every_consumer_died_is_kept_all_that_is_left() -> None:
    outlet = outlet_with(1, 2, 3, replicas=1)
    outlet.handle(From(0, Ack(1)))
    outlet.handle(Fail(0))
    outlet.handle(Avail(0))
    outlet.handle(Attached(0, 1))
    assert outlet.handle(From(0, Reverse(1))) == [Send(0, Data(run(2, 3)))]


def test_what_the_dead_occupant_acknowledged_ahead_and_was_sent_does_not_count_for_its_successor() -> None:
    outlet = outlet_with(1)
    outlet.handle(From(1, Reverse(NOTHING)))
    outlet.handle(From(1, Ack(9)))
    outlet.handle(Fail(1))
    outlet.handle(Avail(1))
    outlet.handle(Attached(1, NOTHING))
    outlet.handle(From(1, Reverse(NOTHING)))
    assert outlet.handle(Put(run(2)))[-1] == Send(1, Data(run(2)))
    outlet.handle(From(0, Ack(2)))
    assert kept(outlet) == [1, 2]


def test_a_newcomer_is_not_promised_what_only_the_dead_occupant_lacked() -> None:
    outlet = outlet_with(1, 2, 3, 4)
    outlet.handle(From(0, Ack(3)))
    outlet.handle(From(1, Ack(1)))
    outlet.handle(Fail(1))
    outlet.handle(Avail(1))
    assert outlet.buffer.floor == {0: 3, 1: 3}


# --- catch-up of the producer itself ---------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_an_outlet_moves_with_its_buckets_and_floors_and_sends_nothing_before_it_is_asked(
    replicas: int,
) -> None:
    outlet = outlet_with(1, 2, 3, replicas=replicas)
    for replica in range(replicas):
        outlet.handle(From(replica, Ack(1 + replica)))
    newcomer = Outlet("newcomer", all_active(replicas))
    newcomer.install(outlet.state())
    assert newcomer.state() == outlet.state()
    assert newcomer.handle(Attached(0, 1)) == []
    assert newcomer.handle(Put(run(4))) == []
    assert newcomer.handle(From(0, Reverse(1))) == [Send(0, Data(run(2, 3, 4)))]


def test_a_copy_that_was_seated_after_the_state_was_taken_is_kept_what_the_slowest_lacks() -> None:
    state = OutletState(run(2, 3, 4), 4, 1, ((0, 3), (1, 1)))
    newcomer = Outlet("newcomer", {0: ACTIVE, 1: DEAD, 2: STDBY})
    newcomer.install(state)
    assert newcomer.buffer.floor[2] == 1
    newcomer.handle(Attached(0, 4))
    assert kept(newcomer) == [2, 3, 4]


def test_a_copy_that_died_after_the_state_was_taken_is_not_waited_for() -> None:
    newcomer = Outlet("newcomer", {0: ACTIVE, 1: DEAD})
    newcomer.install(OutletState(run(2, 3, 4), 4, 1, ((0, 3), (1, 1))))
    assert kept(newcomer) == [4]


@pytest.mark.parametrize("seen_to_die", [True, False], ids=["after", "before"])
def test_a_successor_does_not_answer_for_what_the_dead_occupant_acknowledged_to_the_lender(
    seen_to_die: bool,
) -> None:
    """The occupant died before or after the state was installed, in either case without having attached."""
    newcomer = Outlet("newcomer", {0: ACTIVE, 1: ACTIVE if seen_to_die else DEAD})
    newcomer.install(OutletState(run(4, 5), 5, 3, ((0, 3), (1, 5))))
    if seen_to_die:
        newcomer.handle(Fail(1))
    newcomer.handle(Avail(1))
    assert not newcomer.outdated(1, 3)


def test_what_a_copy_acknowledged_to_the_lender_counts_only_until_it_attaches() -> None:
    newcomer = Outlet("newcomer", all_active(1))
    newcomer.install(OutletState(run(5), 5, 4, ((0, 4),)))
    assert newcomer.outdated(0, 3)
    newcomer.handle(Attached(0, 4))
    assert not newcomer.outdated(0, 3), "it is refused, as by any other copy"


def test_the_state_of_an_outlet_says_nothing_of_the_dead() -> None:
    outlet = outlet_with(1, 2)
    outlet.handle(From(1, Ack(2)))
    outlet.handle(Fail(1))
    assert outlet.state().floors == ((0, NOTHING),)


def test_an_outlet_that_was_used_takes_over_no_state() -> None:
    outlet = outlet_with(1)
    with pytest.raises(BrokenInvariant, match="a used buffer"):
        outlet.install(OutletState((), 4, 4, ((0, 4), (1, 4))))


@pytest.mark.parametrize(
    ("kept", "produced", "gone"),
    [(run(3, 2), 5, 1), (run(3, 3), 5, 1), (run(2, 6), 5, 1), (run(1, 2), 5, 1), ((), 3, 4)],
)
def test_a_state_that_contradicts_itself_cannot_be_built(
    kept: tuple[object, ...], produced: int, gone: int
) -> None:
    with pytest.raises(BrokenInvariant):
        OutletState(kept, produced, gone, ())  # type: ignore[arg-type]


# --- who may attach --------------------------------------------------------------------------------------


def test_a_copy_that_needs_what_is_gone_may_not_attach() -> None:
    outlet = outlet_with(1, 2, 3)
    for replica in range(2):
        outlet.handle(From(replica, Ack(2)))
    with pytest.raises(PeerError, match="replica 1 needs what follows 1, and 2 is gone"):
        outlet.expect(1, 1)
    outlet.expect(1, 2)
    outlet.handle(Fail(1))
    with pytest.raises(PeerError, match="replica 1 is dead and attached"):
        outlet.expect(1, 2)
    with pytest.raises(PeerError, match="replica 7 is no copy of this consumer"):
        outlet.expect(7, 2)
