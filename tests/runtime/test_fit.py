"""Going on with a changed flow: what the saved state cannot take is refused before anything changes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from understudy.core.bucket import NOTHING
from understudy.engine.fitting import FORMAT
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.flow import Flow
from understudy.flow.loading import load
from understudy.runtime import fit as module
from understudy.runtime.fit import compared, go_on_with, kept_elsewhere, require_fit
from understudy.runtime.gateway.journal import Journal, journal_file
from understudy.runtime.pinning import (
    FILE,
    FORMER_SHAPES_FILE,
    SHAPE_FILE,
    known_shapes,
    load_pinned,
    pin_shape,
)
from understudy.runtime.process import failures, leave_failure
from understudy.runtime.settings import RunSettings

FLOW = """
import understudy as us

flow = us.Flow("small", bucket="100 ms")
rows = flow.source("rows", us.Push("k bigint, ts timestamp"), time="ts")

@flow.fragment(rows, time="ts")
def same(rows):
    return rows

flow.sink(same, us.JsonLines("{out}"), name="out")
"""
ANOTHER_SINK = 'flow.sink(same, us.JsonLines("{out}-2"), name="second")\n'


@pytest.fixture
def run(tmp_path: Path) -> RunSettings:
    """A run that has begun, with the sink that it had then."""
    (tmp_path / "flow.py").write_text(FLOW.format(out=tmp_path / "out"))
    settings = RunSettings("run", str(tmp_path / "flow.py"), str(tmp_path / "run"), "")
    settings.save()
    load_pinned(settings)
    pin_shape(settings, {"format": 1})
    Journal(journal_file(settings.path, "out")).write(7, None)
    return settings


def changed(run: RunSettings) -> Flow:
    file = Path(run.flow_path)
    file.write_text(file.read_text() + ANOTHER_SINK.format(out=file.parent / "out"))
    return load(run.flow_path)


def answering(monkeypatch: pytest.MonkeyPatch, **answer: list[str]) -> None:
    said: dict[str, Any] = {"refusals": [], "accepted": [], **answer}
    monkeypatch.setattr(module, "_asked", lambda *_: said)


def never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_asked", lambda *_: pytest.fail("nothing has changed"))


def test_a_flow_that_has_not_changed_is_not_looked_at(
    run: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_asked(monkeypatch)
    assert go_on_with(load(run.flow_path), run, run) == []
    assert (run.path / FILE).exists()


def test_what_the_state_cannot_take_is_refused_with_every_reason_and_changes_nothing(
    run: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = changed(run)
    answering(monkeypatch, refusals=["its window is longer", "its key is another"])
    with pytest.raises(UserError, match=r"its window is longer\n- its key is another"):
        go_on_with(flow, run, run)
    assert (run.path / FILE).exists() and (run.path / SHAPE_FILE).exists()
    assert not Journal(journal_file(run.path, "second")).exists


def test_what_it_can_take_is_told_and_the_next_generation_begins_with_it(
    run: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = changed(run)
    answering(monkeypatch, accepted=["a filter was added"])
    assert go_on_with(flow, run, run) == ["a filter was added"]
    assert not (run.path / FILE).exists() and not (run.path / SHAPE_FILE).exists()
    assert Journal(journal_file(run.path, "second")).read() == (NOTHING, None)
    assert Journal(journal_file(run.path, "out")).read() == (7, None), "what was delivered stays"


def test_the_look_takes_a_while_and_is_said_before_it_begins(
    run: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = changed(run)
    answer: dict[str, list[str]] = {"refusals": [], "accepted": []}
    told: list[str] = []
    monkeypatch.setattr(module, "_asked", lambda *_: told.append("asked") or answer)
    go_on_with(flow, run, run, say=told.append)
    assert told == ["looking whether the saved state fits the flow as it is now", "asked"]


def test_a_launcher_that_is_killed_before_the_new_code_has_begun_asks_again(
    run: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved state is still that of the code before, and the file may have changed once more."""
    flow = changed(run)
    answering(monkeypatch)
    go_on_with(flow, run, run)
    answering(monkeypatch, refusals=["its key is another"])
    with pytest.raises(UserError, match="its key is another"):
        go_on_with(flow, run, run)
    answering(monkeypatch, accepted=["a filter was added"])
    assert go_on_with(flow, run, run) == ["a filter was added"]
    assert known_shapes(run)[-1] == {"format": 1}
    load_pinned(run)
    pin_shape(run, {"format": 2})
    never_asked(monkeypatch)
    assert go_on_with(flow, run, run) == []
    assert known_shapes(run)[-1] == {"format": 2}


