"""`understudy run` on the folder of a run that was upgraded, or whose upgrade was cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from folders_kit import FLOW, contents, refused

from understudy.flow.loading import load
from understudy.runtime import fit
from understudy.runtime.candidate import Candidate, candidate_in
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.pinning import keep_former_shapes, load_pinned, pin_shape
from understudy.runtime.settings import RunSettings
from understudy.runtime.untaken import begin_untaken

LOOKING = "looking whether the saved state fits the flow as it is now"
CHANGED = FLOW.replace("return packets", "return packets.where('n > 0')")


@pytest.fixture
def upgraded(former: RunSettings, here: Path) -> RunSettings:
    """A run that was upgraded to a changed flow, in another file, and then stopped."""
    (here / "new").mkdir()
    (here / "new" / "flow.py").write_text(CHANGED)
    changes = {"flow_path": str(here / "new" / "flow.py"), "version": 2, "versions_tried": 3, "first_node": 3}
    made = RunSettings(**{**vars(former), **changes, "standby": 1})
    made.save()
    for name in ("flow.json", "begun"):
        (made.path / name).unlink()
    load_pinned(made)
    pin_shape(made, {"format": 1})
    return made


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flow files of which it was asked whether they fit the saved state. They do."""
    asked: list[str] = []

    def answer(settings: RunSettings, _shapes: object) -> dict[str, list[str]]:
        asked.append(settings.flow_path)
        return {"refusals": [], "accepted": ["copy: a filter is gone"]}

    monkeypatch.setattr(fit, "_asked", answer)
    return asked


