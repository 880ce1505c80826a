"""Exact instruction lists of every machine, and that a rejected event leaves no trace."""

from __future__ import annotations

import copy

import pytest

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.buffer import Acks
from understudy.core.egress import Egress
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.ingress import Ingress
from understudy.core.instructions import (
    Deliver,
    FoldedIn,
    Process,
    RequestMove,
    Send,
    SendEgress,
    SendIngress,
    ShipState,
    TakeSnapshot,
    Trimmed,
)
from understudy.core.machine import Machine
from understudy.core.messages import (
    Ack,
    Attached,
    CSync,
    Data,
    Delivered,
    Detached,
    EgressUp,
    From,
    IngressDown,
    IngressUp,
    Installed,
    MoverReady,
    PairAvailable,
    PairFailed,
    Processed,
    Produced,
    PSync,
    Reverse,
    Sealed,
    SnapshotTaken,
)
from understudy.core.replica import Replica
from understudy.core.s_cons import SCons
from understudy.core.s_prod import SProd
from understudy.core.view import Activated, Avail, Fail, Slot, Status
from understudy.sim.state import freeze

PRIM, SEC = Slot.PRIM, Slot.SEC
BOTH = {PRIM: Status.ACTIVE, SEC: Status.ACTIVE}
B1, B2, B3 = (Bucket(n, (n,), 1) for n in (1, 2, 3))


def ingress_with_both() -> Ingress:
    ingress = Ingress(BOTH)
    ingress.handle(Attached(PRIM))
    ingress.handle(Attached(SEC))
    return ingress


def ingress_with_standby() -> Ingress:
    ingress = ingress_with_both()
    ingress.handle(Fail(SEC))
    ingress.handle(Avail(SEC))
    return ingress


def active_replica() -> Replica:
    replica = Replica("n1", Status.ACTIVE)
    replica.handle(IngressUp())
    replica.handle(EgressUp())
    replica.handle(Reverse(NOTHING))
    return replica


# --- ingress ---------------------------------------------------------------------------------------------


def test_ingress_sends_a_sealed_bucket_to_both_and_trims_when_both_have_acknowledged() -> None:
    ingress = ingress_with_both()
    ingress.handle(Sealed(Bucket(0)))
    assert ingress.handle(Sealed(B1)) == [Send(PRIM, Data(B1)), Send(SEC, Data(B1))]
    assert ingress.handle(From(PRIM, Ack(1))) == []
    assert ingress.handle(From(SEC, Ack(1))) == [Trimmed(1)]


def test_ingress_no_longer_waits_for_a_dead_replica() -> None:
    ingress = ingress_with_both()
    ingress.handle(Sealed(B1))
    ingress.handle(From(PRIM, Ack(1)))
    assert ingress.handle(Fail(SEC)) == [Trimmed(1)]


def test_ingress_sends_again_to_a_replica_that_attaches_again() -> None:
    ingress = ingress_with_both()
    ingress.handle(Sealed(B1))
    ingress.handle(Sealed(B2))
    ingress.handle(Detached(SEC))
    assert ingress.handle(Attached(SEC, through=1)) == [Send(SEC, Data(B2))]


@pytest.mark.parametrize("standby_first", [True, False])
def test_ingress_starts_a_newcomer_when_both_have_named_the_checkpoint(standby_first: bool) -> None:
    ingress = ingress_with_standby()
    ingress.handle(Sealed(B1))
    ingress.handle(From(PRIM, Ack(1)))
    ingress.handle(Attached(SEC, through=1, version=1, checkpoint=1))
    ingress.handle(Sealed(B2))
    words = [From(SEC, CSync(1, 1)), From(PRIM, CSync(1, 1))]
    first, second = words if standby_first else words[::-1]
    assert ingress.handle(first) == []
    assert ingress.handle(second) == [FoldedIn(SEC), Send(SEC, Data(B2))]


def test_ingress_keeps_for_a_newcomer_what_the_active_one_acknowledges_after_its_checkpoint() -> None:
    ingress = ingress_with_standby()
    ingress.handle(Sealed(B1))
    ingress.handle(From(PRIM, CSync(1, NOTHING)))
    ingress.handle(From(PRIM, Ack(1)))
    assert list(ingress.buffer) == [B1]


