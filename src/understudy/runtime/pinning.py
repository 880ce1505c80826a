"""The code of a run stays what it was.

Every process loads the flow file, also one that is started again an hour later. Had the file changed by
then, its replica would go on from the old code's state with the new code, and give other rows than its
peers. So the first process of a run writes down every file that the flow is made of, and every process
compares. One that finds a file changed or gone loads what was written down: an edit neither harms a run nor
changes it. A fragment's imports at the time of a call are not seen.

Between two generations of a run the code may change, as far as the saved state can take it. What the state
was made by is written down for that, too (`engine.state_shape`), and `unpin` lets the next generation begin
with the code as it is.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.flow.loading import load, load_with_files
from understudy.runtime.settings import RunSettings

log = logging.getLogger(__name__)

FILE = "flow.json"
SHAPE_FILE = "shape.json"
#: Where the code is written to if its own files are not what they were.
CODE = "code"


def load_pinned(settings: RunSettings) -> Flow:
    """The flow of the run, from the code that the run began with."""
    file = settings.version_path / FILE
    if not file.exists():
        flow, files = load_with_files(settings.flow_path)
        written_down = _written_down(Path(settings.flow_path).resolve(), files)
        pinned = _pinned(file, {**written_down, "ends": ends_of(flow)})
        if changed := _changed(settings, pinned):
            # This process has loaded the new code. The next one will not.
            raise EnvironmentFailed(f"{changed[0]} was changed while this run began. Start it again.")
        return flow
    pinned = _pinned(file, {})
    changed = _changed(settings, pinned)
    if not changed:
        return load(settings.flow_path)
    log.warning("%s has changed since this run began, which goes on with its first code", changed[0])
    # What a fragment imports when it is called was not written down.
    sys.path.insert(0, str(Path(settings.flow_path).resolve().parent))
    return load(_unpacked(settings.version_path / CODE, pinned))


def pin(settings: RunSettings) -> Flow:
    """The flow as its files are now, which are written down: the code of a version that begins."""
    settings.version_path.mkdir(parents=True, exist_ok=True)
    return load_pinned(settings)


def ends_of(flow: Flow) -> dict[str, dict[str, list[Any]]]:
    """The sources and sinks of a flow, in plain words: the parts that its gateway runs."""
    sources = {
        name: [each.kind.describe(), each.schema, each.time, each.late, each.lateness_us, each.idle_us]
        for name, each in flow.sources.items()
    }
    sinks = {
        sink.name: [sink.kind.describe(), sink.input, flow.fragments[sink.input].time]
        for sink in flow.sinks.values()
    }
    return {"source": sources, "sink": sinks, "bucket": {"width": [flow.bucket_us]}}


def changed_ends(settings: RunSettings, flow: Flow) -> list[str]:
    """Which sources and sinks of this flow are not those of the run, in sentences."""
    before, now = _pinned(settings.version_path / FILE, {})["ends"], ends_of(flow)
    found = []
    for kind, ends in now.items():
        for name in sorted({*before[kind], *ends}):
            old, new = before[kind].get(name), ends.get(name)
            if old != new:
                how = "is new" if old is None else "is gone" if new is None else "has changed"
                shown = "" if old is None or new is None else f": {_differences(old, new)}"
                found.append(f"{kind} {name!r} {how}{shown}")
    return found


def _differences(old: list[Any], new: list[Any]) -> str:
    return ", ".join(f"{a} became {b}" for a, b in zip(old, new, strict=True) if a != b)


def has_changed(settings: RunSettings) -> bool:
    """Whether the code is another than that of the generations before."""
    file = settings.version_path / FILE
    return file.exists() and bool(_changed(settings, _pinned(file, {})))


def pin_shape(settings: RunSettings, shape: dict[str, Any]) -> None:
    """Write down what the state of this run is made by, if no process has before."""
    _pinned(settings.version_path / SHAPE_FILE, shape)


def pinned_shape(settings: RunSettings) -> dict[str, Any] | None:
    """What the state of this run was made by; None if no process has come so far."""
    file = settings.version_path / SHAPE_FILE
    return _pinned(file, {}) if file.exists() else None


def unpin(settings: RunSettings) -> None:
    """Let the next generation begin with the code as it is, and write it down anew."""
    for file in (FILE, SHAPE_FILE):
        (settings.version_path / file).unlink(missing_ok=True)
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
    flow_file = Path(settings.flow_path).resolve()
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


def _not_kept(what: Path, problem: Exception) -> EnvironmentFailed:
    return EnvironmentFailed(f"{what} cannot be kept: {problem}. Free or repair the disk.")


def _pinned(file: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What the first process wrote down, which may be this one."""
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            _write_once(file, json.dumps(found, indent=2) + "\n")
        pinned: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as problem:
        raise _not_kept(file, problem) from problem
    return pinned


def _write_once(file: Path, text: str) -> None:
    """Whole or not at all, and only once, whichever process comes first."""
    own = file.with_name(f"{file.name}.{os.getpid()}")
    own.write_text(text)
    try:
        os.link(own, file)
    except FileExistsError:
        pass
    except OSError:
        # A file system without links. Processes that begin at the same time write the same.
        own.replace(file)
    own.unlink(missing_ok=True)