def test_a_run_that_was_upgraded_goes_on_with_its_version_and_its_nodes(
    upgraded: RunSettings,
    started: Callable[..., RunSettings],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    again = started(flow="new/flow.py")
    assert (again.version, again.versions_tried, again.generation) == (2, 3, 2)
    assert again.node_names == ["node-3", "node-4", "node-5"]
    assert again.coordinates == "run~2@2"
    assert looked_at == [], "the file is what the version began with"
    assert LOOKING not in capsys.readouterr().out
    assert (upgraded.version_path / "flow.json").exists()


def test_options_count_from_the_first_node_of_the_version(
    upgraded: RunSettings, started: Callable[..., RunSettings]
) -> None:
    again = started("--nodes", "3", "--standby", "0", "--heap", "900", flow="new/flow.py")
    assert (again.node_names, again.heap_mb) == (["node-3", "node-4", "node-5"], 900)
    assert started("--nodes", "4", flow="new/flow.py").node_names[-1] == "node-7"


def test_the_file_that_is_given_is_compared_with_the_code_of_the_version_that_the_run_has(
    upgraded: RunSettings,
    here: Path,
    started: Callable[..., RunSettings],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file of the version before is a change by now."""
    again = started()
    assert looked_at == [str(here / "flow.py")]
    said = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert said[1:4] == ["goes on from its log: no state was saved yet", LOOKING, "copy: a filter is gone"]
    assert (again.version, again.flow_path) == (2, str(here / "flow.py"))
    assert not (upgraded.version_path / "flow.json").exists(), "its next generation begins with that file"


def test_it_is_compared_with_what_the_snapshots_in_its_store_are_of_and_with_the_newest(
    upgraded: RunSettings, started: Callable[..., RunSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version was upgraded to long ago: nothing that it adopted is kept."""
    asked: list[object] = []

    def answer(_settings: RunSettings, shapes: object) -> dict[str, list[str]]:
        asked.append(shapes)
        return {"refusals": [], "accepted": []}

    monkeypatch.setattr(fit, "_asked", answer)
    keep_former_shapes(upgraded, [{"format": 0}])
    started()
    assert asked == [[{"format": 1}]]


@pytest.fixture
def cut_off(former: RunSettings, here: Path) -> Candidate:
    """A run whose launcher was killed while a version with changed code was on trial."""
    (former.path / "flow.json").unlink()
    load_pinned(former)
    pin_shape(former, {"format": 1})
    RunSettings(**{**vars(former), "versions_tried": 2}).save()
    (here / "flow.py").write_text(CHANGED)
    second = RunSettings(**{**vars(former), "version": 2, "first_node": 3})
    load_pinned(second)
    made = Candidate(second, Dataflow.of(load(second.flow_path), second), live=True)
    begin_untaken(second)
    made.save()
    return made


TAKEN_BACK = "an upgrade was not finished and is taken back: the run goes on from the state of version 1"


def test_a_run_that_was_killed_on_trial_goes_on_with_the_old_file(
    cut_off: Candidate,
    here: Path,
    started: Callable[..., RunSettings],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "flow.py").write_text(FLOW)
    again = started()
    assert (again.version, again.versions_tried, again.node_names) == (1, 2, ["node-1", "node-2"])
    assert looked_at == []
    assert TAKEN_BACK in capsys.readouterr().out
    assert candidate_in(again.path) is None
    assert not cut_off.settings.version_path.exists()
    started()
    assert TAKEN_BACK not in capsys.readouterr().out


UNTAKEN = "flow.py is version 2, whose upgrade did not take over. The run goes on with the code that it had."


def test_a_run_that_was_killed_on_trial_goes_on_with_its_own_code_although_the_file_is_the_new_one(
    cut_off: Candidate,
    here: Path,
    started: Callable[..., RunSettings],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody has seen the end of the trial, and a service manager gives the same command as before."""
    for _ in range(2):
        again = started()
        assert (again.version, looked_at) == (1, [])
        said = capsys.readouterr().out
        assert UNTAKEN in said
        assert load_pinned(again).fragments["copy"].function("as it was") == "as it was"
    assert TAKEN_BACK not in said


def test_any_other_file_is_a_change_as_always(
    cut_off: Candidate, here: Path, started: Callable[..., RunSettings], looked_at: list[str]
) -> None:
    (here / "flow.py").write_text(CHANGED + "# mended\n")
    started()
    assert looked_at == [str(here / "flow.py")]


def test_a_run_that_was_killed_on_trial_goes_on_with_the_new_file_if_it_is_told_to(
    cut_off: Candidate,
    here: Path,
    started: Callable[..., RunSettings],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    again = started("--new-code")
    assert (again.version, again.flow_path) == (1, str(here / "flow.py"))
    assert looked_at == [str(here / "flow.py")]
    assert TAKEN_BACK in capsys.readouterr().out
    assert not (again.path / "flow.json").exists(), "the code that it has now is written down anew"


def test_code_that_a_run_was_told_to_take_is_a_change_like_any_other_later(
    cut_off: Candidate, here: Path, started: Callable[..., RunSettings], looked_at: list[str]
) -> None:
    taken = (here / "flow.py").read_text()
    again = started("--new-code")
    load_pinned(again)
    pin_shape(again, {"format": 1})
    (here / "flow.py").write_text(CHANGED + "# later\n")
    load_pinned(started())
    (here / "flow.py").write_text(taken)
    started()
    assert looked_at == [str(here / "flow.py")] * 3


def test_a_run_that_was_killed_when_the_new_version_was_its_own_goes_on_with_that(
    cut_off: Candidate,
    started: Callable[..., RunSettings],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    RunSettings(**{**vars(cut_off.settings), "versions_tried": 2}).save()
    again = started()
    assert (again.version, again.node_names) == (2, ["node-3", "node-4"])
    assert looked_at == []
    assert "an upgrade was done: the run goes on from the state of version 2" in capsys.readouterr().out
    assert candidate_in(again.path) is None
    assert not (again.path / "flow.json").exists(), "that of the version before"


def test_a_refusal_leaves_an_upgrade_that_was_cut_off_as_it_is(
    cut_off: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit = {"refusals": ["its key is another"], "accepted": []}
    monkeypatch.setattr(fit, "_asked", lambda *_: unfit)
    before = contents(cut_off.settings.path)
    assert refused("--new-code") == 2
    assert contents(cut_off.settings.path) == before
