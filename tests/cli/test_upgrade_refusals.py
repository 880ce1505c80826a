"""`understudy upgrade`: what is refused, and what the run is asked for if nothing is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from upgrade_command_kit import CHANGED, FLOW, LOOKED, Commanded, answering

from understudy.cli import upgrade as module
from understudy.cli.main import main
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.runtime import fit
from understudy.runtime.candidate import Candidate
from understudy.runtime.folder_lock import FolderLock
from understudy.runtime.pinning import has_changed, load_pinned, pin, pin_shape, unpin
from understudy.runtime.process import finished_file
from understudy.runtime.settings import RunSettings
from understudy.runtime.upgrade_files import request_in
from upgrade_kit import SHAPE


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run but locks."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and "lock" not in file.name]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


# --- it is refused, and nothing has changed -----------------------------------------------------------------


@pytest.fixture
def refused(command: Commanded, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What is said when the command is refused, which leaves the run as it was."""

    def refuse(code: int = 2, flow: str = CHANGED) -> str:
        before, version = contents(command.run.folder), command.run.folder / "versions" / "2"
        begun = version.exists()
        assert command.upgrade(flow=flow) == code
        assert contents(command.run.folder) == before
        assert version.exists() == begun
        said = capsys.readouterr().err
        assert said.startswith("understudy upgrade: ")
        assert "Traceback" not in said
        return said

    return refuse


def test_a_run_that_is_not_running_goes_on_with_the_changed_flow(
    command: Commanded, refused: Callable[..., str]
) -> None:
    command.lock.release()
    said = refused()
    assert "is not running on this machine" in said
    assert f"understudy run FLOW.py --folder {command.run.folder}" in said


def test_a_run_that_holds_its_folder_without_a_number_in_it_is_running(command: Commanded) -> None:
    """As on a disk that was full when it began."""
    (command.run.folder / "lock").write_text("")
    assert command.upgrade(flow=FLOW) == 0


def test_a_finished_run_does_not_go_on(command: Commanded, refused: Callable[..., str]) -> None:
    finished_file(command.run.folder).touch()
    command.lock.release()
    said = refused()
    assert "is finished: every source has ended" in said
    assert "Start the changed flow in a new folder." in said


def test_another_flow_is_refused(refused: Callable[..., str]) -> None:
    said = refused(flow=CHANGED.replace('"small"', '"large"'))
    assert "Run run is of flow 'small', and this is flow 'large'." in said


def test_a_run_that_saves_nothing_is_refused(command: Commanded, refused: Callable[..., str]) -> None:
    replace(command.settings, snapshot_every_ms=0).save()
    assert "saves no state, and a new version begins with a saved state" in refused()


def test_a_run_of_which_no_node_is_ready_is_refused(command: Commanded, refused: Callable[..., str]) -> None:
    unpin(command.settings)
    assert "No node of run run is ready yet. Wait until it works." in refused()


BUSY = "Another upgrade of run run is under way."


def test_while_another_command_looks_whether_its_flow_fits_this_one_is_refused(
    command: Commanded, refused: Callable[..., str]
) -> None:
    other = FolderLock(command.run.folder, "", ValueError(), "upgrade.lock")
    other.take()
    assert BUSY in refused()
    other.release()


@pytest.mark.parametrize("phase", ["asked", "starting", "on trial"])
def test_an_upgrade_whose_command_was_killed_is_under_way(
    command: Commanded, refused: Callable[..., str], phase: str
) -> None:
    if phase == "asked":
        command.run.ask()
    else:
        command.run.reach(phase)
    assert BUSY in refused()


def test_a_changed_source_or_sink_is_refused_with_what_has_changed(refused: Callable[..., str]) -> None:
    said = refused(
        flow=CHANGED.replace("k bigint", "k int").replace('JsonLines("out")', 'JsonLines("there")')
    )
    assert "An upgrade changes fragments, not sources and sinks:" in said
    assert "- source 'rows' has changed: schema k bigint, ts timestamp became k int, ts timestamp\n" in said
    assert "- sink 'out' has changed: path out became there\n" in said
    assert "Stop the run, and go on with the new file." in said


def test_a_state_that_does_not_fit_is_refused_with_every_reason(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, refusals=["its window is longer", "its key is another"])
    assert "does not fit the flow as it is now:\n- its window is longer\n- its key is another" in refused()


def test_what_cannot_be_told_is_the_environments_fault(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise EnvironmentFailed("Java does not start.")

    monkeypatch.setattr(fit, "_asked", silent)
    assert "Java does not start." in refused(code=3)


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        ("def half(", "flow.py:1: '(' was never closed."),
        ("import nosuch", "flow.py:1: ModuleNotFoundError: No module named 'nosuch'"),
        ("meaning = 42", "no flow in it"),
    ],
)
def test_a_flow_file_that_is_none_is_refused(refused: Callable[..., str], flow: str, said: str) -> None:
    assert said in refused(flow=flow)


def test_a_flow_file_that_is_missing_is_refused(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upgrade", "nosuch.py", str(command.run.folder)]) == 2
    assert "nosuch.py: there is no such file." in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "flow.py").write_text(FLOW)
    assert main(["upgrade", "flow.py", "nowhere"]) == 2
    assert "nowhere is not a run's folder" in capsys.readouterr().err


