"""The proof that the checkers bite: each known way to get the protocol wrong is built in and must be found.

Every mutation changes the real machines for one test. The random schedules must catch it within a bounded
number of seeds, by an invariant that this very mistake breaks. Rare ones begin near a seed that is known to
reach them, to keep the test short; counted from zero they take as many seeds as `first_seed` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from understudy.core.buffer import Acks, MarkedBuffer
from understudy.core.egress import Egress
from understudy.core.ingress import Ingress
from understudy.core.instructions import FoldedIn, SendIngress
from understudy.core.messages import Ack, Data
from understudy.core.s_cons import Movement, SCons
from understudy.core.s_prod import EGRESS, SProd

from understudy.core.view import Fail, Status
from understudy.sim import random_schedules
from understudy.sim.checkers import Violation
from understudy.sim.random_schedules import run_seed
from understudy.sim.scenario import PRIM, SEC, bucket, kill, kill_gateway, standby, wait
from understudy.sim.scenario_run import run_scenario

SEEDS_MAX = 1_500
Patch = pytest.MonkeyPatch


def first_violation(acks: Acks, first_seed: int) -> Violation:
    for seed in range(first_seed, first_seed + SEEDS_MAX):
        try:
            run_seed("pair", seed, acks)
        except Violation as violation:
            return violation
    pytest.fail(f"no checker noticed within {SEEDS_MAX} seeds")


def forget_early_acks(patch: Patch) -> None:
    ack, ack_through = MarkedBuffer.ack, MarkedBuffer.ack_through
    patch.setattr(
        MarkedBuffer, "ack", lambda b, n, d, r: ack(b, n, d, r) if n <= b.produced_through else None
    )
    patch.setattr(
        MarkedBuffer, "ack_through", lambda b, n, d, r: ack_through(b, min(n, b.produced_through), d, r)
    )


def drop_on_one_ack(patch: Patch) -> None:
    patch.setattr(
        MarkedBuffer, "_done", lambda b, n, required: any(b.acknowledged(n, dest) for dest in required)
    )


def start_on_the_standbys_word(patch: Patch) -> None:
    def fold_in(ingress: Ingress) -> list[object]:
        for slot, status in ingress.status.items():
            if status is Status.STDBY and ingress.version[slot] is not None:
                ingress.status[slot] = Status.ACTIVE
                ingress.required.add(slot)
                ingress._start(slot)
                return [FoldedIn(slot)]
        return []

    patch.setattr(Ingress, "_fold_in", fold_in)


def reserve_nothing(patch: Patch) -> None:
    def reserve(ingress: Ingress, slot: object, other: object, version: int, checkpoint: int) -> None:
        ingress.version[slot] = version
        if other is not None and ingress.status[other] is Status.STDBY:
            ingress.buffer.reset(other, like=slot, required=ingress.required, through=checkpoint)

    patch.setattr(Ingress, "_reserve", reserve)
    fold_in = Ingress._fold_in

    def require_late(ingress: Ingress) -> list[object]:
        done = fold_in(ingress)
        ingress.required |= {slot for slot, status in ingress.status.items() if status is Status.ACTIVE}
        return done

    patch.setattr(Ingress, "_fold_in", require_late)


def ack_on_receipt(patch: Patch) -> None:
    handle = SCons._handle

    def acknowledging(s_cons: SCons, event: object) -> list[object]:
        done = handle(s_cons, event)
        return [SendIngress(Ack(event.bucket.number)), *done] if isinstance(event, Data) else done

    patch.setattr(SCons, "_handle", acknowledging)


def never_switch(patch: Patch) -> None:
    choose = Egress._choose_sender
    patch.setattr(Egress, "_choose_sender", lambda e: choose(e) if e.sender is None else [])
    patch.setattr(Egress, "check", lambda e: None)


def reverse_without_rewinding(patch: Patch) -> None:
    patch.setattr(SProd, "_reverse", lambda s_prod, through: setattr(s_prod, "sending", True))


def reverse_as_acknowledgement(patch: Patch) -> None:
    def reverse(s_prod: SProd, through: int) -> None:
        s_prod.buffer.ack_through(through, EGRESS, {EGRESS})
        s_prod.buffer.rewind(EGRESS)
        s_prod.sending = True

    patch.setattr(SProd, "_reverse", reverse)


def no_fencing(patch: Patch) -> None:
    setup_of = random_schedules.setup_of
    patch.setattr(random_schedules, "setup_of", lambda *a: replace(setup_of(*a), fencing=False))


def messages_overtake_views(patch: Patch) -> None:
    setup_of = random_schedules.setup_of
    patch.setattr(random_schedules, "setup_of", lambda *a: replace(setup_of(*a), views_travel=False))


def forget_the_log(patch: Patch) -> None:
    init = Ingress.__init__
    patch.setattr(Ingress, "__init__", lambda i, s, *, recovered=(), **rest: init(i, s, **rest))  # noqa: PLW0108


def install_without_output(patch: Patch) -> None:
    install = SProd._install
    patch.setattr(SProd, "_install", lambda s_prod, state: install(s_prod, replace(state, unacked=())))


def wait_for_the_dead(patch: Patch) -> None:
    handle = Ingress._handle

    def waiting(ingress: Ingress, event: object) -> list[object]:
        if isinstance(event, Fail):
            ingress._fail(event.slot)
            return ingress._go_on()
        return handle(ingress, event)

    patch.setattr(Ingress, "_handle", waiting)


def forget_the_next_standby(patch: Patch) -> None:
    taken = SCons._snapshot_taken

    def forgetting(s_cons: SCons) -> list[object]:
        done = taken(s_cons)
        s_cons.movement = Movement.NONE
        return done

    patch.setattr(SCons, "_snapshot_taken", forgetting)


EACH, CUMULATIVE = Acks.EACH, Acks.CUMULATIVE
INPUT = {"input-loss-free", "input-dup-free"}


@pytest.mark.parametrize(
    ("mutate", "acks", "first_seed", "invariants"),
    [
        (forget_early_acks, EACH, 0, {"sound", "converged", "dup-free"}),
        (forget_early_acks, CUMULATIVE, 0, {"sound", "converged", "dup-free"}),
        (drop_on_one_ack, CUMULATIVE, 0, {"input-loss-free"}),
        (start_on_the_standbys_word, CUMULATIVE, 0, INPUT),
        (reserve_nothing, CUMULATIVE, 0, {"input-loss-free", "converged"}),
        (ack_on_receipt, CUMULATIVE, 0, {"input-loss-free", "sound"}),
        (never_switch, CUMULATIVE, 0, {"converged"}),
        (reverse_without_rewinding, CUMULATIVE, 0, {"loss-free", "sound", "converged"}),
        (reverse_as_acknowledgement, CUMULATIVE, 450, {"loss-free"}),
        (no_fencing, CUMULATIVE, 0, {"sound", "input-loss-free", "loss-free", "dup-free", "converged"}),
        (messages_overtake_views, CUMULATIVE, 480, {"input-loss-free", "sound"}),
        (forget_the_log, CUMULATIVE, 0, {"input-loss-free", "converged"}),
        (install_without_output, CUMULATIVE, 0, {"loss-free"}),
        (forget_the_next_standby, CUMULATIVE, 0, {"converged"}),
    ],
)
def test_a_known_mistake_is_caught_by_the_invariant_it_breaks(
    mutate: Callable[[Patch], None], acks: Acks, first_seed: int, invariants: set[str], monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    assert first_violation(acks, first_seed).invariant in invariants


def test_an_ingress_that_waits_for_the_dead_is_caught_when_the_active_one_dies_after_movement(
    monkeypatch: Patch,
) -> None:
    wait_for_the_dead(monkeypatch)
    with pytest.raises(Violation) as caught:
        run_scenario(
            [
                *(wait("attached"), wait("attached"), bucket(4), kill(SEC), standby(), bucket(4)),
                *(wait("installed"), kill_gateway(), wait("attached"), kill(PRIM), bucket(4)),
            ]
        )
    assert caught.value.invariant == "converged"
