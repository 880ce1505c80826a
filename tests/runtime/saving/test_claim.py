"""One run at a time works with a run's part of the store, wherever its processes are."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from saving_kit import RUN, no_tick

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.saving import claim as module
from understudy.runtime.saving import whereabouts
from understudy.runtime.saving.claim import FILE, Claim
from understudy.runtime.saving.places import UNFINISHED, Place
from understudy.runtime.saving.store import SnapshotStore

HERE, THERE = "runs/here", "runs/there"
WAIT_S = 30.0

Make = Callable[[str], Claim]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.05)
    monkeypatch.setattr(module, "WATCH_S", 1.0)
    monkeypatch.setattr(module, "_POLL_S", 0.05)


@pytest.fixture
def claim(place: Place, tmp_path: Path) -> Iterator[Make]:
    made: list[Claim] = []

    def make(name: str) -> Claim:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
        made.append(Claim(SnapshotStore(place, RUN), folder))
        return made[-1]

    yield make
    for each in made:
        each.release()


class Machine:
    """What a machine says of itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, number: str = "a1", cards: str = "52:54:00:00:00:01") -> None:
        card = self._folder / "net" / "eth0"
        (card / "device").mkdir(parents=True, exist_ok=True)
        (card / "address").write_text(cards + "\n")
        (self._folder / "machine-id").write_text(number + "\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path / "machine")
    made()
    monkeypatch.setattr(whereabouts, "_MACHINE", tmp_path / "machine" / "machine-id")
    monkeypatch.setattr(whereabouts, "_CARDS", tmp_path / "machine" / "net")
    return made


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
    claim: Make, place: Place
) -> None:
    first = claim(HERE)
    assert taken(first) == []
    first.keep()
    first.release()
    assert FILE not in [entry.name for entry in place.files(RUN)]
    assert taken(claim(THERE)) == []


def test_a_run_that_lives_in_another_place_is_not_begun_a_second_time(
    claim: Make,
) -> None:
    first = claim(HERE)
    taken(first)
    first.keep()
    with pytest.raises(UserError, match=r"still running, in .*/runs/here on .* Stop it there"):
        taken(claim(THERE))
    assert first.lost == ""


def test_what_a_loss_of_power_has_left_in_another_place_is_watched_and_then_taken(
    claim: Make,
) -> None:
    """As when the folder was moved since."""
    taken(claim(HERE))
    (said,) = taken(claim(THERE))
    assert re.match(r"the state was last used by /.*/runs/here on \S+; looking for 1 s", said)


def test_what_a_loss_of_power_has_left_of_a_claim_goes(claim: Make, place: Place) -> None:
    SnapshotStore(place, RUN).write_note(f"{UNFINISHED}ab12", b"{")
    taken(claim(HERE))
    assert [entry.name for entry in place.files(RUN)] == [FILE]


def test_in_the_same_place_nothing_is_watched(claim: Make) -> None:
    """The folder's lock has told already that no other run is there."""
    taken(claim(HERE))
    assert taken(claim(HERE)) == []


def after_a_loss_of_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whereabouts, "_BOOT", Path("/no such file"))


def test_in_the_same_place_nothing_is_watched_after_a_loss_of_power(
    claim: Make, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(claim(HERE))
    after_a_loss_of_power(monkeypatch)
    assert taken(claim(HERE)) == []


@pytest.mark.parametrize("lacks", ["number", "cards"])
def test_after_a_loss_of_power_a_machine_that_cannot_be_told_is_watched(
    claim: Make, machine: Machine, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """As in a container: another one may have the same path and host name."""
    machine(**{lacks: ""})
    taken(claim(HERE))
    after_a_loss_of_power(monkeypatch)
    assert len(taken(claim(HERE))) == 1


@pytest.mark.parametrize("other", [{"number": "b2"}, {"cards": "52:54:00:00:00:02"}])
def test_a_run_that_lives_on_a_machine_of_the_same_name_is_not_begun_a_second_time(
    claim: Make, machine: Machine, monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
) -> None:
    """That shares the folder, or was cloned with it."""
    first = claim(HERE)
    taken(first)
    first.keep()
    machine(**other)
    after_a_loss_of_power(monkeypatch)
    said: list[str] = []
    with pytest.raises(UserError, match=r"still running, in .*/runs/here on "):
        claim(HERE).take(said.append)
    assert "perhaps a copy or another machine" in said[0]


def test_a_copy_of_the_folder_is_another_place_even_under_its_path(claim: Make, tmp_path: Path) -> None:
    """As in two containers of one machine."""
    first = claim(HERE)
    taken(first)
    first.keep()
    shutil.move(tmp_path / HERE, tmp_path / THERE)
    shutil.copytree(tmp_path / THERE, tmp_path / HERE)
    with pytest.raises(UserError, match=r"still running, in .*/runs/here on "):
        taken(claim(HERE))


def test_a_claim_that_says_less_of_its_place_is_watched(claim: Make, place: Place) -> None:
    taken(claim(HERE))
    said = json.loads(place.read(f"{RUN}/{FILE}", no_tick))
    known = {name: said[name] for name in ("token", "where", "at", "beat")}
    SnapshotStore(place, RUN).write_note(FILE, json.dumps(known).encode())
    assert len(taken(claim(HERE))) == 1


def test_a_run_that_stood_still_hears_that_its_store_was_taken_and_leaves_it_alone(
    claim: Make, place: Place
) -> None:
    first, second = claim(HERE), claim(THERE)
    taken(first)
    taken(second)
    second.keep()
    first.keep()
    until(lambda: first.lost)
    assert re.match("This run was begun again, in /.*/runs/there on ", first.lost)
    first.release()
    assert FILE in [entry.name for entry in place.files(RUN)]
    assert second.lost == ""


@pytest.mark.parametrize("problem", [FileNotFoundError("it is gone"), RuntimeError("can't start new thread")])
def test_no_trouble_ends_the_beat(
    claim: Make, place: Place, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    """Without it the run would count as dead elsewhere, and lose its state to a second start."""
    first = claim(HERE)
    taken(first)
    asked = 0

    def failing(*_: object) -> bytes:
        nonlocal asked
        asked += 1
        raise problem

    with monkeypatch.context() as patched:
        patched.setattr(place, "write", failing)
        first.keep()
        until(lambda: asked > 2)
    with pytest.raises(UserError, match="still running"):
        taken(claim(THERE))


def test_a_store_whose_folder_goes_while_it_is_claimed_is_said_at_the_start(
    claim: Make, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise FileNotFoundError("no such folder")

    with monkeypatch.context() as patched:
        patched.setattr(place, "write", gone)
        with pytest.raises(EnvironmentFailed, match=r"claim\.json cannot be written: no such folder"):
            taken(claim(HERE))


def test_a_store_that_does_not_answer_for_a_while_costs_no_claim(
    claim: Make, place: Place, monkeypatch: pytest.MonkeyPatch
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
    claim: Make, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> bytes:
        raise OSError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(place, "read", silent)
        with pytest.raises(EnvironmentFailed, match=r"claim\.json cannot be read: no answer"):
            taken(claim(HERE))


@pytest.mark.parametrize("contents", [b"", b"{", b"[1]", b'{"token": "a"}'])
def test_a_damaged_claim_keeps_nobody_away(claim: Make, place: Place, contents: bytes) -> None:
    SnapshotStore(place, RUN).write_note(FILE, contents)
    assert taken(claim(HERE)) == []


def test_a_claim_is_no_partition(claim: Make, place: Place) -> None:
    taken(claim(HERE))
    assert SnapshotStore(place, RUN).partitions() == []
