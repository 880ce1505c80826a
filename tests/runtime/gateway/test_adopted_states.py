"""The states that a candidate begins with fit together, also those that are saved while it adopts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opening_kit import MORE_PAIRS, PAIRS, SUMS, Upgraded

from understudy.core.shape.partition import Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.gateway.opening import adopt_states
from understudy.runtime.saving.needed import Needed
from understudy.runtime.saving.store import SnapshotStore


@pytest.fixture
def run(tmp_path: Path) -> Upgraded:
    return Upgraded(tmp_path, "no ZooKeeper is asked")


def test_a_consumer_that_is_saved_for_the_first_time_while_others_are_adopted_begins_with_that(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producers may drop what it has saved before their own states are adopted."""
    honest = SnapshotStore.adopt

    def adopt(store: SnapshotStore, partition: Partition, version: int) -> Any:
        if partition == min(PAIRS, MORE_PAIRS):
            run.save(SUMS, 20)
            run.save(SUMS, 30)
            run.save(PAIRS, 40)
            run.save(MORE_PAIRS, 40)
        return honest(store, partition, version)

    run.save(PAIRS, 10)
    run.save(MORE_PAIRS, 10)
    monkeypatch.setattr(SnapshotStore, "adopt", adopt)
    adopt_states(run.edition, run.before)
    assert run.adopted() == {PAIRS: [40], MORE_PAIRS: [40], SUMS: [30]}


def test_a_partition_whose_saved_state_is_gone_does_not_begin_with_nothing(run: Upgraded) -> None:
    run.save(PAIRS, 20)
    run.save(MORE_PAIRS, 20)
    Needed(run.before.version_path).note(SUMS)
    with pytest.raises(EnvironmentFailed, match="holds no state of sums/0, although version 1 has saved it"):
        adopt_states(run.edition, run.before)
    assert not run.mark.exists(), "so it is tried again"
    run.save(SUMS, 20)
    adopt_states(run.edition, run.before)
    assert run.adopted() == {PAIRS: [20], MORE_PAIRS: [20], SUMS: [20]}


def test_a_partition_that_was_never_saved_begins_with_nothing_if_the_log_is_whole(run: Upgraded) -> None:
    run.save(PAIRS, 20)
    adopt_states(run.edition, run.before)
    assert run.adopted() == {PAIRS: [20], MORE_PAIRS: [], SUMS: []}