def test_ingress_takes_a_newcomer_alone_once_the_active_one_is_dead() -> None:
    ingress = ingress_with_standby()
    ingress.handle(Sealed(B1))
    ingress.handle(Attached(SEC, version=1))
    ingress.handle(From(SEC, CSync(1, NOTHING)))
    assert ingress.handle(Fail(PRIM)) == [FoldedIn(SEC), Send(SEC, Data(B1))]


def test_a_restarted_ingress_that_hears_of_an_activation_starts_the_replica_that_is_there() -> None:
    ingress = Ingress({PRIM: Status.ACTIVE, SEC: Status.STDBY}, recovered=[B1, B2])
    ingress.handle(Attached(SEC, through=1, version=1))
    assert ingress.handle(Activated(SEC)) == [Send(SEC, Data(B2))]


# --- egress ----------------------------------------------------------------------------------------------


def test_egress_acknowledges_to_both_what_its_sink_holds() -> None:
    egress = Egress(BOTH)
    assert egress.handle(Attached(PRIM)) == [Send(PRIM, Reverse(NOTHING))]
    assert egress.handle(Attached(SEC)) == []
    assert egress.handle(From(PRIM, Data(B1))) == [Deliver(B1)]
    assert egress.handle(Delivered(1)) == [Send(PRIM, Ack(1)), Send(SEC, Ack(1))]


def test_egress_turns_to_the_other_one_when_the_senders_connection_breaks() -> None:
    egress = Egress(BOTH)
    egress.handle(Attached(PRIM))
    egress.handle(Attached(SEC))
    egress.handle(From(PRIM, Data(B1)))
    assert egress.handle(Detached(PRIM)) == [Send(SEC, Reverse(1))]


def test_egress_owes_the_newcomer_what_came_after_the_active_ones_psync() -> None:
    egress = Egress(BOTH, acks=Acks.EACH)
    egress.handle(Attached(PRIM))
    egress.handle(Fail(SEC))
    egress.handle(Avail(SEC))
    egress.handle(From(PRIM, Data(B1)))
    egress.handle(From(PRIM, PSync(1)))
    egress.handle(From(PRIM, Data(B2)))
    egress.handle(Attached(SEC, version=1))
    assert egress.handle(From(SEC, PSync(1))) == [Send(SEC, Ack(2)), FoldedIn(SEC)]


def test_with_single_acks_egress_owes_a_replica_that_attaches_late() -> None:
    egress = Egress(BOTH, acks=Acks.EACH)
    egress.handle(Attached(PRIM))
    egress.handle(From(PRIM, Data(B1)))
    assert egress.handle(Attached(SEC)) == [Send(SEC, Ack(1))]


def test_a_restarted_egress_that_hears_of_an_activation_lets_the_replica_that_is_there_send() -> None:
    egress = Egress({PRIM: Status.ACTIVE, SEC: Status.STDBY}, delivered=1)
    egress.handle(Attached(SEC, version=1))
    assert egress.handle(Activated(SEC)) == [Send(SEC, Ack(1)), Send(SEC, Reverse(1))]


# --- a replica -------------------------------------------------------------------------------------------


def test_a_replica_acknowledges_a_group_before_its_engine_sees_it() -> None:
    replica = active_replica()
    assert replica.handle(Data(B1)) == [SendIngress(Ack(1)), Process((B1,))]
    assert replica.handle(Data(B2)) == []
    assert replica.handle(Data(B3)) == []
    assert replica.handle(Processed()) == [SendIngress(Ack(3)), Process((B2, B3))]


def test_what_waits_in_a_replica_is_forgotten_when_its_connection_breaks() -> None:
    replica = active_replica()
    replica.handle(Data(B1))
    replica.handle(Data(B2))
    replica.handle(IngressDown())
    assert (replica.s_cons.handed, replica.s_cons.received) == (1, 1)


def test_an_active_replica_snapshots_when_the_movers_have_met_and_its_engine_stands_still() -> None:
    replica = active_replica()
    replica.handle(Data(B1))
    assert replica.handle(PairAvailable()) == [RequestMove(sending=True)]
    assert replica.handle(MoverReady()) == []
    replica.handle(Produced(B1))
    assert replica.handle(Processed()) == [TakeSnapshot(1, 1)]
    state = Installed(1, 1, (B1,), (), produced_through=1, acked_through=NOTHING)
    sync, csync = SendEgress(PSync(1)), SendIngress(CSync(1, 1))
    assert replica.handle(SnapshotTaken()) == [sync, ShipState(state), csync]


