"""What `understudy run` says of saved state, and the last snapshots before it ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.cli import saved as module
from understudy.cli.saved import LAST_SAVE_S, SavedNews, goes_on_from, open_store, save_last
from understudy.core.bucket import NOTHING
from understudy.core.shape.partition import Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.saving.store import Listed
from understudy.runtime.settings import RunSettings

NOON_S = datetime(2026, 1, 1, 12, 0, 0).timestamp()


def status(
    down: tuple[str, ...] = (), restored: dict[str, int] | None = None, **copies: Any
) -> dict[str, Any]:
    """A status of partition a/0, whose one copy says this of itself."""
    seats = {"a/0:0": {"node": "n", "status": "ACTIVE", "epoch": 1}}
    told = {"n": {"copies": {"a/0:0": copies}}}
    return {"seats": seats, "nodes": told, "down": list(down), "restored": restored or {}}


def saver(**facts: Any) -> dict[str, Any]:
    usual = {"begun": True, "groups": 1, "handed_through": 9, "saved_through": 9, "queued_buckets": 0}
    return {**usual, "not_saved_since_s": None, "saving_trouble": "", **facts}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def view(said: list[str]) -> Any:
    return SimpleNamespace(say=said.append)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that goes on by what is slept."""
    now = SimpleNamespace(s=100.0)

    def sleep(seconds: float) -> None:
        now.s += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.s, sleep=sleep))
    return now


# --- news ---------------------------------------------------------------------------------------------------


def test_a_partition_that_lost_all_copies_is_news_and_so_is_its_return(
    view: Any, said: list[str], clock: SimpleNamespace
) -> None:
    news = SavedNews(view)
    news.note(status(**saver()))
    assert said == []
    for clock.s in (101.0, 102.0):
        news.note(status(down=("a/0",)))
    clock.s = 103.0
    news.note(status(restored={"a/0": 7}, **saver(begun=False, groups=0)))
    clock.s = 115.0
    for _ in range(2):
        news.note(status(restored={"a/0": 7}, **saver()))
    assert said == [
        "every copy of a/0 is lost; it goes on from its saved state",
        "a/0 goes on, 14 s after the loss was noticed",
    ]


def test_a_loss_between_two_looks_is_news_each_time(
    view: Any, said: list[str], clock: SimpleNamespace
) -> None:
    news = SavedNews(view)
    for epoch in (7, 7, 12):
        news.note(status(restored={"a/0": epoch}, **saver()))
    assert said == 2 * [
        "every copy of a/0 is lost; it goes on from its saved state",
        "a/0 goes on, 0 ms after the loss was noticed",
    ]


def test_a_state_that_is_not_saved_is_news_once_and_so_is_that_it_is_again(
    view: Any, said: list[str]
) -> None:
    news = SavedNews(view)
    news.note(status(**saver()))
    for trouble in ("the disk is full", "the disk is still full"):
        news.note(status(**saver(not_saved_since_s=NOON_S, saving_trouble=trouble)))
    news.note(status(**saver()))
    news.note(status(**saver()))
    assert said == [
        "the state of a/0 is not saved since 12:00:00: the disk is full",
        "the state of a/0 is saved again",
    ]


def test_a_copy_that_waits_for_its_store_is_news_and_not_called_unsaved(view: Any, said: list[str]) -> None:
    news = SavedNews(view)
    waits = "a/0:0 waits for its saved state: no answer"
    for _ in range(2):
        news.note(status(**saver(begun=False, saving_trouble=waits)))
    news.note(status(**saver()))
    assert said == [waits]


def test_a_snapshot_that_was_passed_over_is_news_once(view: Any, said: list[str]) -> None:
    news = SavedNews(view)
    for _ in range(2):
        news.note(status(**saver(passed_over=["Snapshot 9 is damaged.", "Snapshot 7 is damaged."])))
    assert said == ["Snapshot 9 is damaged.", "Snapshot 7 is damaged."]


# --- the last snapshots -------------------------------------------------------------------------------------


class FakeRun:
    """A run whose gateway answers one status after the other; the last one again and again."""

    def __init__(self, *statuses: dict[str, Any] | None, answers: bool = True) -> None:
        self.statuses = list(statuses)
        self.answers = answers
        self.looks = 0
        self.on_look: Callable[[], None] = lambda: None

    def save_and_hold(self) -> bool:
        return self.answers

    def status(self) -> dict[str, Any] | None:
        self.looks += 1
        self.on_look()
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


