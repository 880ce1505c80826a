"""Snapshots on disk: a directory of immutable files and a manifest that names every one of them.

While a query stands still its checkpoint directory is complete, and no file in it is ever changed in place:
Spark writes new ones and deletes old ones. So a snapshot is a set of hard links, made without stopping the
query. Only what the last micro-batch needs is linked: its two log entries, and for each part of the state
the newest full copy with the changes that follow it. Background cleaning may delete a file between choosing
and linking; then the choice is made again.

The manifest holds size and digest of every file, and has a digest itself. Files are immutable, so the digest
of one that an earlier snapshot also held is remembered, and a snapshot costs what is new in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.engine.interface import Snapshot
from understudy.flow.errors import EnvironmentFailed

MANIFEST = "manifest.json"
_LAYOUT = 3
_ATTEMPTS_MAX = 5
_STATE_FILE = re.compile(r"(\d+)\.(delta|snapshot)")


class Digests:
    """Digests of immutable files, remembered by what identifies a file on its disk."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], str] = {}

    def of(self, path: Path) -> tuple[int, str]:
        """Size and digest of a file."""
        facts = path.stat()
        key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if key not in self._known:
            self._known[key] = _digest_file(path)
        return facts.st_size, self._known[key]

    def keep_only(self, directory: Path) -> None:
        """Forget files that the latest snapshot no longer holds."""
        stats = [path.stat() for path in directory.rglob("*") if path.is_file()]
        held = {(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in stats}
        self._known = {key: value for key, value in self._known.items() if key in held}


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def link_checkpoint(checkpoint: Path, into: Path) -> None:
    """Hard-link what a query needs to go on after its last committed micro-batch."""
    for attempt in range(_ATTEMPTS_MAX):
        try:
            for relative in _needed(checkpoint):
                target = into / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                link(checkpoint / relative, target)
        except FileNotFoundError:
            shutil.rmtree(into, ignore_errors=True)
            if attempt == _ATTEMPTS_MAX - 1:
                raise
        else:
            return


def link(source: Path, target: Path) -> None:
    """Hard-link, or copy where the file system has no links or the target is on another one."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)


def _needed(checkpoint: Path) -> list[Path]:
    committed = _newest_entry(checkpoint / "commits")
    needed = [Path("metadata")]
    # The entry before the last one holds the watermark below which rows were late.
    for log in ("offsets", "commits"):
        needed += [
            Path(log, str(n)) for n in (committed - 1, committed) if (checkpoint / log / str(n)).exists()
        ]
    state = checkpoint / "state"
    if state.is_dir():
        for folder, _, names in os.walk(state):
            here = Path(folder).relative_to(checkpoint)
            needed += [here / name for name in _needed_state(names, committed + 1)]
    return needed


def _newest_entry(log: Path) -> int:
    entries = [int(path.name) for path in log.iterdir() if path.name.isdigit()] if log.is_dir() else []
    if not entries:
        raise EnvironmentFailed(f"{log.parent} holds no committed micro-batch")
    return max(entries)


def _needed_state(names: list[str], version: int) -> list[str]:
    """Of one folder's files: the newest full copy up to `version`, the changes after it, and all others."""
    needed = []
    versions: dict[str, list[int]] = {"delta": [], "snapshot": []}
    for name in names:
        match = _STATE_FILE.fullmatch(name)
        if match:
            versions[match[2]].append(int(match[1]))
        elif not name.startswith(".") and not name.endswith(".tmp"):
            needed.append(name)
    full = max((v for v in versions["snapshot"] if v <= version), default=0)
    if full:
        needed.append(f"{full}.snapshot")
    needed += [f"{v}.delta" for v in versions["delta"] if full < v <= version]
    return needed


def revive_checkpoint(saved: Path, checkpoint: Path) -> None:
    """Make a working checkpoint out of a saved one. The query gets an id of its own.

    Spark refuses to run two queries of one id in one session, and two replicas may start from one snapshot.
    """
    shutil.copytree(saved, checkpoint, copy_function=lambda source, target: link(Path(source), Path(target)))
    metadata = checkpoint / "metadata"
    metadata.unlink()
    metadata.write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")


def write_rows(path: Path, rows: pa.Table) -> None:
    """Write rows that are part of a snapshot to a file of their own."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as out:
        out.write_table(rows)


def read_rows(path: Path) -> pa.Table:
    with pa.OSFile(str(path), "rb") as file:
        return pa.ipc.open_file(file).read_all()


def seal_snapshot(directory: Path, facts: Mapping[str, Any], digests: Digests) -> Snapshot:
    """Write the manifest of a directory that holds all of a snapshot's files."""
    files = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        size_bytes, digest = digests.of(path)
        files[str(path.relative_to(directory))] = {"size_bytes": size_bytes, "digest": digest}
    manifest: dict[str, Any] = {"layout": _LAYOUT, **facts, "files": files}
    manifest["digest"] = _digest_of(manifest)
    temporary = directory / f".{MANIFEST}"
    temporary.write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
    temporary.rename(directory / MANIFEST)
    return _snapshot(directory, manifest)


def _digest_of(manifest: Mapping[str, Any]) -> str:
    """Of all that a manifest says, which names the digest of every file."""
    said = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16).hexdigest()


def _snapshot(directory: Path, manifest: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        directory=directory,
        digest=manifest["digest"],
        through=manifest["through"],
        output_through=manifest["output_through"],
        size_bytes=sum(file["size_bytes"] for file in manifest["files"].values()),
    )


def open_snapshot(directory: Path) -> Snapshot:
    """The snapshot in a directory, as its manifest describes it. Its files are not read."""
    return _snapshot(directory, read_manifest(directory))


def read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EnvironmentFailed(f"{directory} is not a snapshot: it has no {MANIFEST}") from None
    except ValueError:
        raise EnvironmentFailed(f"{path} is damaged. Take another snapshot") from None
    if manifest.get("layout") != _LAYOUT:
        raise EnvironmentFailed(
            f"{directory} was written in layout {manifest.get('layout')}; this is {_LAYOUT}"
        )
    return manifest


def verify_snapshot(snapshot: Snapshot, known: Digests | None = None) -> dict[str, Any]:
    """The manifest, once every file was found to be what the manifest and the snapshot's digest say.

    Files that are `known` and were not changed since are not read again.
    """
    manifest = read_manifest(snapshot.directory)
    digests = known or Digests()
    for name, file in manifest["files"].items():
        path = snapshot.directory / name
        if not path.is_file():
            raise EnvironmentFailed(
                f"snapshot {snapshot.directory}: {name} is missing. Restore from another one"
            )
        if digests.of(path) != (file["size_bytes"], file["digest"]):
            raise EnvironmentFailed(
                f"snapshot {snapshot.directory}: {name} is not what was written. Restore from another one"
            )
    if not snapshot.digest == manifest["digest"] == _digest_of(manifest):
        raise EnvironmentFailed(
            f"snapshot {snapshot.directory}: {MANIFEST} does not have the digest {snapshot.digest}"
        )
    return manifest
