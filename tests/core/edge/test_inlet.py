"""An inlet by exact instructions: which copies it asks to send and to stop, and what it takes."""

from __future__ import annotations

import pytest
from core_kit import ACTIVE, DEAD, STDBY, all_active, run

from understudy.core.bucket import NOTHING
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.messages import (
    Ack,
    Attached,
    Data,
    Detached,
    From,
    Held,
    Pause,
    Paused,
    Reverse,
    Send,
    Take,
    Taken,
)
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.view.changes import Activated, Avail, Fail


def data(replica: int, *numbers: int) -> From:
    return From(replica, Data(run(*numbers)))


def settled(replicas: int = 2) -> Inlet:
    """An inlet of dataflow 1 with all producers attached: its own one sends, and has sent bucket 0."""
    inlet = Inlet("inlet", all_active(replicas), own=1)
    assert inlet.handle(Attached(0)) == [Send(0, Reverse(NOTHING))]
    assert inlet.handle(Attached(1)) == [Send(1, Reverse(NOTHING))]
    for replica in range(2, replicas):
        assert inlet.handle(Attached(replica)) == []
    assert inlet.handle(data(1, 0)) == [Take(run(0)), Send(0, Pause())]
    assert inlet.handle(From(0, Paused())) == []
    return inlet


# --- normal case -----------------------------------------------------------------------------------------


def test_a_single_producer_is_asked_and_what_it_sends_is_taken() -> None:
    inlet = Inlet("inlet", all_active(1), own=2)
    assert inlet.handle(Attached(0)) == [Send(0, Reverse(NOTHING))]
    assert inlet.handle(data(0, 1, 2)) == [Take(run(1, 2))]
    assert inlet.handle(Taken(2)) == [Send(0, Ack(2))]


@pytest.mark.parametrize("replicas", [2, 3])
def test_an_inlet_takes_from_its_own_dataflow_and_acknowledges_to_every_copy(replicas: int) -> None:
    inlet = settled(replicas)
    assert inlet.handle(data(0, 1)) == []
    assert inlet.handle(data(1, 1, 2)) == [Take(run(1, 2))]
    assert inlet.handle(Taken(1)) == [Send(replica, Ack(1)) for replica in range(replicas)]


def test_an_inlet_of_no_dataflow_asks_the_first_active_copy_and_no_other() -> None:
    inlet = Inlet("sink", {0: STDBY, 1: ACTIVE, 2: ACTIVE}, own=None)
    assert inlet.handle(Attached(1)) == [Send(1, Reverse(NOTHING))]
    for replica in (0, 2):
        assert inlet.handle(Attached(replica)) == []
    assert inlet.handle(Detached(1)) == [Send(2, Reverse(NOTHING))]


def test_a_copy_that_attaches_gets_the_acknowledgement_and_is_asked_for_the_rest() -> None:
    inlet = Inlet("inlet", all_active(2), own=0, through=4)
    assert inlet.handle(Attached(0)) == [Send(0, Ack(4)), Send(0, Reverse(4))]
    inlet.handle(data(0, 5, 6))
    inlet.handle(Taken(5))
    inlet.handle(Detached(0))
    assert inlet.handle(Attached(0)) == [Send(0, Ack(5)), Send(0, Reverse(6))]


def test_what_the_store_holds_is_told_to_every_copy_and_again_over_every_new_connection() -> None:
    inlet = settled(3)
    assert inlet.handle(Held(4)) == [Send(replica, Held(4)) for replica in range(3)]
    inlet.handle(Detached(2))
    assert inlet.handle(Held(3)) == [Send(replica, Held(4)) for replica in range(2)], "it never falls"
    assert inlet.handle(Attached(2)) == [Send(2, Held(4))]


# --- probing ---------------------------------------------------------------------------------------------


def test_a_copy_of_the_own_dataflow_that_is_behind_takes_over_with_its_first_news() -> None:
    inlet = Inlet("inlet", all_active(2), own=1)
    inlet.handle(Attached(0))
    inlet.handle(data(0, 4))
    assert inlet.handle(Attached(1)) == [Send(1, Reverse(4))]
    assert inlet.handle(data(0, 5)) == [Take(run(5))], "the other goes on sending"
    assert inlet.handle(data(1, 5)) == []
    assert (inlet.sender, inlet.probed) == (0, 1)
    assert inlet.handle(data(1, 6)) == [Take(run(6)), Send(0, Pause())]
    assert (inlet.sender, inlet.probed) == (1, None)
    assert inlet.handle(data(0, 7)) == [], "sent before it heard of the pause"


