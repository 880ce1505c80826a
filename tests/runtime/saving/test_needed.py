"""Which partitions cannot begin with nothing any more, and what is said if the store has nothing of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from saving_kit import RUN, P, files_of, sealed, state

from understudy.core.shape.partition import Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving.needed import Needed, require_states
from understudy.runtime.saving.places import Place
from understudy.runtime.saving.store import SnapshotStore

OTHER = Partition("clicks by day/ü", 12)


def test_what_one_process_notes_all_see(tmp_path: Path) -> None:
    assert Needed(tmp_path).partitions() == []
    for _ in range(2):
        Needed(tmp_path).note(P)
    Needed(tmp_path).note(OTHER)
    assert Needed(tmp_path).partitions() == [OTHER, P]
    assert Needed(tmp_path).has(P)
    assert not Needed(tmp_path).has(Partition(P.name, 1))


def test_a_fragment_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    needed = Needed(tmp_path)
    needed.note(P)
    needed.note(OTHER)
    needed.keep_only({P.name})
    assert needed.partitions() == [P]
    needed.drop()
    assert needed.partitions() == []


def test_a_store_without_a_state_that_is_needed_is_refused_by_name(place: Place, tmp_path: Path) -> None:
    store, needed = SnapshotStore(place, RUN), Needed(tmp_path)
    require_states(store, needed)
    store.save(P, sealed(tmp_path / "s", 40, files_of(40)), state(40))
    needed.note(P)
    require_states(store, needed)
    needed.note(OTHER)
    with pytest.raises(EnvironmentFailed) as refused:
        require_states(store, needed)
    assert f"holds no state of {OTHER}, although this run has saved it there" in str(refused.value)
