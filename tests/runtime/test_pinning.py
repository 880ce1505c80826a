"""The code of a run stays what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.pinning import load_pinned
from understudy.runtime.settings import RunSettings

try:
    print(load_pinned(RunSettings("run", sys.argv[1], sys.argv[2], "")).name)
except EnvironmentFailed as problem:
    print(problem)
"""


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


@pytest.mark.parametrize("name", ["flow.py", "neighbour.py"])
def test_a_file_that_has_changed_is_named_and_refused_until_it_is_put_back(
    name: str, settings: RunSettings, tmp_path: Path
) -> None:
    assert loaded(settings) == "pinned"
    as_it_was = (tmp_path / name).read_text()
    (tmp_path / name).write_text(f"{as_it_was}# changed\n")
    assert loaded(settings).startswith(f"{tmp_path / name} has changed since this run began")
    (tmp_path / name).write_text(as_it_was)
    assert loaded(settings) == "pinned"


def test_many_processes_that_begin_at_once_agree(settings: RunSettings) -> None:
    command = [sys.executable, "-c", LOAD, settings.flow_path, settings.folder]
    begun = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert [process.communicate()[0].strip() for process in begun] == ["pinned"] * 6
    assert sorted(file.name for file in settings.path.iterdir()) == ["flow.json", "run.json"]
