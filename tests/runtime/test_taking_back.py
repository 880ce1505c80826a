"""What takes a new version back, in which phase, and what a gateway that does not answer means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from understudy.runtime import upgrading
from understudy.runtime.candidate_status import LATER_S_MAX
from understudy.runtime.candidate_trial import HELD_UP_S_MAX, UNSEEN_S_MAX
from understudy.runtime.upgrade_files import cancel
from understudy.runtime.upgrading import ENDING_S_MAX, LETTING_GO_S_MAX, LOOKS, READY_S_MAX
from upgrade_kit import (
    ALONE,
    DONE,
    LIVE,
    NEAR,
    PHASES,
    TRIAL_S,
    USUAL,
    Status,
    Upgraded,
    facts,
    status,
)

#: What is said when nodes take long to end.
LATE = "say: nodes that are over have not ended yet; the next upgrade waits until they have"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upgraded:
    return Upgraded(tmp_path / "run", monkeypatch)


# --- it is taken back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancelled_upgrade_is_taken_back_from_every_phase(run: Upgraded, phase: str) -> None:
    run.reach(phase)
    cancel(run.folder)
    assert run.look(USUAL[phase]) == [
        "remove candidate.json",
        "say: taking the new version back: it was cancelled",
    ]
    run.is_taken_back("it was cancelled")


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
    run.is_taken_back("the run is being stopped")


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
    run.is_taken_back(why)


def test_a_first_node_that_fails_while_the_next_is_to_start_takes_it_back(run: Upgraded) -> None:
    run.reach("starting")
    run.look(ALONE)
    run.fleet.gone["node-3"] = "column nosuch is missing."
    run.look(ALONE)
    run.is_taken_back("node-3 has ended: column nosuch is missing.")


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
    run.is_taken_back("the gateway failed: sink 'out': KeyError: 'n'.")


def test_a_version_that_is_not_ready_in_time_is_taken_back_with_the_reason(run: Upgraded) -> None:
    run.reach("catching up")
    run.look(status(facts(open=False, trouble="No snapshot is whole.")))
    assert run.look(None, after_s=READY_S_MAX) == []
    run.look(None, after_s=0.1)
    run.is_taken_back("it was not ready within 900 s. No snapshot is whole.")


def test_the_time_that_its_nodes_take_to_start_counts(run: Upgraded) -> None:
    run.reach("starting")
    run.look(ALONE)
    run.fleet.up.add("node-3")
    assert run.look(ALONE, after_s=READY_S_MAX) == ["start node-4 with version 2"]
    run.look(ALONE, after_s=0.1)
    run.is_taken_back("it was not ready within 900 s.")


def lacking(*, arrived: int, beside: int) -> Status:
    """On trial, and the output of one sink has come so far from the new version and from the old one."""
    shown = {"arrived": {"a": 40, "b": arrived}, "arrived_beside": {"a": 40, "b": beside}}
    return facts(live=True, takes=True, **shown)


SHORTCOMINGS: dict[str, tuple[Status, str, tuple[str, ...]]] = {
    "broken": (facts(failure="The log is damaged."), "The log is damaged.", PHASES[1:]),
    "no room": (
        facts(crowded=["clicks", "rows"]),
        "it does not keep pace with clicks, rows",
        ("catching up", "turning", "on trial"),
    ),
    "no copy": (facts(live=True, takes=True, down=["counts/0"]), "no copy of counts/0 is left", PHASES[2:]),
}


@pytest.mark.parametrize(
    ("seen", "why", "phase"),
    [(seen, why, phase) for seen, why, phases in SHORTCOMINGS.values() for phase in phases],
)
def test_a_version_that_falls_short_is_taken_back(run: Upgraded, seen: Status, why: str, phase: str) -> None:
    run.reach(phase)
    assert run.look(status(seen))[-1] == f"say: taking the new version back: {why}"
    run.is_taken_back(why)


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        # Without a copy it waits for its saved state, and how far it is shows in the output that is missing.
        (facts(down=["counts/0"], whole=False), "catching up"),
        (facts(arrived_beside={"out": 9_999}, behind={"out": 9_999}), "catching up"),
        # Sources wait for a version that some sink takes.
        (facts(live=True, takes=True, crowded=["rows"]), "on trial"),
        # The time of the rows has jumped, and not much time has passed.
        (lacking(arrived=40, beside=9_999), "on trial"),
    ],
)
def test_what_is_no_reason_to_take_it_back(run: Upgraded, seen: Status, phase: str) -> None:
    run.reach(phase)
    assert run.look(status(seen)) == []


@pytest.mark.parametrize("phase", PHASES[2:])
def test_output_that_comes_too_late_for_too_long_takes_it_back(run: Upgraded, phase: str) -> None:
    run.reach(phase)
    slow = status({**lacking(arrived=40, beside=41), "live": phase == "on trial"})
    assert run.look(slow) == []
    assert run.look(slow, after_s=LATER_S_MAX) == []
    why = "its output is 10 s behind the old one's"
    assert run.look(slow, after_s=0.2)[-1] == f"say: taking the new version back: {why}"
    run.is_taken_back(why)


def test_a_trial_does_not_end_while_output_is_awaited(run: Upgraded) -> None:
    """Else a version whose output stops for good as soon as it is delivered would pass every short trial."""
    run.reach("on trial")
    run.look(LIVE)
    assert run.look(status(lacking(arrived=40, beside=41)), after_s=TRIAL_S - 2) == []
    assert run.look(status(lacking(arrived=40, beside=50)), after_s=4) == []
    assert run.look(status(lacking(arrived=41, beside=50)))[0] == "write run.json: version 2, 2 tried"


def test_a_trial_does_not_end_early_for_a_version_that_does_not_put_anything_out(run: Upgraded) -> None:
    """The sources wait for it, and before that it was the old version that they did not wait for."""
    run.reach("on trial")
    run.look(LIVE)
    hung = status({**lacking(arrived=40, beside=41), "crowded": ["rows"]}, waiting=["rows"])
    for _ in range(int(LATER_S_MAX) + 1):
        assert run.look(hung, after_s=1.0) == []
    why = "its output is 11 s behind the old one's"
    assert run.look(hung, after_s=1.0)[-1] == f"say: taking the new version back: {why}"
    run.is_taken_back(why)


@pytest.mark.parametrize(
    "lacks", [{"crowded": ["rows"]}, {"arrived_beside": {"out": 41}}], ids=["no room", "no output"]
)
def test_a_trial_ends_early_once_the_new_version_lacks_nothing(run: Upgraded, lacks: dict[str, Any]) -> None:
    run.trial_s = 100 * TRIAL_S
    run.reach("on trial")
    lacking_it = status(facts(live=True, takes=True, **lacks), waiting=["rows"])
    for _ in range(int(HELD_UP_S_MAX) + 3):
        assert run.look(lacking_it, after_s=1.0) == []
    lacks_nothing = facts(live=True, takes=True, arrived={"out": 41}, arrived_beside={"out": 41})
    assert run.look(status(lacks_nothing, waiting=["rows"]))[0] == "write run.json: version 2, 2 tried"


def test_output_that_is_always_a_little_later_is_late_by_that_little(run: Upgraded) -> None:
    """Whatever the time of the rows: here every number is a quarter of an hour after the one before."""
    run.trial_s = 100 * TRIAL_S
    run.reach("on trial")
    for number in range(100):
        assert run.look(status(lacking(arrived=number * 9_000, beside=(number + 1) * 9_000)), after_s=5) == []


def test_how_late_it_was_before_an_outage_of_the_gateway_does_not_count(run: Upgraded) -> None:
    """The gateway begins again with what was delivered, and asks both versions for the rest."""
    run.reach("on trial")
    run.look(status(lacking(arrived=40, beside=41)))
    run.look(None, after_s=LATER_S_MAX)
    assert run.look(status(lacking(arrived=40, beside=41)), after_s=1) == []


@pytest.mark.parametrize("phase", PHASES)
def test_a_gateway_that_begins_again_and_has_not_opened_it_yet_is_no_reason(
    run: Upgraded, phase: str
) -> None:
    run.reach(phase)
    run.look(USUAL[phase])
    assert not any("taking" in did for did in run.look(status(facts(open=False)), after_s=1.0))


def test_what_was_awaited_of_a_gateway_that_has_begun_again_is_not_awaited_any_more(run: Upgraded) -> None:
    run.reach("turning")
    slow = {"arrived": {"out": 40}, "arrived_beside": {"out": 41}}
    run.look(status(facts(**slow)))
    run.look(status(facts(open=False)), after_s=LATER_S_MAX)
    assert run.look(status(facts(**slow)), after_s=1.0) == []


def test_a_node_that_cannot_be_started_takes_it_back(run: Upgraded) -> None:
    run.reach("starting")
    run.look(ALONE)
    run.fleet.up.add("node-3")
    run.fleet.cannot_start["node-4"] = "node-4 cannot be started: Cannot allocate memory."
    assert run.look(ALONE)[-1].startswith("say: taking the new version back: node-4 cannot be started")
    run.is_taken_back("node-4 cannot be started: Cannot allocate memory.")


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
    run.is_taken_back("for 60 s it was not seen that its output is delivered")


@pytest.mark.parametrize("phase", ["turning", "on trial"])
def test_a_gateway_that_is_killed_again_and_again_takes_it_back(run: Upgraded, phase: str) -> None:
    """The system may kill it because the new version's output takes too much memory."""
    run.reach(phase)
    live = facts(live=phase == "on trial", takes=True)
    for gateway in (1, 2):
        assert run.look(status(live, gateway=gateway)) == []
        assert run.look(None, after_s=5.0) == []
    why = "the gateway was killed 2 times while its output was delivered"
    assert run.look(status(facts(open=False), gateway=3))[-1] == f"say: taking the new version back: {why}"
    run.is_taken_back(why)