def test_the_flow_is_compared_with_every_shape_that_a_snapshot_may_be_of(
    run: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation broke off before it had saved anything."""
    asked: list[list[dict[str, Any]]] = []
    answer: dict[str, list[str]] = {"refusals": [], "accepted": []}
    monkeypatch.setattr(module, "_asked", lambda _settings, shapes: asked.append(shapes) or answer)
    go_on_with(changed(run), run, run)
    load_pinned(run)
    pin_shape(run, {"format": 2})
    file = Path(run.flow_path)
    file.write_text(file.read_text() + "# again\n")
    go_on_with(load(run.flow_path), run, run)
    assert asked == [[{"format": 1}], [{"format": 1}, {"format": 2}]]
    assert known_shapes(run) == asked[-1]


@pytest.mark.parametrize(
    "file", [FILE, SHAPE_FILE, FORMER_SHAPES_FILE], ids=["code", "shape", "former shapes"]
)
def test_a_launcher_that_is_killed_while_it_lets_the_code_change_leaves_what_it_needs_to_ask_again(
    run: RunSettings, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    flow = changed(run)
    answering(monkeypatch, accepted=["a filter was added"])
    killed_at = [file]

    def dying(honest: Callable[..., Path | None]) -> Callable[..., Path | None]:
        def die(path: Path, *given: Path, **options: bool) -> Path | None:
            if killed_at and killed_at[0] in (path.name, *(each.name for each in given)):
                raise KeyboardInterrupt
            return honest(path, *given, **options)

        return die

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", dying(Path.unlink))
        patched.setattr(Path, "replace", dying(Path.replace))
        with pytest.raises(KeyboardInterrupt):
            go_on_with(flow, run, run)
    assert known_shapes(run)[-1] == {"format": 1}
    assert go_on_with(flow, run, run) == ["a filter was added"]


# --- several shapes ---------------------------------------------------------------------------------------


def shape(*fragments: str, output: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    """Of a flow whose fragments keep no state; each reads the one before it."""
    reads = dict(zip(fragments, ("rows", *fragments), strict=False))
    same: dict[str, Any] = {"time": "ts", "width_us": 1, "lag_us": 0, "extent_us": 0, "plan": "p"}
    same |= {
        "reads": 1,
        "stepwise": False,
        "operators": [],
        "tables": {},
        "partitions": {"count": 1, "by": []},
    }
    columns = [["ts", "timestamp", True], *([name, kind, True] for name, kind in output)]
    return {
        "format": FORMAT,
        "flow": "small",
        "unit": "fragment",
        "width_us": 1,
        "sources": ["rows"],
        "segments": {name: [name] for name in fragments},
        "fragments": {n: {**same, "inputs": [[reads[n], "ts"]], "output": columns} for n in fragments},
        "sinks": {},
    }


def test_changes_that_are_small_one_by_one_are_refused_together_while_the_first_code_has_snapshots() -> None:
    first, second = shape("a", output=(("c", "bigint"),)), shape("a")
    third = shape("a", output=(("c", "string"),))
    assert compared([first], second)["refusals"] == compared([second], third)["refusals"] == []
    (refusal,) = compared([first, second], third)["refusals"]
    assert "its output column 'c' is string, and was bigint" in refusal
    assert refusal.endswith("It goes when the run has saved its state twice with the code that it had last.)")


def test_what_has_changed_is_told_once_and_since_the_newest() -> None:
    first, second, third = shape("a"), shape("a", output=(("c", "int"),)), shape("a", "b")
    assert compared([first, second], third) == {
        "refusals": [],
        "accepted": [
            "fragment 'a' goes on: its output no longer has column 'c'",
            "fragment 'b' is new and keeps no state: it begins with the first bucket after the saved state",
        ],
    }


def test_what_speaks_against_it_by_every_code_is_said_once() -> None:
    before = shape("a")
    (refusal,) = compared([before, shape("a", "b")], {**before, "width_us": 2})["refusals"]
    assert not refusal.endswith(")")


def test_a_fragment_comes_back_when_nothing_is_kept_from_when_it_was_there() -> None:
    first, second = shape("a", "b"), shape("a")
    assert compared([second], first)["refusals"] == []
    (refusal,) = compared([first, second], first)["refusals"]
    assert refusal.startswith("fragment 'b' was taken out and would come back as a new one")


def test_a_new_sink_does_not_take_the_output_of_another_run_for_its_own(
    run: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = changed(run)
    answering(monkeypatch)
    kind = type(flow.sinks["second"].kind)
    monkeypatch.setattr(kind, "earlier_output", lambda _kind: "out-2")
    with pytest.raises(UserError, match="'second' is new in this run"):
        go_on_with(flow, run, run)
    assert (run.path / FILE).exists()


@pytest.mark.parametrize(
    ("code", "left", "said"),
    [
        (3, "Java does not start.", "cannot be told: Java does not start."),
        (2, "flow.py:3: no such column", "cannot be told: flow.py:3: no such column"),
        (-9, None, r"cannot be told: see .*logs/fit\.log"),
    ],
    ids=["the environment", "the user", "killed"],
)
def test_why_it_cannot_be_told_is_said_once_and_not_when_the_run_ends(
    run: RunSettings, monkeypatch: pytest.MonkeyPatch, code: int, left: str | None, said: str
) -> None:
    def fails(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if left is not None:
            leave_failure(run.path, "fit", left)
        return subprocess.CompletedProcess(command, code, "")

    monkeypatch.setattr(module.subprocess, "run", fails)
    with pytest.raises(UserError if code == UserError.exit_code else EnvironmentFailed, match=said):
        require_fit(run, known_shapes(run))
    assert failures(run.path) == {}


def test_a_fragment_that_changes_what_runs_as_one_is_refused_since_its_state_has_another_name() -> None:
    (reason,) = kept_elsewhere({"volume+large": "volume", "big": "big", "new": None})
    assert "'volume'" in reason
    assert "'volume+large'" in reason
    assert "Undo that change" in reason


def test_segments_that_keep_their_names_and_new_ones_are_kept_nowhere_else() -> None:
    assert kept_elsewhere({"volume": "volume", "new": None}) == []
