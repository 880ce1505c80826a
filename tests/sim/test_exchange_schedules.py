"""Partition pairs under random schedules, and the proof that the checkers bite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from understudy.core.inlet import Inlet
from understudy.core.instructions import Instruction, Send
from understudy.core.merge import Merge
from understudy.core.messages import Ack, Data, OutletState
from understudy.core.outlet import Outlet

from understudy.core.bucket import Bucket
from understudy.core.view import Slot
from understudy.sim.checkers import Violation
from understudy.sim.exchange_flow import Shape
from understudy.sim.exchange_schedules import run_exchange, simulate_exchange

Patch = pytest.MonkeyPatch
SEEDS_MAX = 150


def test_nothing_is_lost_repeated_or_stuck_in_random_schedules() -> None:
    killed = caught_up = steps = 0
    for seed in range(60):
        world = run_exchange(seed)
        killed += world.faults["kill"]
        caught_up += world.caught_up
        steps += world.steps
    print(f"60 seeds, {steps} steps, {killed} kills, {caught_up} catch-ups")
    assert killed > 60
    assert caught_up > 60


@pytest.mark.parametrize(
    "shape",
    [
        Shape(partitions=(4, 4), nodes=4, spares=1, buckets=15, faults=4),
        Shape(partitions=(3, 1, 2), nodes=3, spares=2, buckets=15),
        Shape(partitions=(1,), nodes=2, spares=3, buckets=40, faults=10),
    ],
)
def test_other_shapes_of_a_flow(shape: Shape) -> None:
    assert sum(run_exchange(seed, shape).faults["kill"] for seed in range(10)) > 0


def test_flows_of_all_shapes() -> None:
    summary = simulate_exchange(40, 1_000)
    assert summary.violations == []
    assert summary.caught_up > 20


def test_a_seed_is_a_run() -> None:
    first, second = run_exchange(3), run_exchange(3)
    assert (first.steps, list(first.story)) == (second.steps, list(second.story))


# --- known mistakes --------------------------------------------------------------------------------------


def send_to_a_newcomer_at_once(patch: Patch) -> None:
    def start(outlet: Outlet, slot: Slot) -> None:
        if slot in outlet._asked:
            outlet.buffer.rewind(slot, after=outlet._asked.pop(slot))
            outlet.sending.add(slot)

    patch.setattr(Outlet, "_start", start)


def look_at_what_was_sent_before_a_pause(patch: Patch) -> None:
    data = Inlet._data

    def eager(inlet: Inlet, slot: Slot, bucket: Bucket) -> list[Instruction]:
        inlet._pausing[slot], asked = 0, inlet._pausing[slot]
        try:
            return data(inlet, slot, bucket)
        finally:
            inlet._pausing[slot] = asked

    patch.setattr(Inlet, "_data", eager)


def acknowledge_on_receipt(patch: Patch) -> None:
    data = Inlet._data

    def receive(inlet: Inlet, slot: Slot, bucket: Bucket) -> list[Instruction]:
        done = data(inlet, slot, bucket)
        acks = [Send(each, Ack(inlet.received)) for each in inlet.attached] if done else []
        return [*done, *acks]

    patch.setattr(Inlet, "_data", receive)


def reserve_nothing(patch: Patch) -> None:
    patch.setattr(Outlet, "_reserve", lambda o, slot, version, _through: o.version.update({slot: version}))


def drop_when_sent(patch: Patch) -> None:
    go_on = Outlet._go_on

    def forgetful(outlet: Outlet) -> list[Instruction]:
        done = go_on(outlet)
        for each in done:
            if isinstance(each, Send) and isinstance(each.message, Data):
                for slot in outlet.status:
                    outlet.buffer.ack_through(each.message.bucket.number, slot, outlet.required)
        return done

    patch.setattr(Outlet, "_go_on", forgetful)


def move_without_marks(patch: Patch) -> None:
    state = Outlet.state
    patch.setattr(Outlet, "state", lambda o: OutletState((), state(o).produced_through, ()))


def merge_without_waiting(patch: Patch) -> None:
    patch.setattr(Merge, "frontier", property(lambda merge: max(merge._received.values())))
    patch.setattr(Merge, "check", lambda _merge: None)


def keep_the_old_sender(patch: Patch) -> None:
    choose = Inlet._choose_sender
    patch.setattr(Inlet, "_choose_sender", lambda i: choose(i) if i.sender is None else [])
    patch.setattr(Inlet, "_detach", lambda i, slot: i.attached.discard(slot) or [])
    patch.setattr(Inlet, "check", lambda _inlet: None)


@pytest.mark.parametrize(
    "mutate",
    [
        send_to_a_newcomer_at_once,
        look_at_what_was_sent_before_a_pause,
        acknowledge_on_receipt,
        reserve_nothing,
        drop_when_sent,
        move_without_marks,
        merge_without_waiting,
        keep_the_old_sender,
    ],
)
def test_a_known_mistake_is_caught(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            run_exchange(seed)
        except Violation as violation:
            print(seed, violation.invariant, violation.what.splitlines()[0])
            return
    pytest.fail(f"no checker noticed within {SEEDS_MAX} seeds")
