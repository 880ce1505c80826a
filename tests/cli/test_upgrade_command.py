"""`understudy upgrade`: what is said while the run carries the upgrade out, and when it ends meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from upgrade_command_kit import BEHIND, LOOKED, Commanded, answering

from understudy.runtime import fit
from understudy.runtime.candidate import candidate_in
from understudy.runtime.leftovers import drop_unfinished
from understudy.runtime.pinning import known_shapes
from understudy.runtime.process import finished_file
from understudy.runtime.upgrade_files import FOLDER, PROGRESS, REQUEST, remove_request
from understudy.runtime.upgrading import ENDING_S_MAX
from upgrade_kit import ALONE, DONE, LIVE, NEAR, TRIAL_S

# --- how it goes --------------------------------------------------------------------------------------------


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


STARTING = "starting node-3, node-4 with the new code, version 2"
CATCHES_UP = "the new version catches up"
DELIVERED = "the new version's output is delivered; on trial for 10 s"


def later(command: Commanded, seconds: float) -> Callable[[], None]:
    def wait() -> None:
        command.run.now_s += seconds

    return wait


def test_an_upgrade_is_told_step_by_step(
    command: Commanded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, accepted=["counts: a filter was added"])
    command.until_catching_up()
    command.then(NEAR, NEAR, LIVE, LIVE, later(command, TRIAL_S), LIVE, DONE, command.run.fleet.nodes_ended)
    command.then(DONE)
    assert command.upgrade() == 0
    assert lines(capsys) == [
        *(LOOKED, "counts: a filter was added", STARTING, CATCHES_UP, DELIVERED),
        *("the run goes on with version 2; ending the old one", "done"),
    ]
    assert command.settings.version == 2


def test_what_a_new_version_adopts_may_be_of_any_shape_that_counts_for_the_old_one(
    command: Commanded,
) -> None:
    command.until_catching_up()
    command.then(NEAR, NEAR, LIVE, command.lock.release)
    command.upgrade()
    assert known_shapes(command.run.request().settings) == [{"format": 1}]


def test_the_trial_is_as_long_as_it_is_wanted(command: Commanded, capsys: pytest.CaptureFixture[str]) -> None:
    command.until_catching_up()
    command.then(NEAR, NEAR, LIVE, command.lock.release)
    command.upgrade("--trial", "0.5")
    assert "the new version's output is delivered; on trial for 0.5 s" in lines(capsys)


def test_a_version_that_is_taken_back_is_told_with_the_reason_and_what_to_do(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        command.run.fleet.gone["node-4"] = "column nosuch is missing."

    command.until_catching_up()
    command.then(fails, BEHIND, ALONE, command.run.fleet.nodes_ended, ALONE)
    assert command.upgrade() == 1
    assert lines(capsys) == [
        *(LOOKED, STARTING, CATCHES_UP),
        "taking the new version back: node-4 has ended: column nosuch is missing.",
        "taken back: node-4 has ended: column nosuch is missing. Nothing is lost: the run has version 1, as "
        "before. Once that is mended, upgrade again.",
    ]


def test_an_upgrade_that_has_to_wait_for_the_one_before_says_so(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    command.run.reach("taking back")
    command.run.look(ALONE)
    command.run.look(ALONE, after_s=ENDING_S_MAX + 1)
    command.run.fleet.up.clear()
    command.then(ALONE, ALONE, command.run.fleet.nodes_ended)
    command.until_catching_up()
    command.then(ALONE, command.lock.release)
    command.upgrade()
    assert lines(capsys)[1:4] == [
        "waiting until the nodes of the upgrade before have ended",
        STARTING.replace("version 2", "version 3"),
        CATCHES_UP,
    ]


def hear(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def test_ctrl_c_takes_it_back(command: Commanded, capsys: pytest.CaptureFixture[str]) -> None:
    def gone_on() -> None:
        """The gateway lets go and the nodes end, as soon as it is cancelled."""
        command.run.look(BEHIND if candidate_in(command.run.folder) is not None else ALONE)
        command.run.fleet.nodes_ended()

    command.until_catching_up()
    command.then(hear(signal.SIGINT), gone_on)
    assert command.upgrade() == 1
    assert lines(capsys)[-3:] == [
        "taking it back",
        "taking the new version back: it was cancelled",
        "taken back: it was cancelled. Nothing is lost: the run has version 1, as before.",
    ]


def test_ctrl_c_again_does_not_wait_until_it_is_taken_back(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    def again_when_cancelled() -> None:
        if (command.run.folder / FOLDER / "cancelled").exists():
            os.kill(os.getpid(), signal.SIGINT)

    command.until_catching_up()
    command.then(hear(signal.SIGINT), again_when_cancelled)
    assert command.upgrade() == 130
    assert lines(capsys)[-1] == "No longer following; it is still being taken back."


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_that_is_ended_in_another_way_leaves_the_upgrade_going_on(
    command: Commanded, number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command.until_catching_up()
    command.then(hear(number), BEHIND)
    assert command.upgrade() == code
    assert lines(capsys)[-1] == "No longer following; the upgrade goes on."
    assert candidate_in(command.run.folder) is not None
    assert command.run.look(BEHIND) == []


def test_a_cancellation_that_the_disk_does_not_take_is_said_not_to_have_happened(
    command: Commanded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_file: Path) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    command.until_catching_up()
    command.then(hear(signal.SIGINT), BEHIND)
    assert command.upgrade() == 3
    assert "No space left on device. The upgrade goes on." in capsys.readouterr().err


# --- the run ends meanwhile ---------------------------------------------------------------------------------


def test_a_run_that_ends_on_trial_goes_on_from_the_version_before(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    command.until_catching_up()
    command.then(NEAR, NEAR, LIVE, command.lock.release)
    assert command.upgrade() == 1
    assert lines(capsys)[-1] == (
        "The run has ended meanwhile, with the version before. It goes on from that one's state: "
        f"understudy run FLOW.py --folder {command.run.folder}"
    )


def test_a_run_that_ends_before_it_takes_the_request_up_goes_on_from_the_version_before(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    command.then(command.lock.release)
    assert command.upgrade() == 1
    assert lines(capsys)[-1].startswith("The run has ended meanwhile, with the version before.")


def test_a_run_that_ends_once_it_is_decided_goes_on_from_the_new_version(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    command.until_catching_up()
    command.then(NEAR, NEAR, LIVE, LIVE, later(command, TRIAL_S), LIVE, command.lock.release)
    assert command.upgrade() == 0
    assert lines(capsys)[-1].startswith("The run has ended meanwhile, with the new version.")


def test_a_run_that_finishes_meanwhile_does_not_go_on_and_that_is_said(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    def finishes() -> None:
        finished_file(command.run.folder).touch()
        command.lock.release()

    command.until_catching_up()
    command.then(finishes)
    assert command.upgrade() == 1
    assert lines(capsys)[-1] == (
        "The run has finished with the version before: every source has ended and everything is delivered."
    )


def test_a_run_that_is_stopped_takes_it_back_and_says_so(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    command.until_catching_up()
    command.then(command.run.upgrading.close, BEHIND, command.lock.release)
    assert command.upgrade() == 1
    assert lines(capsys)[-2:] == [
        "taking the new version back: the run is being stopped",
        "The run has ended meanwhile, with the version before. It goes on from that one's state: "
        f"understudy run FLOW.py --folder {command.run.folder}",
    ]


def test_a_run_that_has_gone_on_by_the_time_that_it_is_looked_at_has_forgotten_the_upgrade(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lock is held again, and what the upgrade had said is gone."""

    def killed_and_begun_again() -> None:
        former = command.settings
        drop_unfinished(former)
        replace(former, generation=4).save()

    command.until_catching_up()
    command.then(killed_and_begun_again)
    assert command.upgrade() == 1
    assert lines(capsys)[-1].startswith("The run has ended meanwhile, with the version before.")


