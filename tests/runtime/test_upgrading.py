"""An upgrade, step by step: what is written and started, in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.runtime.candidate_trial import HELD_UP_S_MAX
from understudy.runtime.upgrading import LOOKS
from upgrade_kit import (
    ALONE,
    DONE,
    LIVE,
    NEAR,
    TRIAL_S,
    Upgraded,
    facts,
    status,
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upgraded:
    return Upgraded(tmp_path / "run", monkeypatch)


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


def test_an_upgrade_is_under_way_until_the_nodes_of_the_old_version_have_ended(
    run: Upgraded,
) -> None:
    idle = [run.upgrading.is_idle]
    run.reach("finishing")
    idle.append(run.upgrading.is_idle)
    run.look(LIVE)
    run.look(DONE)
    idle.append(run.upgrading.is_idle)
    run.fleet.nodes_ended()
    run.look(DONE)
    idle.append(run.upgrading.is_idle)
    assert idle == [True, False, False, True]


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


def test_an_old_version_that_holds_the_sources_up_for_long_ends_the_trial(run: Upgraded) -> None:
    """It could not take over any more."""
    run.reach("on trial")
    crowded = {**LIVE, "waiting_for_room": ["rows"]}
    assert run.look(crowded) == []
    assert run.look(crowded, after_s=HELD_UP_S_MAX - 0.1) == []
    written, *said = run.look(crowded, after_s=0.2)
    assert written == "write run.json: version 2, 2 tried"
    assert said[0] == "say: the old version does not keep pace with rows, so the trial ends early"


def test_an_old_version_that_holds_the_sources_up_now_and_then_may_still_take_over(run: Upgraded) -> None:
    """A source as fast as the flow is held up all the time, a moment each."""
    run.reach("on trial")
    crowded = {**LIVE, "waiting_for_room": ["rows"]}
    for _ in range(5):
        assert run.look(crowded) == []
        assert run.look(LIVE, after_s=HELD_UP_S_MAX / 4) == []
        assert run.look(crowded, after_s=HELD_UP_S_MAX / 4) == []


def test_that_it_held_the_sources_up_before_an_outage_of_the_gateway_does_not_count(run: Upgraded) -> None:
    run.reach("on trial")
    crowded = {**LIVE, "waiting_for_room": ["rows"]}
    assert run.look(crowded) == []
    assert run.look(None, after_s=2 * HELD_UP_S_MAX) == []
    assert run.look(crowded) == []
    assert run.look(crowded, after_s=HELD_UP_S_MAX - 0.1) == []
    assert run.look(crowded, after_s=0.2)[0] == "write run.json: version 2, 2 tried"


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
