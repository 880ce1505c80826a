"""An upgrade, step by step: what is written and started, in which order, and what is taken back, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from understudy.runtime import upgrading as module
from understudy.runtime.candidate import candidate_in
from understudy.runtime.saving.layout import snapshots_folder
from understudy.runtime.upgrade_files import CANCELLED, FOLDER, PROGRESS, REQUEST, cancel
from understudy.runtime.upgrading import (
    BY_REQUEST,
    LETTING_GO_S_MAX,
    LOOKS,
    READY_S_MAX,
    STOPPED,
    UNSEEN_S_MAX,
)
from upgrade_kit import (
    AFTERWARDS,
    ALONE,
    DONE,
    LIVE,
    NEAR,
    PHASES,
    TRIAL_S,
    Status,
    Upgraded,
    facts,
    left,
    live_on,
    put,
    status,
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upgraded:
    return Upgraded(tmp_path / "run", monkeypatch)


#: What the gateway says while all is well, by phase.
USUAL: dict[str, Status] = {
    "starting": ALONE,
    "catching up": NEAR,
    "turning": NEAR,
    "on trial": LIVE,
    "finishing": LIVE,
    "taking back": NEAR,
}


AS_BEFORE = "Nothing is lost: the run has version 1, as before."


def taken_back(run: Upgraded, why: str) -> None:
    """From the look at which it fails to its end: the gateway lets go first, then the nodes end."""
    running = sorted(run.upgrading.nodes)
    assert run.look(ALONE) == [f"end {' and '.join(running) or 'nothing'}"]
    assert run.look(ALONE) == [], "they are still ending"
    run.fleet.nodes_ended()
    again = "" if why in (STOPPED, BY_REQUEST) else " Once that is mended, upgrade again."
    assert run.look(ALONE) == [f"say: taken back: {why.rstrip('.')}. {AS_BEFORE}{again}"]
    assert run.progress.outcome == "taken back"
    assert run.version_on_disk == (1, 2)
    assert candidate_in(run.folder) is None


# --- all goes well ------------------------------------------------------------------------------------------


def test_an_upgrade_in_every_step(run: Upgraded) -> None:
    run.ask()
    assert run.look(ALONE) == [
        "write run.json: version 1, 2 tried",
        "write candidate.json: version 2",
        "remove request.json",
        "say: starting node-3, node-4 with the new code, version 2",
    ]
    assert run.look(ALONE) == ["start node-3 with version 2"]
    assert run.look(ALONE) == [], "node-3 still starts its Spark"
    run.fleet.up.add("node-3")
    assert run.look(ALONE) == ["start node-4 with version 2"]
    run.fleet.up.add("node-4")
    assert run.look(ALONE) == ["say: the new version catches up"]
    assert run.look(status(facts(behind={"out": 11}))) == [], "1.1 s behind"
    assert run.look(status(facts(behind={"out": 10}))) == []
    assert run.look(NEAR) == ["write candidate.json: version 2, live"]
    assert run.look(NEAR) == [], "the sink has a group in hand"
    assert run.look(LIVE) == ["say: the new version's output is delivered; on trial for 10 s"]
    assert run.look(LIVE) == []
    assert run.look(LIVE, after_s=TRIAL_S - 0.1) == []
    assert run.look(LIVE, after_s=0.1) == [
        "write run.json: version 2, 2 tried",
        "say: the run goes on with version 2; ending the old one",
    ]
    assert run.look(LIVE) == ["remove candidate.json"]
    assert run.look(status(facts(version=1), version=2)) == [], "the gateway has not let go of version 1 yet"
    assert run.look(DONE) == ["end node-1 and node-2"]
    assert run.look(DONE) == [], "they are still ending"
    run.fleet.nodes_ended()
    assert run.look(DONE) == ["say: done"]
    assert run.look(DONE) == []


def test_the_new_settings_are_those_of_the_run_but_for_the_code_and_the_nodes(run: Upgraded) -> None:
    before = run.fleet.settings
    run.reach("finishing")
    after = run.fleet.settings
    assert (after.flow_path, after.version, after.first_node) == ("/flows/new.py", 2, 3)
    changed = {name for name, value in vars(after).items() if getattr(before, name) != value}
    assert changed == {"flow_path", "version", "first_node", "versions_tried"}


def test_how_it_goes_is_in_a_file_from_the_first_sentence_to_the_outcome(run: Upgraded) -> None:
    run.reach("finishing")
    assert run.progress.version == 2
    assert run.progress.outcome == ""
    run.look(DONE)
    run.fleet.nodes_ended()
    run.look(DONE)
    assert run.progress.outcome == "done"
    assert run.progress.sentences == (
        "starting node-3, node-4 with the new code, version 2",
        "the new version catches up",
        "the new version's output is delivered; on trial for 10 s",
        "the run goes on with version 2; ending the old one",
        "done",
    )


def test_without_a_trial_the_first_look_at_its_output_decides(run: Upgraded) -> None:
    run.trial_s = 0.0
    run.reach("turning")
    run.look(LIVE)
    assert run.look(LIVE)[0] == "write run.json: version 2, 2 tried"


def test_an_old_version_that_holds_the_sources_up_is_not_waited_for(run: Upgraded) -> None:
    """It could not take over any more."""
    run.reach("on trial")
    crowded = {**LIVE, "waiting_for_room": ["rows"]}
    assert run.look(crowded)[0] == "write run.json: version 2, 2 tried"


def test_ready_means_near_at_several_looks_in_a_row(run: Upgraded) -> None:
    run.reach("catching up")
    apart = [status(facts(whole=False)), None, status(facts(open=False)), status(facts(behind={"out": 90}))]
    for between in apart:
        for _ in range(LOOKS - 1):
            assert run.look(NEAR) == []
        assert run.look(between) == []
    for _ in range(LOOKS - 1):
        assert run.look(NEAR) == []
    assert run.look(NEAR) == ["write candidate.json: version 2, live"]


def test_why_it_cannot_begin_yet_is_said_once(run: Upgraded) -> None:
    run.reach("catching up")
    trouble = status(facts(open=False, trouble="no snapshot is whole"))
    assert run.look(trouble) == ["say: the new version cannot begin yet: no snapshot is whole"]
    assert run.look(trouble) == []


# --- which nodes are looked after here ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "nodes"),
    [
        ("starting", []),
        ("catching up", ["node-3", "node-4"]),
        ("on trial", ["node-3", "node-4"]),
        ("finishing", ["node-1", "node-2"]),
        ("taking back", ["node-3", "node-4"]),
    ],
)
def test_the_nodes_of_the_version_that_may_go_are_not_started_again(
    run: Upgraded, phase: str, nodes: list[str]
) -> None:
    run.reach(phase)
    assert sorted(run.upgrading.nodes) == nodes


def test_without_an_upgrade_every_node_is_started_again(run: Upgraded) -> None:
    assert not run.upgrading.nodes
    run.reach("finishing")
    run.look(DONE)
    assert not run.upgrading.nodes, "the old nodes are forgotten by the fleet"


@pytest.mark.parametrize(
    ("phase", "delivered"),
    [
        *[("starting", False), ("catching up", False), ("turning", True), ("on trial", True)],
        *[("finishing", False), ("taking back", True)],
    ],
)
def test_a_mistake_that_the_gateway_meets_may_be_the_new_versions_while_that_can_be_taken_back(
    run: Upgraded, phase: str, delivered: bool
) -> None:
    run.reach(phase)
    assert run.upgrading.is_delivered is delivered


# --- it is taken back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancelled_upgrade_is_taken_back_from_every_phase(run: Upgraded, phase: str) -> None:
    run.reach(phase)
    cancel(run.folder)
    assert run.look(USUAL[phase]) == [
        "remove candidate.json",
        "say: taking the new version back: it was cancelled",
    ]
    taken_back(run, "it was cancelled")


def test_an_upgrade_that_is_decided_cannot_be_cancelled(run: Upgraded) -> None:
    run.reach("finishing")
    cancel(run.folder)
    run.look(DONE)
    run.fleet.nodes_ended()
    assert run.look(DONE) == ["say: done"]
    assert run.version_on_disk == (2, 2)


def test_a_cancellation_that_came_too_late_does_not_touch_the_next_upgrade(run: Upgraded) -> None:
    run.reach("finishing")
    run.look(DONE)
    cancel(run.folder)
    run.fleet.nodes_ended()
    run.look(DONE)
    run.ask(3, first_node=5)
    run.look(status(version=2))
    assert run.look(status(version=2)) == ["start node-5 with version 3"]


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_is_about_to_end_takes_the_new_version_back_first(run: Upgraded, phase: str) -> None:
    run.reach(phase)
    run.upgrading.close()
    run.look(USUAL[phase])
    taken_back(run, "the run is being stopped")


def test_a_run_that_is_about_to_end_takes_up_no_request_and_ends_what_is_decided(run: Upgraded) -> None:
    run.reach("finishing")
    run.upgrading.close()
    run.look(DONE)
    run.fleet.nodes_ended()
    assert run.look(DONE) == ["say: done"]
    run.ask(3)
    assert run.look(DONE) == []


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_node_of_the_new_version_that_ends_takes_it_back(run: Upgraded, phase: str) -> None:
    run.reach(phase)
    run.fleet.gone["node-4"] = "SIGKILL killed it; the system does that if memory runs short."
    why = f"node-4 has ended: {run.fleet.gone['node-4']}"
    assert run.look(USUAL[phase]) == ["remove candidate.json", f"say: taking the new version back: {why}"]
    taken_back(run, why)


def test_a_first_node_that_fails_while_the_next_is_to_start_takes_it_back(run: Upgraded) -> None:
    run.reach("starting")
    run.look(ALONE)
    run.fleet.gone["node-3"] = "column nosuch is missing."
    run.look(ALONE)
    taken_back(run, "node-3 has ended: column nosuch is missing.")


def test_a_node_of_the_old_version_that_ends_is_no_reason(run: Upgraded) -> None:
    run.reach("on trial")
    run.fleet.gone["node-1"] = "SIGKILL killed it."
    assert run.look(LIVE) == []


@pytest.mark.parametrize("phase", PHASES)
def test_a_gateway_that_fails_takes_it_back(run: Upgraded, phase: str) -> None:
    """What the new version puts out may be what it failed over."""
    run.reach(phase)
    run.fleet.failed["gateway"] = "sink 'out': KeyError: 'n'."
    run.look(None)
    taken_back(run, "the gateway failed: sink 'out': KeyError: 'n'.")


def test_a_version_that_is_not_ready_in_time_is_taken_back_with_the_reason(run: Upgraded) -> None:
    run.reach("catching up")
    run.look(status(facts(open=False, trouble="No snapshot is whole.")))
    assert run.look(None, after_s=READY_S_MAX) == []
    run.look(None, after_s=0.1)
    taken_back(run, "it was not ready within 900 s. No snapshot is whole.")


def test_the_time_that_its_nodes_take_to_start_counts(run: Upgraded) -> None:
    run.reach("starting")
    run.look(ALONE)
    run.fleet.up.add("node-3")
    assert run.look(ALONE, after_s=READY_S_MAX) == ["start node-4 with version 2"]
    run.look(ALONE, after_s=0.1)
    taken_back(run, "it was not ready within 900 s.")


SHORTCOMINGS: dict[str, tuple[Status, str, tuple[str, ...]]] = {
    "no room": (
        facts(crowded=["clicks", "rows"]),
        "it does not keep pace with clicks, rows",
        ("catching up", "turning", "on trial"),
    ),
    "no copy": (facts(live=True, takes=True, down=["counts/0"]), "no copy of counts/0 is left", PHASES[2:]),
    "slow": (
        facts(live=True, takes=True, slower={"a": 3, "b": 101}),
        "its output is 10 s behind the old one's",
        PHASES[2:],
    ),
}


@pytest.mark.parametrize(
    ("seen", "why", "phase"),
    [(seen, why, phase) for seen, why, phases in SHORTCOMINGS.values() for phase in phases],
)
def test_a_version_that_falls_short_is_taken_back(run: Upgraded, seen: Status, why: str, phase: str) -> None:
    run.reach(phase)
    assert run.look(status(seen))[-1] == f"say: taking the new version back: {why}"
    taken_back(run, why)


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        # Without a copy it waits for its saved state, and how far it is shows in the output that is missing.
        (facts(down=["counts/0"], whole=False), "catching up"),
        (facts(slower={"out": 9_999}, behind={"out": 9_999}), "catching up"),
        # Sources wait for a version that some sink takes.
        (facts(live=True, takes=True, crowded=["rows"]), "on trial"),
        (facts(live=True, takes=True, slower={"out": 100}), "on trial"),
    ],
)
def test_what_is_no_reason_to_take_it_back(run: Upgraded, seen: Status, phase: str) -> None:
    run.reach(phase)
    assert run.look(status(seen)) == []


def test_a_node_that_cannot_be_started_takes_it_back(run: Upgraded) -> None:
    run.reach("starting")
    run.look(ALONE)
    run.fleet.up.add("node-3")
    run.fleet.cannot_start["node-4"] = "node-4 cannot be started: Cannot allocate memory."
    assert run.look(ALONE)[-1].startswith("say: taking the new version back: node-4 cannot be started")
    taken_back(run, "node-4 cannot be started: Cannot allocate memory.")


def test_what_a_status_said_before_the_candidate_was_removed_does_not_end_its_nodes(run: Upgraded) -> None:
    """The gateway may just have begun with it."""
    run.reach("starting")
    run.look(ALONE)
    cancel(run.folder)
    assert run.look(ALONE)[0] == "remove candidate.json"
    assert run.look(NEAR) == [], "the gateway still has it"
    assert run.look(ALONE) == ["end node-3"]


# --- a gateway that does not answer -------------------------------------------------------------------------


def test_nodes_start_while_the_gateway_does_not_answer(run: Upgraded) -> None:
    run.ask()
    run.look(None)
    assert run.look(None) == ["start node-3 with version 2"]


@pytest.mark.parametrize(
    "seen", [None, status(facts(version=7, live=True))], ids=["silent", "of another version"]
)
@pytest.mark.parametrize("phase", ["turning", "on trial"])
def test_what_is_not_seen_to_be_delivered_is_waited_for_a_while(
    run: Upgraded, phase: str, seen: Status | None
) -> None:
    run.reach(phase)
    assert run.look(seen, after_s=UNSEEN_S_MAX) == []
    run.look(seen, after_s=0.1)
    taken_back(run, "for 60 s it was not seen that its output is delivered")


def test_a_sink_that_does_not_turn_takes_it_back(run: Upgraded) -> None:
    run.reach("turning")
    assert run.look(NEAR, after_s=UNSEEN_S_MAX) == []
    run.look(NEAR, after_s=0.1)
    taken_back(run, "for 60 s it was not seen that its output is delivered")


def test_what_a_silent_gateway_does_not_show_is_no_trial(run: Upgraded) -> None:
    """A version must not be kept that was never seen to work."""
    run.reach("on trial")
    run.look(LIVE)
    assert run.look(LIVE, after_s=TRIAL_S - 0.1) == []
    assert run.look(None, after_s=5.0) == []
    assert run.look(status(facts(open=False)), after_s=5.0) == [], "it was started again"
    assert run.look(LIVE) == []
    assert run.look(LIVE, after_s=TRIAL_S - 0.1) == [], "the trial began again"
    assert run.look(LIVE, after_s=0.1)[0] == "write run.json: version 2, 2 tried"


def test_the_old_version_is_not_ended_before_the_gateway_has_let_go_of_it(run: Upgraded) -> None:
    run.reach("finishing")
    for seen in (None, LIVE, status(facts(version=1), version=2), None):
        assert "end" not in " ".join(run.look(seen, after_s=1_000.0))
    assert run.look(DONE) == ["end node-1 and node-2"]


def test_a_version_that_a_silent_gateway_does_not_let_go_of_ends_all_the_same(run: Upgraded) -> None:
    run.reach("taking back")
    assert run.look(None, after_s=LETTING_GO_S_MAX) == []
    assert run.look(None, after_s=0.1) == ["end node-3 and node-4"]


def test_nodes_that_do_not_end_do_not_keep_the_upgrade_from_its_end(run: Upgraded) -> None:
    run.reach("finishing")
    run.look(DONE)
    assert run.look(DONE, after_s=module.ENDING_S_MAX) == []
    assert run.look(DONE, after_s=0.1) == ["say: done"]


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
    taken_back(run, did[-1].removeprefix("say: taking the new version back: "))


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
    taken_back(run, "run.json cannot be written: No space left on device")


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


# --- what is left behind ------------------------------------------------------------------------------------


def test_a_version_that_was_taken_back_leaves_its_logs_alone(run: Upgraded) -> None:
    live_on(run, 1)
    before = left(run)
    run.reach("catching up")
    live_on(run, 2)
    cancel(run.folder)
    for _ in range(2):
        run.look(ALONE)
    run.fleet.nodes_ended()
    run.look(ALONE)
    assert {file.split("/")[0] for file in left(run) - before} == {"logs"}
    assert before <= left(run), "the old version has all that it had"


def test_an_old_version_leaves_its_logs_alone_and_the_new_one_has_all_that_it_has(run: Upgraded) -> None:
    live_on(run, 1)
    before = left(run)
    run.reach("finishing")
    live_on(run, 2)
    of_new = left(run) - before - {"candidate.json"}
    run.look(DONE)
    run.fleet.nodes_ended()
    run.look(DONE)
    assert of_new <= left(run)
    assert {file.split("/")[0] for file in left(run) & before} == {"logs"}


def test_a_hundred_upgrades_leave_no_more_on_disk_than_two(run: Upgraded) -> None:
    live_on(run, 1)
    sizes = []
    for version in range(2, 102):
        first = run.fleet.settings.first_node + 2
        is_done = version % 3 > 0
        run.fleet.up = {f"node-{first}", f"node-{first + 1}"}
        base = run.fleet.settings.version
        of_it = facts(version=version)
        live = status({**of_it, "live": True, "takes": True}, version=base)
        run.ask(version, first_node=first)
        for seen in (*[status(version=base)] * 4, *[status(of_it, version=base)] * LOOKS, live):
            run.look(seen)
        names = [f"node-{first}", f"node-{first + 1}"]
        for name in names:
            for file in (f"ready/{name}", f"failed/{name}.txt", f"state/{name}.1/x", f"logs/{name}.log"):
                put(run.folder / file)
        put(run.folder / "versions" / str(version) / "flow.json")
        shelf = run.folder / "saved" / "run" / "counts@0"
        put(shelf / snapshots_folder(version) / f"{version:020d}_000001_ab.json")
        run.look(live)
        if not is_done:
            cancel(run.folder)
        run.look(live, after_s=TRIAL_S)
        run.look(status(version=version if is_done else base))
        run.fleet.nodes_ended()
        run.look(status(version=version if is_done else base))
        assert run.progress.outcome == ("done" if is_done else "taken back")
        sizes.append(len(left(run)))
    assert max(sizes[2:]) <= max(sizes[:3])
    assert run.fleet.settings.version == 101


def test_what_a_version_left_that_could_not_be_removed_goes_with_the_next_one(run: Upgraded) -> None:
    """A gateway that let go of it late may have written to its shelf again."""
    run.reach("taking back")
    run.look(ALONE)
    run.fleet.nodes_ended()
    run.look(ALONE)
    live_on(run, 2)
    run.fleet.up.clear()
    run.reach("taking back", version=3)
    run.look(ALONE)
    run.fleet.nodes_ended()
    assert not (run.folder / "versions" / "2").exists()
    assert not list((run.folder / "saved").rglob("snapshots@2/*.json"))


def test_the_version_that_is_asked_for_next_is_not_taken_for_one_that_is_over(run: Upgraded) -> None:
    """`understudy upgrade` writes its code down while the one before still ends."""
    run.reach("taking back")
    run.look(ALONE)
    live_on(run, 3)
    run.fleet.nodes_ended()
    assert (run.folder / "versions" / "3" / "flow.json").exists()
    assert list((run.folder / "saved").rglob("snapshots@3/*.json"))


def test_a_store_that_does_not_answer_does_not_keep_an_upgrade_from_its_end(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from understudy.flow.errors import EnvironmentFailed
    from understudy.runtime import leftovers

    def silent(*_: object, **__: object) -> None:
        raise EnvironmentFailed("The store does not answer.")

    monkeypatch.setattr(leftovers.SnapshotStore, "open", silent)
    run.reach("finishing")
    run.look(DONE)
    run.fleet.nodes_ended()
    assert run.look(DONE) == ["say: done"]
