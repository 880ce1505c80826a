"""Whatever is saved, trimmed and restarted: a restore gives the exact state of the newest save."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from saving_kit import RUN, C, P, bucket, sealed

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.outlet import OutletState
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Partition
from understudy.runtime.saving import chains
from understudy.runtime.saving.local import LocalPlace
from understudy.runtime.saving.store import SnapshotStore

D = Partition("d", 2)
PAYLOADS = st.one_of(st.none(), st.binary(max_size=40))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[object, ...]]:
    """Each: how far the engine gets, what each outlet gains and loses, whether the process is a new one."""
    gains = st.lists(st.tuples(st.integers(1, 3), PAYLOADS), max_size=4)
    return draw(
        st.lists(
            st.tuples(
                st.integers(0, 2),
                gains,
                gains,
                st.integers(0, 5),
                st.integers(0, 5),
                st.sampled_from(["same", "same", "same", "new", "another replica"]),
            ),
            min_size=1,
            max_size=12,
        )
    )


class Model:
    """An outlet, as simple as can be."""

    def __init__(self) -> None:
        self.kept: list[Bucket] = []
        self.produced = self.gone = NOTHING

    def step(self, gains: list[tuple[int, bytes | None]], lost: int) -> OutletState:
        for skip, payload in gains:
            self.produced = max(self.produced, 0) + skip
            self.kept.append(bucket(self.produced, payload))
        if cut := self.kept[:lost]:
            self.gone = cut[-1].number
            del self.kept[:lost]
        return OutletState(tuple(self.kept), self.produced, self.gone, ((0, self.gone), (1, NOTHING)))

    def cut_differently(self) -> None:
        """Another replica has other empty buckets between the same rows."""
        self.kept = [each for each in self.kept if not each.empty]


@settings(max_examples=40, deadline=None)
@given(steps=steps(), keep=st.integers(1, 3), runs_max=st.sampled_from([2, 3, 64]))
def test_a_restore_gives_the_newest_save(steps, keep: int, runs_max: int) -> None:
    before, chains.RUNS_MAX = chains.RUNS_MAX, runs_max
    try:
        with tempfile.TemporaryDirectory() as folder:
            _save_and_restore(Path(folder), steps, keep)
    finally:
        chains.RUNS_MAX = before


def _save_and_restore(folder: Path, steps, keep: int) -> None:
    place = LocalPlace(folder / "store")
    store = SnapshotStore(place, RUN, keep=keep)
    models = {C: Model(), D: Model()}
    through = 0
    throughs = []
    for version, (ahead, to_c, to_d, off_c, off_d, process) in enumerate(steps):
        if process != "same":
            store = SnapshotStore(place, RUN, keep=keep)
        if process == "another replica":
            for model in models.values():
                model.cut_differently()
        through += ahead
        outlets = ((C, models[C].step(to_c, off_c)), (D, models[D].step(to_d, off_d)))
        wanted = CopyState(version, through, outlets)
        snapshot = sealed(folder / "snapshot", through, {"state": b"%d" % through, "always": b"the same"})
        saved = store.save(P, snapshot, wanted)
        throughs.append(through)
        assert saved.floor == throughs[-keep:][0]
        assert saved.kept == min(keep, len(throughs))
        found = SnapshotStore(place, RUN).restore(P, folder / "into")
        assert found is not None
        assert found.state == wanted
        assert (folder / "into" / "state").read_bytes() == b"%d" % through
        assert found.passed_over == ()
    assert [each.through for each in store.listed(P)] == throughs[::-1][:keep]
