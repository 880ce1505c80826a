"""A node's dealings with the store: saves that fail cost time only, and a restore waits for its store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_engine import SmallEngine
from small_node import COPY, SINK, WAIT_S, eventually, state_of

from understudy.core.bucket import NOTHING
from understudy.core.shape.partition import Copy, Partition
from understudy.engine.interface import Snapshot
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.policy import policy_named
from understudy.runtime.node import saving as module
from understudy.runtime.node.saving import SAVES_MAX, Saving, SavingStats, saving_for
from understudy.runtime.pinning import pin_shape, shape_mark
from understudy.runtime.saving.needed import Needed
from understudy.runtime.saving.of_run import store_of
from understudy.runtime.saving.partition_saves import Saved
from understudy.runtime.saving.restoring import Restored
from understudy.runtime.saving.store import SnapshotStore
from understudy.runtime.settings import RunSettings


class FakeStore:
    """A store that does what the test says: `answers` are raised or given, one after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.during: Callable[[], None] = lambda: None

    def _next(self) -> Any:
        self.asked += 1
        self.during()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def save(self, _partition: Partition, _folder: Path, _state: object) -> Any:
        return self._next()

    def restore(self, _partition: Partition, _into: Path) -> Any:
        return self._next()

    @property
    def shown(self) -> str:
        return "/store/run"


class Marks:
    """In the place of `Needed`."""

    def __init__(self) -> None:
        self.noted: list[Partition] = []
        self.trouble: Exception | None = None

    def note(self, partition: Partition) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.noted.append(partition)

    def has(self, partition: Partition) -> bool:
        return partition in self.noted


def saved(through: int, *, floor: int = 0) -> Saved:
    return Saved(through, floor, kept=2, bytes_written=10, files_written=1, size_bytes=50, seconds=0.1)


def saving_in(*answers: object) -> tuple[Saving, FakeStore]:
    store = FakeStore(*answers)
    return Saving(store, Marks()), store  # type: ignore[arg-type]


class Told:
    """What a copy hears of its save."""

    def __init__(self) -> None:
        self.floors: list[int] = []
        self.failures: list[str] = []

    def save(
        self, saving: Saving, copy: Copy = COPY, snapshot: Snapshot | None = None, through: int = 7
    ) -> None:
        snapshot = snapshot or SimpleNamespace(directory=Path("nowhere"))  # type: ignore[assignment]
        saving.save(copy, snapshot, state_of(1, through), self.floors.append, self.failures.append)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(time_s=1_000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: now.time_s))
    return now


# --- saving -------------------------------------------------------------------------------------------------


def test_a_saved_state_comes_back_from_a_real_store(tmp_path: Path) -> None:
    engine = SmallEngine(tmp_path / "engine", (SINK,))
    engine.start()
    engine.seen, engine.through = 5, 7
    saving = Saving(SnapshotStore.open(str(tmp_path / "store"), "run"), Needed(tmp_path))
    told = Told()
    told.save(saving, snapshot=engine.snapshot(tmp_path / "snapshot"))
    assert (told.failures, saving.stats(COPY.partition).through) == ([], 7)
    assert saving.stats(COPY.partition).size_bytes > 0
    other = Saving(SnapshotStore.open(str(tmp_path / "store"), "run"), Needed(tmp_path))
    restored = other.restored(Copy(COPY.partition, 1), tmp_path / "into", threading.Event())
    assert restored is not None
    assert (restored.state, restored.passed_over) == (state_of(1, 7), ())
    assert (restored.snapshot.directory / "state" / "seen").read_text() == "5"
    assert other.stats(COPY.partition).through == 7


def test_that_a_state_is_needed_is_on_disk_before_producers_let_go_of_what_it_holds() -> None:
    saving, _ = saving_in(saved(3, floor=NOTHING), saved(5, floor=3))
    marks: Any = saving._needed
    told = Told()
    told.save(saving)
    assert marks.noted == [], "nothing was let go of"
    marks.trouble = EnvironmentFailed("the disk is full")
    told.save(saving)
    assert (told.floors, told.failures) == ([NOTHING], ["the disk is full"])
    marks.trouble = None
    told.save(saving)
    assert (told.floors, marks.noted) == ([NOTHING, 3], [COPY.partition])


