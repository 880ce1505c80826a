"""Requests for an upgrade that are old, damaged or of another run, and a disk that takes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from understudy.runtime.candidate import candidate_in
from understudy.runtime.upgrade_files import CANCELLED, FOLDER, PROGRESS, REQUEST, cancel
from understudy.runtime.upgrading import LETTING_GO_S_MAX, LOOKS
from upgrade_kit import (
    AFTERWARDS,
    ALONE,
    AS_BEFORE,
    LIVE,
    NEAR,
    TRIAL_S,
    Upgraded,
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upgraded:
    return Upgraded(tmp_path / "run", monkeypatch)


# --- requests -----------------------------------------------------------------------------------------------


def test_without_a_request_nothing_happens(run: Upgraded) -> None:
    assert run.look(ALONE) == []
    assert run.look(None) == []
    assert not (run.folder / FOLDER).exists()


def test_after_a_version_that_was_taken_back_the_next_one_has_another_number_and_the_same_nodes(
    run: Upgraded,
) -> None:
    run.reach("taking back")
    run.look(ALONE)
    run.fleet.nodes_ended()
    run.look(ALONE)
    run.fleet.up.clear()
    run.ask(3)
    assert run.look(ALONE)[:2] == ["write run.json: version 1, 3 tried", "write candidate.json: version 3"]
    assert run.look(ALONE) == ["start node-3 with version 3"]
    assert run.progress.version == 3
    assert run.progress.sentences == ("starting node-3, node-4 with the new code, version 3",)


def test_an_old_request_is_left_alone_and_what_became_of_its_version_stays(run: Upgraded) -> None:
    run.reach("taking back")
    run.look(ALONE)
    run.fleet.nodes_ended()
    run.look(ALONE)
    before = (run.folder / FOLDER / PROGRESS).read_text()
    request = run.request(2)
    values = {"settings": request.settings.to_json(), "dataflow": request.dataflow.to_json()}
    (run.folder / FOLDER / REQUEST).write_text(json.dumps({**values, "trial_s": 1, "bucket_us": 1}))
    assert run.look(ALONE) == ["remove request.json"]
    assert (run.folder / FOLDER / PROGRESS).read_text() == before
    assert run.version_on_disk == (1, 2)


def test_an_old_request_of_which_nothing_is_known_is_answered(run: Upgraded) -> None:
    """Whoever left it would wait for ever."""
    run.ask(1)
    assert run.look(ALONE) == ["remove request.json", "say: taken back: that version was tried before"]
    assert (run.progress.version, run.progress.outcome) == (1, "taken back")


@pytest.mark.parametrize(
    "changes", [{"generation": 7}, {"zookeeper": "zk:2"}, {"run": "another"}, {"gateway_port": 9}]
)
def test_a_request_for_the_run_as_it_was_before_it_went_on_is_refused(
    run: Upgraded, changes: dict[str, Any]
) -> None:
    run.ask(**changes)
    assert run.look(ALONE) == [
        "remove request.json",
        "say: taken back: the run was begun again meanwhile. Ask for the upgrade again",
    ]
    assert run.version_on_disk == (1, 1)
    assert run.progress.outcome == "taken back"


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no settings": lambda values: values.pop("settings"),
    "settings of another kind": lambda values: values.update(settings=[]),
    "a policy that makes no sense": lambda values: values["settings"]["policy"].update(silence_ms=3),
    "no trial": lambda values: values.update(trial_s="soon"),
    "no dataflow": lambda values: values.pop("dataflow"),
    "a dataflow that is none": lambda values: values["dataflow"].update(counts={"counts": 0}),
    "counts of nothing": lambda values: values["dataflow"].update(counts={}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_request_is_removed_and_harms_nothing(
    run: Upgraded, damage: Callable[[dict[str, Any]], object]
) -> None:
    run.ask()
    file = run.folder / FOLDER / REQUEST
    values = json.loads(file.read_text())
    damage(values)
    file.write_text(json.dumps(values))
    assert run.look(ALONE) == ["remove request.json"]
    assert run.look(ALONE) == []
    assert run.version_on_disk == (1, 1)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"settings": {', "[" * 100_000], ids=["empty", "list", "cut", "deep"]
)
def test_a_request_that_is_no_json_is_removed(run: Upgraded, text: str) -> None:
    run.ask()
    (run.folder / FOLDER / REQUEST).write_text(text)
    assert run.look(ALONE) == ["remove request.json"]


def test_a_request_that_comes_while_another_upgrade_ends_waits_for_it(run: Upgraded) -> None:
    run.reach("taking back")
    run.ask(3)
    run.look(ALONE)
    run.fleet.nodes_ended()
    assert run.look(ALONE) == [f"say: taken back: it was cancelled. {AS_BEFORE}"]
    assert run.look(ALONE)[1] == "write candidate.json: version 3"


# --- a disk that is full ------------------------------------------------------------------------------------


def test_a_disk_that_does_not_take_the_number_of_the_version_refuses_the_upgrade(run: Upgraded) -> None:
    run.ask()
    run.full["run.json"] = False
    assert run.look(ALONE) == [
        "remove request.json",
        "say: taken back: run.json cannot be written: No space left on device",
    ]
    assert run.progress.outcome == "taken back"
    run.full.clear()
    run.ask()
    assert run.look(ALONE)[0] == "write run.json: version 1, 2 tried"


def test_a_number_that_was_written_although_the_disk_failed_is_not_asked_for_again(run: Upgraded) -> None:
    run.ask()
    run.full["run.json"] = True
    run.look(ALONE)
    run.full.clear()
    assert run.version_on_disk == (1, 2)
    run.ask(3)
    assert run.look(ALONE)[0] == "write run.json: version 1, 3 tried"


@pytest.mark.parametrize("there", [False, True], ids=["not written", "written all the same"])
def test_a_disk_that_does_not_take_the_candidate_ends_the_upgrade_and_not_the_run(
    run: Upgraded, there: bool
) -> None:
    run.ask()
    run.full["candidate.json"] = there
    did = run.look(ALONE)
    assert did[-1].startswith("say: taking the new version back:")
    assert "candidate.json cannot be written: No space left on device. Free or repair the disk." in did[-1]
    assert candidate_in(run.folder) is None
    run.full.clear()
    run.is_taken_back(did[-1].removeprefix("say: taking the new version back: "))


def test_a_disk_that_does_not_take_the_turn_takes_it_back(run: Upgraded) -> None:
    run.reach("catching up")
    for _ in range(LOOKS - 1):
        run.look(NEAR)
    run.full["candidate.json"] = True
    did = run.look(NEAR)
    assert did[:2] == ["write candidate.json: version 2, live", "remove candidate.json"]
    assert "No space left on device" in did[-1]


def test_a_disk_that_does_not_take_the_decision_takes_the_new_version_back(run: Upgraded) -> None:
    run.reach("on trial")
    run.look(LIVE)
    run.full["run.json"] = False
    assert run.look(LIVE, after_s=TRIAL_S) == [
        "remove candidate.json",
        "say: taking the new version back: run.json cannot be written: No space left on device",
    ]
    run.full.clear()
    run.is_taken_back("run.json cannot be written: No space left on device")


def test_a_decision_that_may_have_been_made_is_made_again_until_it_is_certain(run: Upgraded) -> None:
    """Were the new version taken back now, the run would go on with a version that has no state any more."""
    run.reach("on trial")
    run.look(LIVE)
    run.full["run.json"] = True
    cancel(run.folder)
    (run.folder / FOLDER / CANCELLED).unlink()
    for _ in range(3):
        assert run.look(LIVE, after_s=TRIAL_S) == ["write run.json: version 2, 2 tried"]
        cancel(run.folder)
    assert run.version_on_disk == (2, 2)
    assert candidate_in(run.folder) is not None
    run.full.clear()
    assert run.look(LIVE)[-1] == "say: the run goes on with version 2; ending the old one"


def test_while_a_decision_is_made_certain_the_nodes_of_the_new_version_are_started_again(
    run: Upgraded,
) -> None:
    """It is not taken back any more, so it must not be left without them."""
    run.reach("on trial")
    run.look(LIVE)
    run.full["run.json"] = True
    for _ in range(2):
        run.look(LIVE, after_s=TRIAL_S)
        assert sorted(run.upgrading.nodes) == ["node-1", "node-2"]
    run.full["run.json"] = False
    run.look(LIVE)
    assert sorted(run.upgrading.nodes) == ["node-1", "node-2"], "what the file says has not changed"


@pytest.mark.parametrize("phase", AFTERWARDS)
def test_a_candidate_that_cannot_be_removed_is_tried_again(run: Upgraded, phase: str) -> None:
    run.reach("on trial" if phase == "finishing" else "catching up")
    run.full["without candidate.json"] = True
    if phase == "finishing":
        run.look(LIVE)
        run.look(LIVE, after_s=TRIAL_S)
        run.look(LIVE)
    else:
        cancel(run.folder)
        run.look(NEAR)
        assert run.look(ALONE, after_s=LETTING_GO_S_MAX + 1) == [], "the gateway would begin with it again"
    run.full.clear()
    assert run.look(None)[0] == "remove candidate.json"


def test_sentences_that_a_full_disk_does_not_take_are_written_later(run: Upgraded) -> None:
    """`understudy upgrade` waits for the outcome."""
    run.full["progress.json"] = False
    run.reach("starting")
    assert not (run.folder / FOLDER / PROGRESS).exists()
    run.look(ALONE)
    run.full.clear()
    run.look(ALONE)
    assert run.progress.sentences == ("starting node-3, node-4 with the new code, version 2",)
