"""Schedules written by hand of flows that save their state: what chance brings about too rarely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from mutations import saving
from saved_flows import FIRST, SECOND, UPPER, number, saved, saving_flow

from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy, Partition
from understudy.sim.checkers import Violation
from understudy.sim.scenario import (
    Act,
    Script,
    Wait,
    expire,
    feed,
    hold,
    join,
    kill,
    kill_gateway,
    release,
    sever,
    until,
    wait,
)
from understudy.sim.setup import Setup
from understudy.sim.world import World

SEEDS = range(10)


def begun(copy: Copy, node: str) -> Wait:
    return until(
        f"{copy} has begun on {node}",
        lambda world: copy in (there := world.processes[node].host.residents) and there[copy].begun,
    )


def forgotten(bucket: int) -> Wait:
    return until(
        f"the log has forgotten bucket {bucket}",
        lambda world: world.disk.forgotten["source"] >= number(world, bucket),
    )


def gap(copy: Copy) -> Wait:
    return until(
        f"an outlet of {copy} has a gap",
        lambda world: any(
            resident.machine.above is not None and resident.machine.above.gap
            for process in world.processes.values()
            for at, resident in process.host.residents.items()
            if at == copy
        ),
    )


#: The only copy is declared dead and does not know it. Its successor begins with bucket 4, and the former
#: copy saves newer states before the successor reaches the gateway.
OVERTAKEN: list[Act] = [
    wait("active"),
    feed(4),
    saved(4),
    hold("view", "n01"),
    hold("view", GATEWAY),
    hold("call", "n02"),
    join(),
    expire(FIRST),
    begun(FIRST, "n02"),
    feed(6),
    saved(8),
    forgotten(8),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_whose_saved_state_was_overtaken_by_a_dead_one_goes_back_to_a_newer_one(seed: int) -> None:
    world = Script(saving_flow(), seed).run(OVERTAKEN)
    assert world.happened["lacking"] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gateway_that_began_again_meanwhile_knows_what_its_log_has_forgotten(seed: int) -> None:
    world = Script(saving_flow(), seed).run([*OVERTAKEN, kill_gateway(), release("call", "n02")])
    assert world.happened["lacking"] > 0


def _all_restored(world: World) -> bool:
    assert world.view is not None
    return all(seats.restored for seats in world.view.partitions.values())


#: The only copy is lost after its state was saved.
LOST: list[Act] = [wait("active"), feed(4), saved(4), feed(4), kill(FIRST), join()]
#: The producer has saved that its consumer has bucket 8; the consumer has saved bucket 4. Both are lost, and
#: begin again before their new nodes have seen any view.
BOTH_LOST: list[Act] = [
    wait("active"),
    feed(4),
    saved(4, UPPER),
    hold("save", "n02"),
    feed(4),
    wait("delivered"),
    saved(8),
    hold("view", "n03"),
    hold("view", "n04"),
    join(),
    join(),
    until("the leader knows both", lambda world: {"n03", "n04"} <= world.store.leader.heard_of.keys()),
    kill(FIRST),
    kill(UPPER),
    until("both are to begin again", _all_restored),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_two_saved_states_of_different_moments_fit_together(seed: int) -> None:
    world = Script(saving_flow(f=1, g=1), seed).run(BOTH_LOST)
    assert world.happened["lacking"] == 0


#: The consumer saves nothing after bucket 2, so that its producer cannot keep all that it would need.
GAP: list[Act] = [
    wait("active"),
    feed(2),
    saved(2, UPPER),
    hold("save", "n02"),
    feed(10),
    gap(FIRST),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_consumer_that_no_producer_can_serve_goes_back_together_with_its_producer(seed: int) -> None:
    world = Script(saving_flow(buckets_max=2, f=1, g=1), seed).run([*GAP, kill(UPPER), join()])
    assert world.happened["lacking"] > 0
    assert world.view is not None
    assert all(seats.restored for seats in world.view.partitions.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_producer_with_a_gap_that_is_lost_first_makes_everything_again(seed: int) -> None:
    acts = [*GAP, kill(FIRST), kill(UPPER), join(), join()]
    Script(saving_flow(buckets_max=2, f=1, g=1), seed).run(acts)


#: A standby of the producer fetches its state; then the consumer is lost and begins with an older state than
#: the producer's outlet knew of, and the lender dies.
LENDER_DIES: list[Act] = [
    wait("active"),
    feed(4),
    saved(4, UPPER),
    saved(4),
    kill(SECOND),
    hold("install"),
    feed(6),
    join(),
    wait("fetched"),
    hold("save"),
    kill(UPPER),
    kill(Copy(UPPER.partition, 1)),
    join(),
    until("the consumer begins again", lambda world: world.view is not None and bool(_restored(world))),
    kill(FIRST),
    release("install"),
]


def _restored(world: World) -> int:
    assert world.view is not None
    return world.view.partitions[UPPER.partition].restored


@pytest.mark.parametrize("seed", SEEDS)
def test_a_moved_outlet_serves_a_consumer_that_began_with_an_older_state_than_it_knows_of(seed: int) -> None:
    Script(saving_flow(2, f=1, g=1), seed).run(LENDER_DIES)


def _has_tried(world: World) -> bool:
    sink = world.processes[GATEWAY].host.residents.get(Copy(Partition("sink")))
    return sink is not None and SECOND in sink.tried


#: Of two copies one starts late, with a state that the other has saved meanwhile. The sink tried it before.
LATE: list[Act] = [
    hold("start", "n02"),
    feed(2),
    until("the sink has tried the late copy", _has_tried),
    hold("deliver", "n02"),
    feed(6),
    saved(6),
    release("start", "n02"),
    begun(SECOND, "n02"),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sink_that_tried_a_copy_before_it_began_is_told_to_try_again(seed: int) -> None:
    Script(saving_flow(2), seed).run(LATE)


#: The store takes no snapshot at all.
STORE_IS_AWAY: list[Act] = [wait("active"), hold("save"), feed(16), wait("delivered")]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flow_whose_store_is_away_goes_on(seed: int) -> None:
    world = Script(saving_flow(buckets_max=2, f=1, g=1), seed).run(STORE_IS_AWAY)
    assert world.happened["gaps"] > 0


#: Both copies of the consumer are lost, and the first begins again, before any producer sees a view of it. It
#: then seems as if the first had begun with the state of the second.
SKIPPED: list[Act] = [
    wait("active"),
    feed(4),
    saved(4, UPPER),
    hold("save"),
    *(hold("view", name) for name in ("n01", "n02", GATEWAY)),
    feed(6),
    wait("delivered"),
    join(),
    until("the leader knows n05", lambda world: world.store.leader.heard_of.get("n05") is True),
    hold("member"),
    kill(UPPER),
    kill(Copy(UPPER.partition, 1)),
    until("both sessions have ended", lambda world: not {"n03", "n04"} & world.store.members.keys()),
    release("member"),
    begun(UPPER, "n05"),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_producer_that_skipped_views_learns_from_the_copy_itself_what_it_has(seed: int) -> None:
    Script(saving_flow(2, f=1, g=1), seed).run(SKIPPED)


#: The connection breaks while the log is read again: some of it was sent and is lost.
REREAD: list[Act] = [
    wait("active"),
    feed(4),
    saved(4),
    hold("save"),
    feed(10),
    wait("delivered"),
    kill(FIRST),
    join(),
    until("the log is read again", lambda world: bool(world.processes[GATEWAY].rereading)),
    hold("deliver", "n02"),
    until("some of it was sent", lambda world: _reread(world, 2)),
    hold("reread"),
    sever(FIRST),
    release("deliver", "n02"),
    until("it is asked for anew", lambda world: len(world.processes[GATEWAY].rereading) > 1),
]


def _reread(world: World, pieces: int) -> bool:
    return world.happened["rereads"] >= pieces and bool(world.processes[GATEWAY].rereading)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_piece_of_the_log_that_was_asked_for_over_a_broken_connection_is_not_sent(seed: int) -> None:
    Script(saving_flow(), seed).run(REREAD)


BREAKS: list[tuple[Callable[[pytest.MonkeyPatch], None], Setup, list[Act], set[str]]] = [
    (saving.ignore_what_the_log_has_forgotten, saving_flow(), OVERTAKEN, {"kept"}),
    (saving.restore_as_a_standby, saving_flow(), LOST, {"converged"}),
    (saving.believe_saved_floors, saving_flow(f=1, g=1), BOTH_LOST, {"converged"}),
    (saving.go_back_alone, saving_flow(buckets_max=2, f=1, g=1), [*GAP, kill(UPPER), join()], {"converged"}),
    (saving.forget_what_sinks_hold, saving_flow(2), LATE, {"sound"}),
    (saving.reserves_make_full, saving_flow(buckets_max=2, f=1, g=1), STORE_IS_AWAY, {"converged"}),
    (saving.do_not_correct_the_guess, saving_flow(2, f=1, g=1), SKIPPED, {"sound"}),
    (saving.refill_for_whom_it_may_concern, saving_flow(), REREAD, {"input-loss-free", "sound"}),
    (saving.ignore_lacking, saving_flow(buckets_max=2, f=1, g=1), [*GAP, kill(UPPER), join()], {"converged"}),
    (saving.believe_moved_floors_of_new_seats, saving_flow(2, f=1, g=1), LENDER_DIES, {"converged", "sound"}),
]


@pytest.mark.parametrize(("mutation", "setup", "acts", "by"), BREAKS, ids=[m.__name__ for m, *_ in BREAKS])
def test_a_break_of_the_rule_shows_in_its_scenario(
    mutation: Callable[[pytest.MonkeyPatch], None],
    setup: Setup,
    acts: list[Act],
    by: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutation(monkeypatch)
    with pytest.raises(Violation) as caught:
        for seed in SEEDS:
            Script(replace(setup), seed).run(acts)
    assert caught.value.invariant in by