def test_a_copy_whose_state_is_needed_waits_for_a_store_that_has_none(tmp_path: Path) -> None:
    """An emptied store, or another disk: to begin with nothing would be to wait for what is gone, in vain."""
    saving, store = saving_in(None)
    assert saving.restored(COPY, tmp_path, threading.Event()) is None, "nothing was ever let go of"
    saving._needed.note(COPY.partition)
    over = threading.Event()
    store.during = lambda: over.set() if store.asked == 3 else None
    assert saving.restored(COPY, tmp_path, over) is None
    assert store.asked == 3
    assert saving.stats(COPY.partition).why.startswith(
        f"{COPY} waits for its saved state: The store of snapshots /store/run holds no state of "
    )


def test_a_copy_hears_the_floor_that_the_store_names() -> None:
    saving, _ = saving_in(saved(3, floor=NOTHING), saved(5, floor=3))
    told = Told()
    told.save(saving)
    told.save(saving)
    assert told.floors == [NOTHING, 3]


@pytest.mark.parametrize("problem", [EnvironmentFailed("no answer"), OSError("no answer")])
def test_since_when_nothing_is_saved_is_known_until_something_is(
    clock: SimpleNamespace, problem: Exception
) -> None:
    saving, _ = saving_in(saved(3), problem, EnvironmentFailed("still no answer"), saved(9))
    told, partition = Told(), COPY.partition
    told.save(saving)
    assert saving.stats(partition) == SavingStats(3, 1_000.0, 0.1, 10, 50)
    for clock.time_s in (1_010.0, 1_020.0):
        told.save(saving)
    stats = saving.stats(partition)
    assert told.failures == ["no answer", "still no answer"]
    assert (stats.failing_since_s, stats.why) == (1_010.0, "still no answer")
    assert (stats.through, stats.at_s) == (3, 1_000.0), "what is saved is still there"
    clock.time_s = 1_030.0
    told.save(saving)
    stats = saving.stats(partition)
    assert (stats.failing_since_s, stats.why, stats.through, stats.bytes_written) == (None, "", 9, 20)


def test_partitions_fail_each_on_their_own() -> None:
    saving, _ = saving_in(EnvironmentFailed("no answer"), saved(9))
    told, other = Told(), Copy(Partition("other"))
    told.save(saving)
    told.save(saving, other)
    assert saving.stats(COPY.partition).why == "no answer"
    assert saving.stats(other.partition).why == ""
    assert saving.stats(Partition("third")) == SavingStats()


def test_at_most_two_copies_of_a_node_save_at_once() -> None:
    saving, store = saving_in(saved(3))
    go_on, lock = threading.Event(), threading.Lock()
    inside: list[int] = []
    busy = 0

    def counted() -> None:
        nonlocal busy
        with lock:
            busy += 1
            inside.append(busy)
        assert go_on.wait(WAIT_S)
        with lock:
            busy -= 1

    store.during = counted
    told = Told()
    threads = [
        threading.Thread(target=told.save, args=(saving, Copy(Partition("p", index)))) for index in range(5)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(inside) == SAVES_MAX)
    time.sleep(0.1)
    go_on.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert (max(inside), len(inside), len(told.floors)) == (SAVES_MAX, 5, 5)


def test_a_save_that_fails_gives_its_turn_back() -> None:
    saving, _ = saving_in(EnvironmentFailed("no answer"))
    told = Told()
    for _ in range(SAVES_MAX + 1):
        told.save(saving)
    assert len(told.failures) == SAVES_MAX + 1


# --- restoring ----------------------------------------------------------------------------------------------


