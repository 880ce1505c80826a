"""One run at a time works with a run's part of the store, wherever its processes are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from saving_kit import RUN

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.saving import claim as module
from understudy.runtime.saving.claim import FILE, Claim
from understudy.runtime.saving.places import UNFINISHED, Place
from understudy.runtime.saving.store import SnapshotStore

HERE, THERE = Path("/runs/here"), Path("/runs/there")
WAIT_S = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.05)
    monkeypatch.setattr(module, "WATCH_S", 1.0)
    monkeypatch.setattr(module, "_POLL_S", 0.05)


@pytest.fixture
def claim(place: Place) -> Iterator[Callable[[Path], Claim]]:
    made: list[Claim] = []

    def make(folder: Path) -> Claim:
        made.append(Claim(SnapshotStore(place, RUN), folder))
        return made[-1]

    yield make
    for each in made:
        each.release()


def taken(claim: Claim) -> list[str]:
    said: list[str] = []
    claim.take(said.append)
    return said


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_store_that_nobody_works_with_is_taken_at_once_and_let_go_at_the_end(
    claim: Callable[[Path], Claim], place: Place
) -> None:
    first = claim(HERE)
    assert taken(first) == []
    first.keep()
    first.release()
    assert FILE not in [entry.name for entry in place.files(RUN)]
    assert taken(claim(THERE)) == []


def test_a_run_that_lives_in_another_place_is_not_begun_a_second_time(
    claim: Callable[[Path], Claim],
) -> None:
    first = claim(HERE)
    taken(first)
    first.keep()
    with pytest.raises(UserError, match=r"still running, in /runs/here on .* Stop it there"):
        taken(claim(THERE))
    assert first.lost == ""


def test_what_a_loss_of_power_has_left_in_another_place_is_watched_and_then_taken(
    claim: Callable[[Path], Claim],
) -> None:
    """As when the folder was moved since."""
    taken(claim(HERE))
    (said,) = taken(claim(THERE))
    assert said.startswith("the state was last used by /runs/here on ")


def test_what_a_loss_of_power_has_left_of_a_claim_goes(claim: Callable[[Path], Claim], place: Place) -> None:
    SnapshotStore(place, RUN).write_note(f"{UNFINISHED}ab12", b"{")
    taken(claim(HERE))
    assert [entry.name for entry in place.files(RUN)] == [FILE]


def test_in_the_same_place_nothing_is_watched(claim: Callable[[Path], Claim]) -> None:
    """The folder's lock has told already that no other run is there."""
    taken(claim(HERE))
    assert taken(claim(HERE)) == []


def test_a_run_that_stood_still_hears_that_its_store_was_taken_and_leaves_it_alone(
    claim: Callable[[Path], Claim], place: Place
) -> None:
    first, second = claim(HERE), claim(THERE)
    taken(first)
    taken(second)
    second.keep()
    first.keep()
    until(lambda: first.lost)
    assert first.lost.startswith("This run was begun again, in /runs/there on ")
    first.release()
    assert FILE in [entry.name for entry in place.files(RUN)]
    assert second.lost == ""


def test_a_store_that_does_not_answer_for_a_while_costs_no_claim(
    claim: Callable[[Path], Claim], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = claim(HERE)
    taken(first)
    asked = 0

    def silent(*_: object) -> bytes:
        nonlocal asked
        asked += 1
        raise OSError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(place, "read", silent)
        first.keep()
        until(lambda: asked > 2)
    with pytest.raises(UserError, match="still running"):
        taken(claim(THERE))


def test_a_store_that_does_not_answer_is_said_at_the_start(
    claim: Callable[[Path], Claim], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> bytes:
        raise OSError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(place, "read", silent)
        with pytest.raises(EnvironmentFailed, match=r"claim\.json cannot be read: no answer"):
            taken(claim(HERE))


@pytest.mark.parametrize("contents", [b"", b"{", b"[1]", b'{"token": "a"}'])
def test_a_damaged_claim_keeps_nobody_away(
    claim: Callable[[Path], Claim], place: Place, contents: bytes
) -> None:
    SnapshotStore(place, RUN).write_note(FILE, contents)
    assert taken(claim(HERE)) == []


def test_a_claim_is_no_partition(claim: Callable[[Path], Claim], place: Place) -> None:
    taken(claim(HERE))
    assert SnapshotStore(place, RUN).partitions() == []
