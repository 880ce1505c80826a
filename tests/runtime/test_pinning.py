"""The code of a run stays what it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from understudy.runtime.pinning import CODE, has_changed, unpin
from understudy.runtime.settings import RunSettings

FLOW = """
import understudy as us
from neighbour import schema
flow = us.Flow("pinned")
rows = flow.source("rows", us.Push(schema), time="ts")

@flow.fragment(rows, time="ts")
def same(rows):
    return rows

flow.sink(same, us.Console())
"""
LOAD = """
import sys
from understudy.runtime.pinning import load_pinned
from understudy.runtime.settings import RunSettings

flow = load_pinned(RunSettings("run", sys.argv[1], sys.argv[2], ""))
print(flow.name, flow.sources["rows"].arrow_schema.names)
"""
AS_IT_BEGAN = "pinned ['v', 'ts']"


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "neighbour.py").write_text("schema = 'v int, ts timestamp'\n")
    made = RunSettings("run", str(tmp_path / "flow.py"), str(tmp_path / "run"), "")
    made.save()
    return made


def loaded(settings: RunSettings) -> str:
    """What a new process says that loads the flow."""
    command = [sys.executable, "-c", LOAD, settings.flow_path, settings.folder]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    "edit",
    [
        lambda flow, _: flow.write_text(flow.read_text().replace("pinned", "another")),
        lambda flow, _: flow.write_text(flow.read_text() + "def half("),
        lambda flow, _: flow.unlink(),
        lambda _, neighbour: neighbour.write_text("schema = 'w int, ts timestamp'\n"),
        lambda _, neighbour: neighbour.unlink(),
    ],
    ids=["flow", "flow half saved", "flow gone", "neighbour", "neighbour gone"],
)
def test_a_process_that_comes_after_an_edit_has_the_code_that_the_run_began_with(
    edit: Callable[[Path, Path], object], settings: RunSettings, tmp_path: Path
) -> None:
    assert loaded(settings) == AS_IT_BEGAN
    edit(tmp_path / "flow.py", tmp_path / "neighbour.py")
    assert loaded(settings) == AS_IT_BEGAN
    # As often as a process is started.
    assert loaded(settings) == AS_IT_BEGAN


def test_bytes_that_are_no_text_are_kept(settings: RunSettings, tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    odd = b"# -*- coding: latin-1 -*-\n# \xe9\xff\n" + flow.read_bytes()
    flow.write_bytes(odd)
    assert loaded(settings) == AS_IT_BEGAN
    flow.unlink()
    assert loaded(settings) == AS_IT_BEGAN
    assert (settings.path / CODE / "flow.py").read_bytes() == odd


def test_a_flow_in_another_file_counts_as_changed_and_one_that_was_moved_does_not(
    settings: RunSettings, tmp_path: Path
) -> None:
    loaded(settings)
    assert not has_changed(settings)
    another = tmp_path / "another.py"
    another.write_text(FLOW)
    assert has_changed(replace(settings, flow_path=str(another)))
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("flow.py", "neighbour.py"):
        (tmp_path / name).rename(moved / name)
    assert not has_changed(replace(settings, flow_path=str(moved / "flow.py")))


def test_the_next_generation_begins_with_the_code_as_it_is(settings: RunSettings, tmp_path: Path) -> None:
    loaded(settings)
    (tmp_path / "neighbour.py").write_text("schema = 'w int, ts timestamp'\n")
    assert loaded(settings) == AS_IT_BEGAN
    unpin(settings)
    assert loaded(settings) == "pinned ['w', 'ts']"
    assert not (settings.path / CODE).exists()


def test_many_processes_that_begin_at_once_agree(settings: RunSettings) -> None:
    command = [sys.executable, "-c", LOAD, settings.flow_path, settings.folder]
    begun = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert [process.communicate()[0].strip() for process in begun] == [AS_IT_BEGAN] * 6
    assert sorted(file.name for file in settings.path.iterdir()) == ["flow.json", "run.json"]


def test_a_neighbour_that_was_not_written_down_is_found_where_it_is(
    settings: RunSettings, tmp_path: Path
) -> None:
    loaded(settings)
    (tmp_path / "late.py").write_text("word = 'found'\n")
    (tmp_path / "flow.py").write_text("")
    command = [sys.executable, "-c", f"{LOAD}\nimport late; print(late.word)"]
    done = subprocess.run(
        [*command, settings.flow_path, settings.folder], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.splitlines() == [AS_IT_BEGAN, "found"]