def test_a_request_that_reaches_a_run_that_has_gone_on_meanwhile_is_refused_by_it(
    command: Commanded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would bring back where its ZooKeeper and its gateway were before."""

    def gone_on(*_: object) -> dict[str, list[str]]:
        command.run.fleet.settings = replace(command.settings, generation=4, gateway_port=5)
        return {"refusals": [], "accepted": []}

    monkeypatch.setattr(fit, "_asked", gone_on)
    command.then(ALONE)
    assert command.upgrade() == 1
    assert command.run.progress.sentences == (
        "taken back: the run was begun again meanwhile. Ask for the upgrade again",
    )


def test_a_request_of_which_nothing_is_heard_is_not_waited_for_for_ever(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    command.then(lambda: remove_request(command.run.folder), later(command, 10.0))
    assert command.upgrade() == 3
    assert "How the upgrade goes is not known" in capsys.readouterr().err
    assert command.waits <= 6


def test_a_request_that_waits_is_waited_for(command: Commanded) -> None:
    """The run may be busy starting its ZooKeeper again."""
    command.then(*[later(command, 100.0)] * 5, command.lock.release)
    assert command.upgrade() == 1
    assert (command.run.folder / FOLDER / REQUEST).exists()


def test_what_is_told_of_another_version_is_not_taken_for_this_one(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by a run that is about to take an earlier one back when the next is asked for."""
    replace(command.settings, versions_tried=2).save()

    def tell() -> None:
        values = {"version": 2, "sentences": ["taken back: it was cancelled"], "outcome": "taken back"}
        (command.run.folder / FOLDER / PROGRESS).write_text(json.dumps(values))

    command.then(tell, lambda: None, command.lock.release)
    command.upgrade()
    assert "taken back: it was cancelled" not in lines(capsys)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}'])
def test_how_it_goes_may_be_unreadable_for_a_while(command: Commanded, text: str) -> None:
    def spoil() -> None:
        (command.run.folder / FOLDER / PROGRESS).write_text(text)

    command.until_catching_up()
    command.then(spoil, lambda: None, command.lock.release)
    assert command.upgrade() == 1
