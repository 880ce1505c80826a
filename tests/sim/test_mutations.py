"""The checkers bite: every known way to get the protocol wrong is caught, by the invariant named for it.

A break is caught if some seed of a few shows it. Seeds are fixed, so what is caught today is caught tomorrow.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mutations import backups, controllers, edges, hosts, replicas, saving

from understudy.sim.checkers import Violation
from understudy.sim.schedules import run_seed

SEEDS = 200
Mutation = Callable[[pytest.MonkeyPatch], None]

#: Breaks that every policy must notice, and by what.
EVERYWHERE: dict[Mutation, set[str]] = {
    edges.ack_on_receipt: {"state-exact"},
    edges.ack_ahead_of_engine: {"state-exact"},
    edges.drop_when_sent: {"kept"},
    edges.sink_acks_before_it_wrote: {"state-exact"},
    hosts.do_not_try_again: {"converged"},
    edges.rewind_too_little: {"loss-free", "input-loss-free", "input-contents"},
    edges.merge_without_waiting: {"kept", "contents", "input-contents", "input-loss-free"},
}
POLICIES = [("none", None), ("pair", None), ("pair", 3), ("flux", None), ("cluster", None)]
#: Breaks of replicas, and of a state's movement.
REPLICATED: dict[Mutation, set[str]] = {
    edges.drop_on_first_ack: {"kept", "sound"},
    edges.move_without_outlets: {"state-exact"},
    edges.reverse_as_acknowledgement: {"kept", "sound"},
}
PAIR: dict[Mutation, set[str]] = {
    controllers.bury_the_last_at_once: {"view-safe"},
    controllers.bury_the_last_on_suspicion: {"view-safe"},
    hosts.edges_outlive_their_connection: {"converged", "loss-free"},
    hosts.forget_the_log: {"converged", "input-loss-free"},
    edges.ignore_reverse: {"sound", "loss-free"},
    replicas.keep_snapshots: {"converged"},
    edges.keep_the_lost_sender: {"converged"},
    controllers.never_seat: {"converged"},
    hosts.no_fencing: {"sound", "converged"},
    hosts.views_do_not_travel: {"converged"},
    hosts.views_travel_once: {"converged"},
    replicas.lend_nothing: {"converged"},
    replicas.snapshot_while_busy: {"state-exact"},
}
#: Breaks that need more than a pair: a third copy, several producers, a dataflow that falls as a whole.
LARGER: dict[tuple[str, int | None], dict[Mutation, set[str]]] = {
    ("pair", 3): {
        edges.reserve_what_the_fastest_lacks: {"kept", "sound"},
        hosts.forget_views_that_came_early: {"converged"},
    },
    ("flux", None): {
        controllers.any_epoch_in_reports: {"converged", "sound", "view-safe"},
        replicas.goal_of_the_fastest: {"converged"},
    },
    ("cluster", None): {
        controllers.bury_a_copy_of_a_cluster_alone: {"converged"},
    },
}
#: Breaks of saved state, for flows of one partition and for those whose partitions read each other.
SAVED: dict[Mutation, set[str]] = {
    saving.never_restore: {"converged"},
    saving.floor_of_the_newest: {"saved-fit"},
    saving.floor_of_the_only_one: {"saved-fit"},
    saving.forget_logs_by_live_copies: {"saved-fit"},
    saving.do_not_say_what_the_store_holds: {"converged"},
    saving.do_not_repeat_what_the_store_holds: {"converged"},
    saving.begin_without_outlets: {"state-exact", "input-contents", "input-loss-free", "loss-free"},
    saving.begin_without_its_number: {"kept", "input-dup-free", "state-exact"},
    saving.go_on_from_memory: {"input-loss-free"},
    saving.refill_one_bucket_short: {"input-loss-free"},
    saving.refill_one_piece: {"input-loss-free"},
    saving.keep_refilling_a_copy_that_paused: {"converged"},
}
SAVED_BETWEEN: dict[Mutation, set[str]] = {
    saving.do_not_count_the_store: {"saved-fit"},
    saving.save_with_a_gap: {"saved-fit"},
}
#: Breaks of backups; some need two of them.
PASSIVE: dict[Mutation, set[str]] = {
    backups.do_not_acknowledge: {"converged"},
    backups.acknowledge_what_was_put_out: {"state-exact"},
    backups.do_not_count_backups: {"kept", "sound"},
    backups.ask_for_data: {"sound", "input-loss-free"},
    backups.let_a_fetch_hang: {"converged"},
    backups.ship_while_busy: {"state-exact"},
    backups.forget_a_request_when_its_snapshot_fails: {"converged"},
    backups.resume_without_outlets: {"loss-free", "input-loss-free", "kept", "sound", "contents"},
    backups.resume_one_bucket_late: {"input-loss-free", "sound"},
    backups.never_promote: {"converged"},
    backups.promote_a_standby: {"converged", "sound", "view-safe"},
}
PASSIVE_OF_THREE: dict[Mutation, set[str]] = {
    backups.ship_what_is_older_than_what_is_held: {"sound", "converged"},
    backups.promote_all: {"one-active"},
}
CASES = [
    *(("passive", None, mutation, by) for mutation, by in PASSIVE.items()),
    *(("passive", 3, mutation, by) for mutation, by in PASSIVE_OF_THREE.items()),
    *((policy, r, mutation, by) for policy, r in POLICIES for mutation, by in EVERYWHERE.items()),
    *((policy, r, mutation, by) for policy, r in POLICIES[1:4] for mutation, by in REPLICATED.items()),
    *(("pair", None, mutation, by) for mutation, by in PAIR.items()),
    *(("pair", None, mutation, by) for mutation, by in SAVED.items()),
    *(("flux", None, mutation, by) for mutation, by in SAVED_BETWEEN.items()),
    *((policy, r, mutation, by) for (policy, r), breaks in LARGER.items() for mutation, by in breaks.items()),
]


def caught_by(policy: str, replicas: int | None) -> str | None:
    for seed in range(SEEDS):
        try:
            run_seed(policy, seed, replicas=replicas)
        except Violation as violation:
            return violation.invariant
    return None


@pytest.mark.parametrize(
    ("policy", "replicas", "mutation", "by"),
    CASES,
    ids=[f"{policy}{replicas or ''}-{mutation.__name__}" for policy, replicas, mutation, _ in CASES],
)
def test_a_break_is_caught_by_the_invariant_named_for_it(
    monkeypatch: pytest.MonkeyPatch, policy: str, replicas: int | None, mutation: Mutation, by: set[str]
) -> None:
    mutation(monkeypatch)
    assert caught_by(policy, replicas) in by