def test_a_file_that_changes_while_it_is_looked_at_is_refused(
    command: Commanded, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def edited(*_: object) -> dict[str, list[str]]:
        command.flow.write_text(f"{CHANGED}\nmeaning = 42\n")
        return {"refusals": [], "accepted": []}

    monkeypatch.setattr(fit, "_asked", edited)
    assert "flow.py was changed meanwhile. Try again." in refused()


def test_a_run_that_ends_while_its_state_is_looked_at_is_not_upgraded(
    command: Commanded, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> dict[str, list[str]]:
        command.lock.release()
        return {"refusals": [], "accepted": []}

    monkeypatch.setattr(fit, "_asked", ended)
    assert "is not running on this machine" in refused()


def test_ctrl_c_while_the_state_is_looked_at_leaves_nothing(
    command: Commanded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fit, "_asked", interrupted)
    before = contents(command.run.folder)
    assert command.upgrade() == 130
    assert contents(command.run.folder) == before


@pytest.mark.parametrize("file", ["flow.json", "request.json"])
def test_a_disk_that_is_full_is_said_to_be_and_nothing_is_asked_for(
    command: Commanded, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if file == "flow.json":
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("No links")))
    command.run.full[file] = True
    assert command.upgrade() == 3
    said = capsys.readouterr().err
    assert f"{file} cannot be" in said
    assert "No space left on device" in said
    assert request_in(command.run.folder) is None


def test_code_that_the_run_has_already_is_nothing_to_do(
    command: Commanded, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(command.run.folder)
    assert command.upgrade(flow=FLOW) == 0
    assert capsys.readouterr().out == "Nothing to do: the run has this code already.\n"
    assert contents(command.run.folder) == before


# --- what is asked for --------------------------------------------------------------------------------------


def asked(command: Commanded) -> RunSettings:
    """The settings of the version that the command asks the run for."""
    found: list[RunSettings] = []

    def take() -> None:
        request = request_in(command.run.folder)
        assert request is not None
        found.append(request.settings)
        command.lock.release()

    command.then(take)
    command.upgrade()
    command.lock.take()
    return found[0]


def test_a_new_version_is_the_run_with_other_code_and_other_nodes(command: Commanded) -> None:
    before, wanted = command.settings, asked(command)
    assert (wanted.version, wanted.first_node, wanted.node_names) == (2, 3, ["node-3", "node-4"])
    changed = {name for name, value in vars(wanted).items() if getattr(before, name) != value}
    assert changed == {"version", "first_node"}


def test_numbers_of_versions_and_nodes_go_on(command: Commanded) -> None:
    """After a third version, which was done, and a fourth, which was taken back."""
    third = replace(command.settings, version=3, versions_tried=4, first_node=5, standby=1)
    third.save()
    load_pinned(third)
    pin_shape(third, {"format": 1})
    wanted = asked(command)
    assert (wanted.version, wanted.node_names) == (5, ["node-8", "node-9", "node-10"])


def test_the_code_of_the_new_version_is_written_down_with_its_neighbours(
    command: Commanded, here: Path
) -> None:
    """The command has loaded the flow before, to look at it: a second time, a neighbour is no news."""
    (here / "beside_upgraded.py").write_text("least = 1\n")
    code = CHANGED.replace("import understudy as us", "import understudy as us\nimport beside_upgraded")
    command.then(command.lock.release)
    command.upgrade(flow=code)
    wanted = replace(command.settings, version=2)
    assert not has_changed(wanted)
    (here / "beside_upgraded.py").write_text("least = 2\n")
    assert has_changed(wanted)


def test_what_a_command_that_was_killed_has_written_down_is_not_taken_for_the_new_code(
    command: Commanded,
) -> None:
    command.flow.write_text(CHANGED.replace("k > 0", "k > 100"))
    load_pinned(replace(command.settings, version=2))
    asked(command)
    pinned = json.loads((command.run.folder / "versions" / "2" / "flow.json").read_text())
    assert pinned["files"]["flow.py"] == CHANGED


def test_an_upgrade_that_was_done_while_this_command_began_is_not_overwritten(
    command: Commanded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version would be taken for one that was never begun."""
    honest = module.load_with_files

    def slow(path: str) -> tuple[Flow, list[Path]]:
        loaded = honest(path)
        second = replace(command.settings, version=2, versions_tried=2, first_node=3)
        second.save()
        command.flow.write_text(FLOW.replace("return rows", "return rows.where('k > 7')"))
        pin(second, *loaded)
        pin_shape(second, {"format": 1})
        command.flow.write_text(CHANGED)
        return loaded

    monkeypatch.setattr(module, "load_with_files", slow)
    assert asked(command).version == 3
    assert "k > 7" in (command.run.folder / "versions" / "2" / "flow.json").read_text()


def test_a_flow_in_another_file_is_compared_with_the_code_of_the_version_that_runs(
    command: Commanded, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "new").mkdir()
    (here / "new" / "flow.py").write_text(CHANGED)
    second = replace(command.settings, flow_path=str(here / "new" / "flow.py"), version=2, versions_tried=2)
    second.save()
    load_pinned(second)
    pin_shape(second, {"format": 1})
    assert main(["upgrade", "new/flow.py", "run"]) == 0
    assert "Nothing to do" in capsys.readouterr().out
    command.then(command.lock.release)
    assert main(["upgrade", "flow.py", "run"]) == 1
    assert LOOKED in capsys.readouterr().out, "the old file is a change by now"


def test_a_candidate_that_nobody_can_read_is_said_to_be_damaged(
    command: Commanded, refused: Callable[..., str]
) -> None:
    Candidate(replace(command.settings, version=2), SHAPE).save()
    (command.run.folder / "candidate.json").write_text("{")
    assert "candidate.json cannot be read" in refused(code=3)
