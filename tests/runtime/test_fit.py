"""Going on with a changed flow: what the saved state cannot take is refused before anything changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from understudy.core.bucket import NOTHING
from understudy.flow.errors import UserError
from understudy.flow.flow import Flow
from understudy.flow.loading import load
from understudy.runtime import fit as module
from understudy.runtime.fit import go_on_with
from understudy.runtime.gateway.journal import Journal, journal_file
from understudy.runtime.pinning import FILE, SHAPE_FILE, load_pinned, pin_shape
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
    monkeypatch.setattr(module, "_asked", lambda _settings: said)


def never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_asked", lambda _settings: pytest.fail("nothing has changed"))


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