def test_of_a_run_that_is_partly_here_only_the_news_is_taken() -> None:
    inlet = Inlet("inlet", all_active(2), own=1)
    inlet.handle(Attached(0))
    inlet.handle(Attached(1))
    inlet.handle(data(0, 4, 5))
    assert inlet.handle(data(1, 3, 4, 6, 7)) == [Take(run(6, 7)), Send(0, Pause())]


def test_if_the_sender_is_gone_while_another_is_probed_that_one_need_not_be_asked_again() -> None:
    inlet = Inlet("inlet", all_active(2), own=1)
    inlet.handle(Attached(0))
    inlet.handle(Attached(1))
    inlet.handle(data(0, 4))
    assert inlet.handle(Detached(0)) == []
    assert inlet.handle(data(1, 4)) == [], "it is here already"
    assert inlet.handle(data(1, 5)) == [Take(run(5))]


def test_if_the_probed_copy_is_gone_the_sender_goes_on() -> None:
    inlet = Inlet("inlet", all_active(2), own=1)
    inlet.handle(Attached(0))
    inlet.handle(Attached(1))
    assert inlet.handle(Detached(1)) == []
    assert inlet.handle(data(0, 4)) == [Take(run(4))]


# --- take-over -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [Detached(1), Fail(1)])
@pytest.mark.parametrize("replicas", [2, 3])
def test_when_the_sender_is_gone_another_is_asked_for_what_was_not_received(
    gone: object, replicas: int
) -> None:
    inlet = settled(replicas)
    inlet.handle(data(1, 4))
    inlet.handle(Taken(0))
    assert inlet.handle(gone) == [Send(0, Reverse(4))], "received, not taken: 4 is here already"
    assert inlet.handle(data(0, 5)) == [Take(run(5))]


def test_a_copy_that_sends_what_it_was_told_is_here_breaks_the_protocol() -> None:
    inlet = settled()
    inlet.handle(data(1, 4))
    assert inlet.handle(Detached(1)) == [Send(0, Reverse(4))]
    with pytest.raises(PeerError, match="replica 0 sent bucket 3 after 4"):
        inlet.handle(data(0, 3, 5))


def test_an_active_copy_is_asked_rather_than_a_newcomer() -> None:
    inlet = Inlet("inlet", {0: STDBY, 1: ACTIVE, 2: ACTIVE}, own=1)
    for replica in (1, 0, 2):
        inlet.handle(Attached(replica))
    assert inlet.handle(Detached(1)) == [Send(2, Reverse(NOTHING))]


def test_a_newcomer_that_was_called_active_is_asked_like_any_other() -> None:
    inlet = Inlet("sink", {0: STDBY, 1: ACTIVE, 2: ACTIVE}, own=None)
    for replica in (1, 0, 2):
        inlet.handle(Attached(replica))
    inlet.handle(Activated(0))
    assert inlet.handle(Detached(1)) == [Send(0, Reverse(NOTHING))]


def test_an_own_newcomer_that_attaches_again_is_only_probed_if_an_active_copy_is_there() -> None:
    inlet = Inlet("inlet", {0: STDBY, 1: ACTIVE}, own=0)
    inlet.handle(Attached(0))
    inlet.handle(Attached(1))
    assert inlet.handle(Attached(0)) == [Send(1, Reverse(NOTHING)), Send(0, Reverse(NOTHING))]
    assert (inlet.sender, inlet.probed) == (1, 0)


def test_a_newcomer_is_asked_if_it_is_the_only_one() -> None:
    inlet = settled()
    inlet.handle(Fail(0))
    inlet.handle(Avail(0))
    inlet.handle(Attached(0))
    assert inlet.handle(Fail(1)) == [Send(0, Reverse(0))]


def test_with_no_copy_left_nothing_is_asked_until_one_attaches() -> None:
    inlet = settled()
    inlet.handle(Detached(0))
    assert inlet.handle(Detached(1)) == []
    assert inlet.sender is None
    assert inlet.handle(Taken(0)) == []
    assert inlet.handle(Attached(0)) == [Send(0, Ack(0)), Send(0, Reverse(0))]


# --- pauses ----------------------------------------------------------------------------------------------


def test_what_was_sent_before_a_pause_is_ignored_even_if_the_sender_was_asked_again() -> None:
    inlet = settled()
    inlet.handle(data(1, 4))
    inlet.handle(Detached(1))
    inlet.handle(Attached(1))
    assert inlet.handle(data(1, 5)) == [Take(run(5)), Send(0, Pause())]
    assert inlet.handle(Detached(1)) == [Send(0, Reverse(5))]
    # Sent upon the first request; 6 came while the other one was to send.
    assert inlet.handle(data(0, 7)) == []
    assert inlet.handle(From(0, Paused())) == []
    assert inlet.handle(data(0, 6)) == [Take(run(6))]