def restored_from(through: int, *passed_over: str) -> Restored:
    return Restored(SimpleNamespace(), state_of(1, through), 900.0, passed_over, 0.1)  # type: ignore[arg-type]


def test_a_copy_waits_for_a_store_that_does_not_answer_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = restored_from(4)
    saving, store = saving_in(EnvironmentFailed("no answer"), OSError("torn off"), found)
    pauses: list[float] = []
    said: list[str] = []

    def wait(pause_s: float) -> bool:
        pauses.append(pause_s)
        said.append(saving.stats(COPY.partition).why)
        return False

    over = threading.Event()
    monkeypatch.setattr(over, "wait", wait)
    assert saving.restored(COPY, tmp_path, over) is found
    assert store.asked == 3
    assert pauses == [0.5, 1.0]
    assert said == [f"{COPY} waits for its saved state: {why}" for why in ("no answer", "torn off")]
    assert saving.stats(COPY.partition) == SavingStats(through=4, at_s=900.0)


def test_the_pauses_of_a_copy_that_waits_for_its_store_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, _ = saving_in(EnvironmentFailed("no answer"))
    pauses: list[float] = []
    over = threading.Event()

    def wait(pause_s: float) -> bool:
        pauses.append(pause_s)
        if len(pauses) == 9:
            over.set()
        return over.is_set()

    monkeypatch.setattr(over, "wait", wait)
    assert saving.restored(COPY, tmp_path, over) is None, "it has left, and not begun with nothing"
    assert max(pauses) == pauses[-1] == module.RETRY_S_MAX


def test_a_copy_whose_partition_was_never_saved_begins_with_nothing(tmp_path: Path) -> None:
    saving, store = saving_in(None)
    assert saving.restored(COPY, tmp_path, threading.Event()) is None
    assert (store.asked, saving.stats(COPY.partition)) == (1, SavingStats())


def test_snapshots_that_were_passed_over_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saving, _ = saving_in(restored_from(4, "Snapshot 9 is damaged.", "Snapshot 7 is damaged."))
    saving.restored(COPY, tmp_path, threading.Event())
    assert saving.stats(COPY.partition).passed_over == ("Snapshot 9 is damaged.", "Snapshot 7 is damaged.")
    assert "Snapshot 9 is damaged." in caplog.text


# --- which runs save ----------------------------------------------------------------------------------------


def test_the_store_of_a_run_is_in_its_folder_unless_it_is_named(tmp_path: Path) -> None:
    settings = RunSettings("run", "flow.py", str(tmp_path / "run"), "", snapshots_kept=3)
    for each, folder in (
        (settings, tmp_path / "run" / "saved"),
        (elsewhere(settings, tmp_path), tmp_path / "store"),
    ):
        saving = saving_for(each)
        assert saving is not None
        assert (saving._store.url, saving._store._keep) == (str(folder), 3)


def test_what_a_node_saves_has_the_mark_of_the_shape_that_was_written_down(tmp_path: Path) -> None:
    settings = RunSettings("run", "flow.py", str(tmp_path / "run"), "")
    pin_shape(settings, {"segments": {"flow": ["a", "b"]}})
    saving = saving_for(settings)
    assert saving is not None
    engine = SmallEngine(tmp_path / "engine", (SINK,))
    engine.start()
    told = Told()
    told.save(saving, snapshot=engine.snapshot(tmp_path / "snapshot"))
    (listed,) = store_of(settings).listed(COPY.partition)
    assert listed.shape == shape_mark({"segments": {"flow": ["a", "b"]}})


def elsewhere(settings: RunSettings, folder: Path) -> RunSettings:
    return RunSettings(**{**vars(settings), "store": str(folder / "store")})


def test_runs_without_snapshots_and_baselines_save_nothing(tmp_path: Path) -> None:
    assert saving_for(RunSettings("run", "flow.py", str(tmp_path), "", snapshot_every_ms=0)) is None
    assert (
        saving_for(RunSettings("run", "flow.py", str(tmp_path), "", policy=policy_named("cluster"))) is None
    )
