"""The code of a run stays what it was.

Every process loads the flow file, also one that is started again an hour later. Had the file changed by
then, its replica would go on from the old code's state with the new code, and give other rows than its
peers. So the first process of a run writes down every file that the flow is made of, and every process
compares. One that finds a file changed or gone loads what was written down: an edit neither harms a run nor
changes it. A fragment's imports at the time of a call are not seen.

Between two generations of a run the code may change, as far as the saved state can take it. What the state
was made by is written down for that, too (`engine.state_shape`), and `let_change` lets the next generation
begin with the code as it is. What was written down before stays as long as snapshots of it may be kept
(`saved_shapes`).

While a run is upgraded, each of two versions of the flow has code of its own, in a folder of its own. The
sources and sinks are the gateway's and belong to both, so what they are is written down in plain words.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.flow.kinds import SourceKind
from understudy.flow.loading import load, load_with_files
from understudy.flow.writers import SinkKind
from understudy.runtime.durable import make_path, write_once, write_whole, written
from understudy.runtime.settings import RunSettings

log = logging.getLogger(__name__)

FILE = "flow.json"
SHAPE_FILE = "shape.json"
FORMER_SHAPES_FILE = "former-shapes.json"
#: Where the code is written to if its own files are not what they were.
CODE = "code"


def load_pinned(settings: RunSettings) -> Flow:
    """The flow of the run, from the code that the run began with."""
    file = settings.version_path / FILE
    if not file.exists():
        flow, files = load_with_files(settings.flow_path)
        if changed := _changed(settings, pin(settings, flow, files)):
            # This process has loaded the new code. The next one will not.
            raise EnvironmentFailed(f"{changed[0]} was changed while this run began. Start it again.")
        return flow
    pinned = _read(file)
    changed = _changed(settings, pinned)
    if not changed:
        return load(settings.flow_path)
    log.warning("%s has changed since this run began, which goes on with its first code", changed[0])
    # What a fragment imports when it is called was not written down.
    sys.path.insert(0, str(Path(settings.flow_path).resolve().parent))
    return load(_unpacked(settings.version_path / CODE, pinned))


def pin(settings: RunSettings, flow: Flow, files: Iterable[Path]) -> dict[str, Any]:
    """Write down the files that a flow was loaded from, if no process has before; returns what is written.

    They are those that `load_with_files` names when a process loads the flow for the first time: a second
    time it finds the neighbours imported, and names none.
    """
    written_down = _written_down(Path(settings.flow_path).resolve(), files)
    return _pinned(settings.version_path / FILE, {**written_down, "ends": ends_of(flow)})


def ends_of(flow: Flow) -> dict[str, dict[str, Any]]:
    """The sources and sinks of a flow in plain words, by name: the parts that its gateway runs."""
    sources = {
        name: {
            **_plain(each.kind),
            "schema": each.schema,
            "time column": each.time,
            "late rows": each.late,
            "lateness": _us(each.lateness_us),
            "idle": _us(each.idle_us),
            "ahead": _us(each.ahead_us),
        }
        for name, each in flow.sources.items()
    }
    sinks = {
        sink.name: {
            **_plain(sink.kind),
            "fragment": sink.input,
            "time column": flow.fragments[sink.input].time,
        }
        for sink in flow.sinks.values()
    }
    return {"source": sources, "sink": sinks, "flow": {flow.name: {"bucket": _us(flow.bucket_us)}}}


def _us(duration_us: int | None) -> str | None:
    return None if duration_us is None else f"{duration_us} µs"


def _plain(kind: SourceKind | SinkKind) -> dict[str, Any]:
    """A kind of source or sink with its parameters. Two that differ in the body of a function look alike."""
    if is_dataclass(kind):
        given = {each.name: _named(getattr(kind, each.name)) for each in fields(kind)}
    else:
        given = {"description": kind.describe()}
    return {"kind": type(kind).__name__, **given}


def _named(value: object) -> object:
    """A value in a form that JSON gives back as it was, and that is the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {
            f.name: _named(getattr(value, f.name)) for f in fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): _named(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_named(each) for each in value]
    if isinstance(value, Set):
        # In which order a set shows its members depends on the process.
        return sorted((_named(each) for each in value), key=repr)
    # What a function's or an object's `repr` shows beside its name is where in memory it is.
    return getattr(value, "__qualname__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def changed_ends(settings: RunSettings, flow: Flow) -> list[str]:
    """Which sources and sinks of this flow are not those of the run, in sentences."""
    before, now = _read(settings.version_path / FILE)["ends"], ends_of(flow)
    found = []
    for kind, ends in now.items():
        for name in sorted({*before[kind], *ends}):
            old, new = before[kind].get(name), ends.get(name)
            if old != new:
                how = "is new" if old is None else "is gone" if new is None else "has changed"
                shown = "" if old is None or new is None else f": {_differences(old, new)}"
                found.append(f"{kind} {name!r} {how}{shown}")
    return found


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name} {_shown(old.get(name))} became {_shown(new.get(name))}" for name in names)


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def has_changed(settings: RunSettings) -> bool:
    """Whether the code is another than what was written down."""
    return is_pinned(settings) and bool(_changed(settings, _read(settings.version_path / FILE)))