class FakeInterruption:
    def __init__(self) -> None:
        self.granted_s = 0.0
        self.asked_again = False

    def grant(self, seconds: float) -> None:
        self.granted_s += seconds


def saved_last(run: FakeRun, view: Any, *, all_saved: bool = True) -> FakeInterruption:
    interruption = FakeInterruption()
    assert save_last(run, view, interruption) == all_saved  # type: ignore[arg-type]
    return interruption


ASKED = "saving the state; press Ctrl-C again to do without"
NOT_ALL = "not every state was saved; the run goes on from the snapshots before and from its log"


def test_the_end_waits_until_every_state_is_saved(view: Any, said: list[str], clock: SimpleNamespace) -> None:
    run = FakeRun(
        status(**saver(handed_through=8, saved_through=5)),
        None,
        status(**saver(queued_buckets=2)),
        status(begun=True),
        status(**saver()),
    )
    interruption = saved_last(run, view)
    assert said == [ASKED, "every state is saved"]
    assert (run.looks, interruption.granted_s) == (5, LAST_SAVE_S)


def test_a_state_without_any_input_is_not_waited_for(
    view: Any, said: list[str], clock: SimpleNamespace
) -> None:
    saved_last(FakeRun(status(**saver(handed_through=NOTHING, saved_through=None))), view)
    assert said == [ASKED, "every state is saved"]


def test_a_second_ctrl_c_does_without(view: Any, said: list[str], clock: SimpleNamespace) -> None:
    run, interruption = FakeRun(status(**saver(saved_through=5))), FakeInterruption()

    def ask_again() -> None:
        interruption.asked_again = run.looks == 3

    run.on_look = ask_again
    save_last(run, view, interruption)  # type: ignore[arg-type]
    assert (said, run.looks) == ([ASKED, NOT_ALL], 3)


def test_a_store_that_takes_too_long_does_not_keep_the_run_from_ending(
    view: Any, said: list[str], clock: SimpleNamespace
) -> None:
    saved_last(FakeRun(status(**saver(saved_through=5))), view, all_saved=False)
    assert said == [ASKED, NOT_ALL]
    assert clock.s == pytest.approx(100.0 + LAST_SAVE_S, abs=1.0)


def test_without_a_gateway_nothing_is_waited_for(view: Any, said: list[str], clock: SimpleNamespace) -> None:
    interruption = saved_last(FakeRun(None, answers=False), view, all_saved=False)
    assert (said, clock.s, interruption.granted_s) == ([], 100.0, 0.0)


# --- where a run goes on from -------------------------------------------------------------------------------


class FakeStore:
    def __init__(self, **listed: list[Listed]) -> None:
        self._listed = {Partition(name): found for name, found in listed.items()}

    def partitions(self) -> list[Partition]:
        return list(self._listed)

    def listed(self, partition: Partition) -> list[Listed]:
        return self._listed[partition]


def test_a_run_says_from_which_state_it_goes_on() -> None:
    newest, older = Listed(9, NOON_S + 60, 2**20), Listed(5, NOON_S - 60, 2**30)
    store: Any = FakeStore(a=[newest, older], b=[Listed(8, NOON_S, 2**19)], c=[])
    assert goes_on_from(store) == (
        "goes on from the state of 2 partitions, 1.5 MB, saved at 2026-01-01 12:00:00 or later, "
        "and from its log"
    )
    empty: Any = FakeStore(a=[])
    assert goes_on_from(empty) == goes_on_from(None) == "goes on from its log: no state was saved yet"


def test_a_store_must_answer_and_a_run_that_saves_nothing_needs_none(tmp_path: Path) -> None:
    settings = RunSettings("run", "flow.py", str(tmp_path / "run"), "", snapshot_every_ms=0)
    assert open_store(settings) is None
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailed, match="cannot be written"):
        open_store(RunSettings("run", "flow.py", str(tmp_path), "", store=str(tmp_path / "file" / "below")))
    assert open_store(RunSettings("run", "flow.py", str(tmp_path / "run"), "")) is not None
