"""Whatever is saved, trimmed, restarted, adopted and dropped: a restore gives the newest state."""

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
from understudy.runtime.saving import chains, cleaning
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
        assert saved.floor == (throughs[-keep] if len(throughs) >= keep else NOTHING)
        assert saved.kept == min(keep, len(throughs))
        found = SnapshotStore(place, RUN).restore(P, folder / "into")
        assert found is not None
        assert found.state == wanted
        assert (folder / "into" / "state").read_bytes() == b"%d" % through
        assert found.passed_over == ()
    assert [each.through for each in store.listed(P)] == throughs[::-1][:keep]


#: What a version does next: saves a bucket, adopts from an earlier version, or is dropped.
ACTIONS = st.one_of(
    st.tuples(st.just("save"), st.integers(1, 3), st.integers(0, 5)),
    st.tuples(st.just("adopt"), st.integers(2, 3), st.integers(1, 2)),
    st.tuples(st.just("drop"), st.integers(1, 3), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(ACTIONS, min_size=1, max_size=14), keep=st.integers(1, 2))
def test_whatever_the_others_do_each_version_restores_its_newest(actions, keep: int) -> None:
    # Every object is old enough to go as soon as no snapshot names it.
    before, cleaning.GRACE_S = cleaning.GRACE_S, -5.0
    try:
        with tempfile.TemporaryDirectory() as folder:
            _act(Path(folder), actions, keep)
    finally:
        cleaning.GRACE_S = before


def _act(folder: Path, actions, keep: int) -> None:
    place = LocalPlace(folder / "store")
    stores = {version: SnapshotStore(place, RUN, keep=keep, version=version) for version in (1, 2, 3)}
    #: The bucket and the number of the action that saved or adopted it, and the number of its state.
    held: dict[int, list[tuple[int, int, int]]] = {version: [] for version in stores}
    for at, (action, version, detail) in enumerate(actions):
        match action:
            case "save":
                # Contents recur, so that versions share some and name some again that had gone.
                files = {"state": b"%d" % detail, "always": b"the same"}
                snapshot = sealed(folder / "snapshot", detail, files)
                stores[version].save(P, snapshot, CopyState(at, detail, ()))
                held[version] = sorted([*held[version], (detail, at, at)])[-keep:]
            case "adopt" if detail < version:
                newest = max(held[detail], default=None)
                adopted = stores[version].adopt(P, detail)
                assert (adopted and adopted.through) == (newest and newest[0])
                if newest is not None:
                    held[version].append((newest[0], at, newest[2]))
            case "drop":
                stores[1].drop_version(version)
                held[version] = []
        assert stores[1].versions() == {each for each in held if held[each]}
        for each, expected in held.items():
            found = SnapshotStore(place, RUN, version=each).restore(P, folder / "into")
            if not expected:
                assert found is None
                continue
            assert found is not None
            through, _, number = max(expected)
            assert (found.state, found.passed_over) == (CopyState(number, through, ()), ())
            assert (folder / "into" / "state").read_bytes() == b"%d" % through
