"""The code of a run stays what it was.

Every process loads the flow file, also one that is started again an hour later. Had the file changed by
then, its replica would go on from the old code's state with the new code, and give other rows than its
peers. So the first process of a run writes down a digest of every file that the flow is made of, and every
process compares. What a fragment imports only when it is called is not seen.

Between two generations of a run the code may change, as far as the saved state can take it. What the state
was made by is written down for that, too (`engine.state_shape`), and `unpin` lets the next generation begin
with the code as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from understudy.flow.errors import EnvironmentFailed
from understudy.flow.flow import Flow
from understudy.flow.loading import load_with_files
from understudy.runtime.settings import RunSettings

FILE = "flow.json"
SHAPE_FILE = "shape.json"


def load_pinned(settings: RunSettings) -> Flow:
    """The flow of the run. Raises `EnvironmentFailed` if a file of it is not what it was at first."""
    flow, digests = _loaded(settings)
    pinned = _pinned(settings.path / FILE, digests)
    changed = sorted(file for file, digest in digests.items() if pinned.get(file, digest) != digest)
    if changed:
        raise EnvironmentFailed(
            f"{changed[0]} has changed since this run began, and replicas with different code would give "
            "different rows. Put it back as it was, or stop the run and go on with it."
        )
    return flow


def has_changed(settings: RunSettings) -> bool:
    """Whether the code is another than that of the generations before."""
    _, digests = _loaded(settings)
    return (settings.path / FILE).exists() and _pinned(settings.path / FILE, digests) != digests


def pin_shape(settings: RunSettings, shape: dict[str, Any]) -> None:
    """Write down what the state of this run is made by, if no process has before."""
    _pinned(settings.path / SHAPE_FILE, shape)


def pinned_shape(settings: RunSettings) -> dict[str, Any] | None:
    """What the state of this run was made by; None if no process has come so far."""
    file = settings.path / SHAPE_FILE
    return _pinned(file, {}) if file.exists() else None


def unpin(settings: RunSettings) -> None:
    """Let the next generation begin with the code as it is, and write it down anew."""
    for file in (FILE, SHAPE_FILE):
        (settings.path / file).unlink(missing_ok=True)


def _loaded(settings: RunSettings) -> tuple[Flow, dict[str, str]]:
    flow, files = load_with_files(settings.flow_path)
    return flow, {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _pinned(file: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What the first process wrote down, which may be this one."""
    try:
        if not file.exists():
            _write_once(file, json.dumps(found, indent=2) + "\n")
        pinned: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as problem:
        raise EnvironmentFailed(f"{file} cannot be kept: {problem}. Free or repair the disk.") from problem
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