def test_every_pause_has_its_own_answer() -> None:
    inlet = settled()
    for number in (1, 2):
        inlet.handle(Detached(1))
        inlet.handle(Attached(1))
        assert inlet.handle(data(1, number))[-1] == Send(0, Pause())
    inlet.handle(Detached(1))
    inlet.handle(From(0, Paused()))
    assert inlet.handle(data(0, 9)) == [], "the second pause is not answered yet"
    inlet.handle(From(0, Paused()))
    assert inlet.handle(data(0, 3)) == [Take(run(3))]


def test_no_answer_to_a_pause_is_awaited_on_a_new_connection() -> None:
    inlet = settled()
    inlet.handle(Detached(1))
    inlet.handle(Attached(1))
    assert inlet.handle(data(1, 1))[-1] == Send(0, Pause())
    # The connection breaks between the pause and its answer.
    inlet.handle(Detached(0))
    inlet.handle(Attached(0))
    assert inlet.handle(Detached(1)) == [Send(0, Reverse(1))]
    assert inlet.handle(data(0, 2)) == [Take(run(2))]


def test_an_attach_over_a_connection_that_was_not_seen_to_break_begins_again() -> None:
    inlet = settled()
    assert inlet.handle(Attached(1)) == [Send(1, Reverse(0))]
    assert inlet.handle(data(1, 1)) == [Take(run(1))]


# --- newcomers -------------------------------------------------------------------------------------------


def test_a_newcomer_of_the_own_dataflow_is_probed_as_soon_as_it_is_connected() -> None:
    inlet = settled()
    inlet.handle(data(1, 4))
    inlet.handle(Taken(4))
    assert inlet.handle(Fail(1)) == [Send(0, Reverse(4))]
    assert inlet.handle(Avail(1)) == []
    assert inlet.handle(Attached(1, 4)) == [Send(1, Ack(4)), Send(1, Reverse(4))]
    assert (inlet.sender, inlet.probed) == (0, 1)
    assert inlet.handle(Activated(1)) == []
    assert inlet.handle(data(1, 5)) == [Take(run(5)), Send(0, Pause())]


def test_a_newcomer_of_another_dataflow_gets_the_acknowledgement_and_is_not_asked() -> None:
    inlet = settled(3)
    inlet.handle(Taken(0))
    inlet.handle(Fail(2))
    inlet.handle(Avail(2))
    assert inlet.status[2] is STDBY
    assert inlet.handle(Attached(2)) == [Send(2, Ack(0))]
    inlet.handle(Fail(2))
    assert inlet.status[2] is DEAD


# --- backups ---------------------------------------------------------------------------------------------


def backup(replicas: int = 2, through: int = 5) -> Inlet:
    """An inlet of a backup whose snapshot holds everything through a number, with all producers attached."""
    inlet = Inlet("inlet", all_active(replicas), own=1, passive=True)
    assert inlet.hold(through) == []
    for replica in range(replicas):
        assert inlet.handle(Attached(replica)) == [Send(replica, Ack(through))]
    return inlet


def test_a_backup_acknowledges_what_its_snapshot_holds_and_asks_no_copy_to_send() -> None:
    inlet = backup()
    assert inlet.hold(8) == [Send(0, Ack(8)), Send(1, Ack(8))]
    assert (inlet.taken, inlet.received, inlet.sender, inlet.probed) == (8, 8, None, None)
    assert inlet.handle(Detached(0)) == []
    assert inlet.handle(Fail(1)) == []
    inlet.check()


def test_what_a_backup_acknowledged_never_falls() -> None:
    inlet = backup()
    assert inlet.hold(3) == [Send(0, Ack(5)), Send(1, Ack(5))]


def test_a_backup_that_takes_over_asks_for_what_follows_its_snapshot() -> None:
    inlet = backup()
    assert inlet.handle(data(1, 6)) == [], "it was not asked for"
    assert inlet.take_over() == [Send(1, Reverse(5))]
    assert inlet.handle(data(1, 6)) == [Take(run(6))]
    assert inlet.handle(Taken(6)) == [Send(0, Ack(6)), Send(1, Ack(6))]
    inlet.check()


def test_a_backup_that_takes_over_alone_asks_whichever_copy_comes() -> None:
    inlet = Inlet("inlet", all_active(1), own=1, passive=True)
    inlet.hold(5)
    assert inlet.take_over() == []
    assert inlet.handle(Attached(0)) == [Send(0, Ack(5)), Send(0, Reverse(5))]


def test_only_a_backup_is_told_what_it_holds() -> None:
    with pytest.raises(BrokenInvariant, match="takes data, and was told what it holds"):
        settled().hold(9)