def pinned_code(settings: RunSettings) -> dict[str, Any]:
    """What was written down of the code, to be compared by `is_code`. Raises `EnvironmentFailed`."""
    pinned = _read(settings.version_path / FILE)
    return {"flow": pinned["flow"], "files": pinned["files"]}


def is_code(flow_path: str | Path, code: dict[str, Any]) -> bool:
    """Whether a flow file is this code, to the last byte of what it imports."""
    return not _files_changed(Path(flow_path), code)


def pin_shape(settings: RunSettings, shape: dict[str, Any]) -> None:
    """Write down what the state of this run is made by, if no process has before."""
    _pinned(settings.version_path / SHAPE_FILE, shape)


def shape_mark(shape: dict[str, Any]) -> str:
    """What tells a shape, as it was read, from any other one."""
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()


def pinned_shape(settings: RunSettings) -> dict[str, Any] | None:
    """What the state of this run is made by; None if no node of this generation or of one before has come so
    far, since the code was let change.
    """
    file = settings.version_path / SHAPE_FILE
    return _read(file) if file.exists() else None


def known_shapes(settings: RunSettings) -> list[dict[str, Any]]:
    """What the saved state of this run may be made by, the newest last. None if no node ever came so far."""
    file = settings.version_path / FORMER_SHAPES_FILE
    former: list[dict[str, Any]] = _read(file)["shapes"] if file.exists() else []
    pinned = pinned_shape(settings)
    return former if pinned is None else [*(each for each in former if each != pinned), pinned]


def keep_former_shapes(settings: RunSettings, shapes: Sequence[dict[str, Any]]) -> None:
    """The saved state of this run, or what it adopts, may be made by these. Raises `EnvironmentFailed`."""
    file = settings.version_path / FORMER_SHAPES_FILE
    with written(file):
        make_path(file.parent)
        write_whole(file, json.dumps({"shapes": list(shapes)}, indent=2) + "\n")


def is_pinned(settings: RunSettings) -> bool:
    """Whether the code is written down. It is not when it may change and no process has begun with it yet."""
    return (settings.version_path / FILE).exists()


def let_change(settings: RunSettings, shapes: Sequence[dict[str, Any]]) -> None:
    """Let the next generation begin with the code as it is, and write it down anew. These are the shapes that
    the saved state may be made by.

    A launcher that is killed before that has begun must ask again whether the saved state fits.
    """
    keep_former_shapes(settings, shapes)
    (settings.version_path / SHAPE_FILE).unlink(missing_ok=True)
    _drop_code(settings)


def unpin(settings: RunSettings) -> None:
    """Forget the code, and what the state was made by: there is no state, or not any more."""
    _drop_code(settings)
    for file in (SHAPE_FILE, FORMER_SHAPES_FILE):
        (settings.version_path / file).unlink(missing_ok=True)


def _drop_code(settings: RunSettings) -> None:
    (settings.version_path / FILE).unlink(missing_ok=True)
    shutil.rmtree(settings.version_path / CODE, ignore_errors=True)


def _written_down(flow_file: Path, files: Iterable[Path]) -> dict[str, Any]:
    """The contents of the flow's files, by their path from the folder of the flow file."""
    contents = {str(file.relative_to(flow_file.parent)): _contents(file) for file in files}
    return {"flow": flow_file.name, "files": contents}


def _contents(file: Path) -> str | None:
    """Every byte of a file, in a form that JSON can hold; None if it is gone."""
    try:
        return file.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def _changed(settings: RunSettings, pinned: dict[str, Any]) -> list[Path]:
    """The files that are not what was written down."""
    return _files_changed(Path(settings.flow_path), pinned)


def _files_changed(flow_path: Path, pinned: dict[str, Any]) -> list[Path]:
    flow_file = flow_path.resolve()
    if flow_file.name != pinned["flow"]:
        return [flow_file]
    files = {flow_file.parent / name: contents for name, contents in pinned["files"].items()}
    return [file for file, contents in files.items() if _contents(file) != contents]


def _unpacked(folder: Path, pinned: dict[str, Any]) -> Path:
    """The flow file as it was, with its neighbours, in a folder that all processes of the run share."""
    try:
        for name, contents in pinned["files"].items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if _contents(file) != contents:
                own = file.with_name(f"{file.name}.{os.getpid()}")
                own.write_bytes(contents.encode("utf-8", "surrogateescape"))
                own.replace(file)
    except OSError as problem:
        raise _not_kept(folder, problem) from problem
    return folder / str(pinned["flow"])


def _read(file: Path) -> dict[str, Any]:
    """What was written down. Raises `EnvironmentFailed` if it is gone or damaged."""
    try:
        pinned: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as problem:
        raise _not_kept(file, problem) from problem
    return pinned


def _not_kept(what: Path, problem: Exception) -> EnvironmentFailed:
    return EnvironmentFailed(f"{what} cannot be kept: {problem}. Free or repair the disk.")


def _pinned(file: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What the first process wrote down, which may be this one. A loss of power does not take it away."""
    try:
        make_path(file.parent)
        write_once(file, json.dumps(found, indent=2) + "\n")
    except (OSError, ValueError) as problem:
        raise _not_kept(file, problem) from problem
    return _read(file)