def test_a_gateway_that_is_killed_before_the_sinks_turn_does_not_count(run: Upgraded) -> None:
    run.reach("catching up")
    for gateway in range(1, 6):
        assert run.look(status(facts(open=False), gateway=gateway)) == []
    for _ in range(LOOKS):
        run.look(status(facts(), gateway=6))
    live = facts(live=True, takes=True)
    for gateway in (6, 7):
        assert "taking" not in " ".join(run.look(status(live, gateway=gateway)))


def test_a_sink_that_does_not_turn_takes_it_back(run: Upgraded) -> None:
    run.reach("turning")
    assert run.look(NEAR, after_s=UNSEEN_S_MAX) == []
    run.look(NEAR, after_s=0.1)
    run.is_taken_back("for 60 s it was not seen that its output is delivered")


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
    assert run.look(DONE, after_s=ENDING_S_MAX) == []
    assert run.look(DONE, after_s=0.1) == [LATE, "say: done"]
    assert run.look(DONE) == []
    run.fleet.nodes_ended()
    run.ask(3, first_node=5)
    run.look(DONE)
    assert run.look(DONE)[1] == "write candidate.json: version 3"


def test_nodes_that_have_not_ended_keep_the_next_upgrade_waiting_which_is_told_why(run: Upgraded) -> None:
    """It has nodes of the same names."""
    run.reach("taking back")
    run.look(ALONE)
    assert run.look(ALONE, after_s=ENDING_S_MAX + 1)[0] == LATE
    run.ask(3)
    waits = "waiting until the nodes of the upgrade before have ended"
    assert run.look(ALONE) == [f"say: {waits}"]
    assert run.look(ALONE, after_s=1_000.0) == []
    assert (run.progress.version, run.progress.sentences) == (3, (waits,))
    run.fleet.nodes_ended()
    run.look(ALONE)
    assert run.look(ALONE)[1] == "write candidate.json: version 3"
    assert run.progress.sentences == (waits, "starting node-3, node-4 with the new code, version 3")


def test_an_old_request_that_comes_meanwhile_is_answered_later(run: Upgraded) -> None:
    run.reach("taking back")
    run.look(ALONE)
    run.look(ALONE, after_s=ENDING_S_MAX + 1)
    run.ask(1)
    assert run.look(ALONE) == []
    run.fleet.nodes_ended()
    run.look(ALONE)
    assert run.look(ALONE) == ["remove request.json", "say: taken back: that version was tried before"]


def test_what_cannot_be_tidied_up_does_not_keep_the_next_upgrade_waiting(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr(upgrading, "drop_nodes", fail)
    run.reach("finishing")
    run.look(DONE)
    with pytest.raises(RuntimeError):
        run.fleet.nodes_ended()
    assert run.look(DONE) == ["say: done"]