def test_a_standby_that_comes_during_the_snapshot_for_its_predecessor_is_not_forgotten() -> None:
    replica = active_replica()
    replica.handle(PairAvailable())
    replica.handle(MoverReady())
    replica.handle(PairFailed())
    replica.handle(PairAvailable())
    assert replica.handle(SnapshotTaken())[-1] == RequestMove(sending=True)


def test_an_installed_standby_names_its_checkpoint_on_every_connection() -> None:
    replica = Replica("n3", Status.STDBY)
    assert replica.handle(PairAvailable()) == [RequestMove(sending=False)]
    replica.handle(Installed(1, 2, (B2,), (), produced_through=2, acked_through=1))
    assert replica.handle(IngressUp()) == [SendIngress(CSync(1, 2))]
    assert replica.handle(EgressUp()) == [SendEgress(PSync(1))]
    replica.handle(IngressDown())
    assert replica.handle(IngressUp()) == [SendIngress(CSync(1, 2))]


def test_a_replica_told_to_send_sends_what_egress_does_not_have_and_keeps_it_all() -> None:
    replica = Replica("n1", Status.ACTIVE)
    replica.handle(EgressUp())
    for bucket in (B1, B2):
        replica.handle(Produced(bucket))
    assert replica.handle(Reverse(1)) == [SendEgress(Data(B2))]
    assert list(replica.s_prod.buffer) == [B1, B2]


# --- rejected events -------------------------------------------------------------------------------------


def egress_with_both() -> Egress:
    egress = Egress(BOTH)
    egress.handle(Attached(PRIM))
    egress.handle(From(PRIM, Data(B2)))
    egress.handle(Fail(SEC))
    return egress


INSTALLED = Installed(1, 2, (B2,), (), produced_through=2, acked_through=1)


@pytest.mark.parametrize(
    ("machine", "event"),
    [
        (ingress_with_both(), From(PRIM, Data(B1))),
        (ingress_with_both(), Avail(PRIM)),
        (ingress_with_standby(), From(SEC, Ack(1))),
        (ingress_with_standby(), Avail(SEC)),
        (Ingress({PRIM: Status.ACTIVE, SEC: Status.DEAD}), Attached(SEC)),
        (Ingress({PRIM: Status.ACTIVE, SEC: Status.DEAD}), From(SEC, CSync(1, 1))),
        (Ingress({PRIM: Status.ACTIVE, SEC: Status.DEAD}), Activated(SEC)),
        (Ingress(BOTH, buckets_max=1, recovered=[B1]), Sealed(B2)),
        (Ingress(BOTH, recovered=[B2]), Sealed(B1)),
        (egress_with_both(), From(PRIM, Data(B1))),
        (egress_with_both(), From(SEC, PSync(1))),
        (egress_with_both(), Attached(SEC)),
        (egress_with_both(), Activated(SEC)),
        (egress_with_both(), Avail(PRIM)),
        (egress_with_both(), Delivered(3)),
        (egress_with_both(), From(PRIM, Ack(1))),
        (Replica("n1", Status.ACTIVE), Data(B1)),
        (Replica("n1", Status.ACTIVE), Ack(1)),
        (Replica("n1", Status.ACTIVE), Reverse(1)),
        (Replica("n1", Status.ACTIVE), Processed()),
        (Replica("n1", Status.ACTIVE), SnapshotTaken()),
        (Replica("n1", Status.ACTIVE), INSTALLED),
        (Replica("n1", Status.STDBY), IngressUp()),
        (Replica("n1", Status.STDBY), Installed(1, 2, (B3,), (), produced_through=2, acked_through=1)),
        (Replica("n1", Status.ACTIVE), CSync(1, 1)),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value)[:60],
)
def test_a_rejected_event_leaves_no_trace(machine: Machine, event: object) -> None:
    before = freeze(copy.deepcopy(machine))
    with pytest.raises((PeerError, BrokenInvariant), match="rejected"):
        machine.handle(event)
    assert freeze(machine) == before
    machine.check()


def test_s_cons_refuses_a_bucket_that_does_not_rise() -> None:
    s_cons = SCons(SProd())
    s_cons.handle(IngressUp())
    s_cons.handle(Data(Bucket(5)))
    for number in (5, 4):
        with pytest.raises(PeerError, match=f"bucket {number} came after 5"):
            s_cons.handle(Data(Bucket(number)))
