"""The code of a run stays what it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import understudy as us
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.loading import load_with_files
from understudy.runtime.pinning import (
    CODE,
    changed_ends,
    has_changed,
    load_pinned,
    pin,
    pin_shape,
    pinned_shape,
    unpin,
)
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


def test_what_is_written_down_is_whole_or_not_there(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("understudy.runtime.durable.os.fsync", full)
    with pytest.raises(EnvironmentFailed, match=r"flow\.json cannot be kept: No space .* repair the disk"):
        load_pinned(settings)
    assert sorted(file.name for file in settings.path.iterdir()) == ["run.json"]


# --- versions -----------------------------------------------------------------------------------------------


def second(settings: RunSettings) -> RunSettings:
    return replace(settings, version=2)


def begun(settings: RunSettings) -> None:
    """A version begins with the code as it is."""
    pin(settings, *load_with_files(settings.flow_path))


def test_each_version_has_its_code_in_a_folder_of_its_own(settings: RunSettings) -> None:
    paths = [replace(settings, version=version).version_path for version in (1, 2, 13)]
    assert paths == [settings.path, settings.path / "versions" / "2", settings.path / "versions" / "13"]


def test_versions_keep_their_code_apart(
    settings: RunSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    loaded(settings)
    (tmp_path / "flow.py").write_text(FLOW.replace("same", "renamed"))
    assert has_changed(settings)
    assert not has_changed(second(settings)), "nothing is written down of it yet"
    begun(second(settings))
    assert not has_changed(second(settings))
    pin_shape(second(settings), {"made by": "the second"})
    assert pinned_shape(settings) is None
    assert loaded(settings) == AS_IT_BEGAN
    unpin(second(settings))
    assert pinned_shape(second(settings)) is None
    assert loaded(settings) == AS_IT_BEGAN


def test_the_neighbours_of_a_version_are_written_down_with_it(settings: RunSettings, tmp_path: Path) -> None:
    """Also by a process that has loaded the flow to look at it."""
    begun(second(settings))
    (tmp_path / "neighbour.py").write_text("schema = 'w int, ts timestamp'\n")
    assert has_changed(second(settings))


@pytest.fixture(autouse=True)
def without_neighbours() -> Iterator[None]:
    """What a flow file imports stays imported, and is no news to the next test that loads one."""
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        if "neighbour" in name:
            del sys.modules[name]


# --- sources and sinks --------------------------------------------------------------------------------------


def numbers(seed: int, first: int, count: int) -> None: ...


def letters(seed: int, first: int, count: int) -> None: ...


@dataclass(frozen=True)
class Table(us.SinkKind):
    """A kind of a user's own, which does not say where its rows go."""

    name: str
    keys: object = ("k",)
    function: Callable[..., object] = numbers

    def open(self, sink: str, folder: Path) -> us.Writer:
        raise AssertionError("nothing is opened")


class Plain(us.SinkKind):
    """One that is no dataclass."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, sink: str, folder: Path) -> us.Writer:
        raise AssertionError("nothing is opened")

    def describe(self) -> str:
        return f"plain text in {self.path}"


def flow_of(
    source: us.SourceKind | None = None,
    sinks: Sequence[us.SinkKind] = (Table("t"),),
    *,
    name: str = "rows",
    bucket: str = "100 ms",
    time: str = "ts",
    **options: Any,
) -> us.Flow:
    flow = us.Flow("small", bucket=bucket)
    rows = flow.source(name, source or us.Push("k bigint, ts timestamp, at timestamp"), time="ts", **options)
    flow.fragment(rows, time=time)(same)
    for number, kind in enumerate(sinks, 1):
        flow.sink(flow.fragments["same"], kind, name=f"out-{number}")
    return flow


def same(rows: Any) -> Any:
    return rows


def changes(settings: RunSettings, before: us.Flow, after: us.Flow) -> list[str]:
    """What is said of a flow in the place of another one."""
    unpin(settings)
    pin(settings, before, [Path(settings.flow_path)])
    return changed_ends(settings, after)


PUSHED = "k bigint, ts timestamp, at timestamp"


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (flow_of(), []),
        (flow_of(us.Push(f"{PUSHED}, v int")), [f"schema {PUSHED} became {PUSHED}, v int"]),
        (flow_of(lateness="2 s"), ["lateness 0 µs became 2000000 µs"]),
        (flow_of(idle="1 s"), ["idle none became 1000000 µs"]),
        (flow_of(late="drop"), ["late rows restamp became drop"]),
    ],
    ids=["nothing", "schema", "lateness", "idle", "late"],
)
def test_a_source_that_has_changed_is_named_with_what_has(
    settings: RunSettings, after: us.Flow, said: list[str]
) -> None:
    found = changes(settings, flow_of(), after)
    assert found == [f"source 'rows' has changed: {each}" for each in said]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (Table("t"), Table("t"), []),
        (Table("t"), Table("u"), ["name t became u"]),
        (Table("t"), Table("t", ("k", "d")), ["keys ['k'] became ['k', 'd']"]),
        # In which order a set shows its members depends on how it was made.
        (Table("t", frozenset([0, 8])), Table("t", frozenset([8, 0])), []),
        (Table("t", ({"a": {0, 8}},)), Table("t", ({"a": {8, 0}},)), []),
        (Table("t", frozenset([0, 8])), Table("t", frozenset([8])), ["keys [0, 8] became [8]"]),
        (Table("t", function=numbers), Table("t", function=letters), ["function numbers became letters"]),
        (us.JsonLines("a"), us.JsonLines("b"), ["path a became b"]),
        (us.JsonLines("a"), us.Parquet("a"), ["kind JsonLines became Parquet"]),
        (Plain("a"), Plain("a"), []),
        (Plain("a"), Plain("b"), ["description plain text in a became plain text in b"]),
    ],
)
def test_a_sink_that_has_changed_is_named_with_what_has(
    settings: RunSettings, before: us.SinkKind, after: us.SinkKind, said: list[str]
) -> None:
    found = changes(settings, flow_of(sinks=[before]), flow_of(sinks=[after]))
    assert found == [f"sink 'out-1' has changed: {each}" for each in said]


def test_all_that_has_changed_is_named(settings: RunSettings) -> None:
    before = flow_of(sinks=[Table("t"), Table("u")])
    after = flow_of(sinks=[Table("t")], name="clicks", bucket="1 s", time="at")
    assert changes(settings, before, after) == [
        "source 'clicks' is new",
        "source 'rows' is gone",
        "sink 'out-1' has changed: time column ts became at",
        "sink 'out-2' is gone",
        "flow 'small' has changed: bucket 100000 µs became 1000000 µs",
    ]
    assert "sink 'out-2' is new" in changes(settings, after, before)


def test_a_changed_fragment_is_no_changed_end(settings: RunSettings) -> None:
    after = flow_of()
    another = us.Flow("small", bucket="100 ms")
    rows = another.source("rows", us.Push(PUSHED), time="ts")
    another.fragment(rows, time="ts", partition_by=["k"])(same)
    another.sink(another.fragments["same"], Table("t"), name="out-1")
    assert changes(settings, after, another) == []


def test_to_ask_for_changes_writes_nothing_down(settings: RunSettings) -> None:
    """A file without any code would keep every process of the run from beginning."""
    with pytest.raises(EnvironmentFailed, match=r"flow\.json cannot be kept"):
        changed_ends(settings, flow_of())
    assert not (settings.path / "flow.json").exists()
