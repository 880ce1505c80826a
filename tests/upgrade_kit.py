"""An upgrade without processes: a fleet that only notes down what it is told, and statuses as plain dicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from understudy.core.shape.topology import Topology
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.candidate import candidate_in
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.saving.layout import snapshots_folder
from understudy.runtime.settings import RunSettings
from understudy.runtime.upgrade_files import FOLDER, Progress, Request, cancel, progress_in
from understudy.runtime.upgrading import BY_REQUEST, LOOKS, STOPPED, Upgrading

SHAPE = Dataflow(Topology({"counts": ("rows",)}, {"counts": 1}, {"sink:out": "counts"}), {"counts": ("k",)})
BUCKET_US = 100_000
TRIAL_S = 10.0
PHASES = ("starting", "catching up", "turning", "on trial")
AFTERWARDS = ("finishing", "taking back")

Status = dict[str, Any]


def facts(**changes: Any) -> Status:
    """What a gateway says of a candidate that works and takes no sink yet; less if that is not open."""
    usual = {
        "version": 2,
        "members": ["node-3.1", "node-4.1"],
        "failure": "",
        "trouble": "",
        "live": False,
        "takes": False,
        "open": True,
    }
    if changes.get("open", True):
        usual |= {
            "seats": {},
            "whole": True,
            "down": [],
            "crowded": [],
            "behind": {"out": 0},
            "arrived": {"out": 40},
            "arrived_beside": {"out": 40},
        }
    return usual | changes


def status(
    candidate: Status | None = None, *, version: int = 1, waiting: Sequence[str] = (), gateway: int = 1
) -> Status:
    """What the gateway with this process id says."""
    return {
        "version": version,
        "waiting_for_room": list(waiting),
        "candidate": candidate,
        "gateway": {"pid": gateway},
    }


ALONE = status()
NEAR = status(facts())
LIVE = status(facts(live=True, takes=True))
DONE = status(version=2)
#: What the gateway says while all is well, by phase.
USUAL: dict[str, Status] = {
    "starting": ALONE,
    "catching up": NEAR,
    "turning": NEAR,
    "on trial": LIVE,
    "finishing": LIVE,
    "taking back": NEAR,
}
AS_BEFORE = "Nothing is lost: the run has version 1, as before."


class Fleet:
    """What an upgrade does to the processes of a run goes to `did`. A test says what becomes of them."""

    def __init__(self, settings: RunSettings, did: list[str]) -> None:
        self.settings = settings
        self.up: set[str] = set()
        self.gone: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.cannot_start: dict[str, str] = {}
        self._did = did
        self._then: Callable[[], None] = lambda: None

    def start_node(self, name: str, version: int) -> None:
        if name in self.cannot_start:
            raise EnvironmentFailed(self.cannot_start[name])
        self._did.append(f"start {name} with version {version}")

    def came_up(self, name: str) -> bool:
        return name in self.up

    def why_gone(self, name: str) -> str | None:
        return self.gone.get(name)

    def why_failed(self, name: str) -> str | None:
        return self.failed.get(name)

    def end_nodes(self, names: Sequence[str], then: Callable[[], None]) -> None:
        self._did.append(f"end {' and '.join(names) or 'nothing'}")
        self._then = then

    def nodes_ended(self) -> None:
        self._then()

    def go_on_as(self, settings: RunSettings) -> None:
        try:
            settings.save()
        except OSError as problem:
            raise EnvironmentFailed(f"run.json cannot be written: {problem}") from problem
        self.settings = settings


def pin_new_code(settings: RunSettings) -> None:
    """As `understudy upgrade` has looked at it."""
    file = settings.version_path / "flow.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"flow": "new.py", "files": {"new.py": f"version {settings.version}"}}))


class Upgraded:
    """A run that is upgraded. `did` is all that was written, removed, started and ended, in order."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, flow_path: str = "/flows/old.py", **more: Any
    ) -> None:
        self.folder = folder
        self.did: list[str] = []
        #: Files that the disk does not take, by name. With True they are there all the same.
        self.full: dict[str, bool] = {}
        self.now_s = 100.0
        self.trial_s = TRIAL_S
        settings = RunSettings("run", flow_path, str(folder), "zk:1", flow="small", **more)
        settings.save()
        self.fleet = Fleet(settings, self.did)
        self.upgrading = Upgrading(self.fleet, clock=lambda: self.now_s)
        self._record(monkeypatch)

    def _record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        honest_replace, honest_unlink = Path.replace, Path.unlink

        def replace_file(source: Path, target: Path) -> Path:
            full = self.full.get(target.name)
            if full is not False:
                honest_replace(source, target)
                if target.name in ("run.json", "candidate.json"):
                    self.did.append(f"write {target.name}: {_told(target)}")
            if full is not None:
                raise OSError("No space left on device")
            return target

        def unlink(file: Path, missing_ok: bool = False) -> None:
            if self.full.get(f"without {file.name}") is not None:
                raise OSError("Read-only file system")
            was_there = file.exists()
            honest_unlink(file, missing_ok=missing_ok)
            if was_there and file.name in ("request.json", "candidate.json"):
                self.did.append(f"remove {file.name}")

        monkeypatch.setattr(Path, "replace", replace_file)
        monkeypatch.setattr(Path, "unlink", unlink)

    def request(self, version: int = 2, **changes: Any) -> Request:
        settings = replace(self.fleet.settings, flow_path="/flows/new.py", version=version, first_node=3)
        return Request(replace(settings, **changes), SHAPE, self.trial_s, BUCKET_US)

    def ask(self, version: int = 2, **changes: Any) -> None:
        request = self.request(version, **changes)
        pin_new_code(request.settings)
        request.leave()

    def look(self, seen: Status | None, *, after_s: float = 0.0) -> list[str]:
        """What one look does, and then what it says."""
        self.now_s += after_s
        del self.did[:]
        self.upgrading.look(seen)
        return [*self.did, *(f"say: {sentence}" for sentence in self.upgrading.news())]

    def reach(self, phase: str, version: int = 2) -> None:
        """Go on until it is in this phase; from the request if need be."""
        about = facts(version=version)
        live = status({**about, "live": True, "takes": True})
        self.ask(version)
        self.look(ALONE)
        if phase == "starting":
            return
        names = self.request(version).settings.node_names
        for name in names:
            self.look(ALONE)
            self.fleet.up.add(name)
        self.look(ALONE)
        if phase == "catching up":
            return
        if phase == "taking back":
            cancel(self.folder)
            self.look(ALONE)
            return
        for _ in range(LOOKS):
            self.look(status(about))
        if phase == "turning":
            return
        self.look(live)
        if phase == "on trial":
            return
        self.look(live)
        self.look(live, after_s=TRIAL_S)
        assert phase == "finishing"

    def is_taken_back(self, why: str) -> None:
        """From the look at which it fails to its end: the gateway lets go first, then the nodes end."""
        running = sorted(self.upgrading.nodes)
        assert self.look(ALONE) == [f"end {' and '.join(running) or 'nothing'}"]
        assert self.look(ALONE) == [], "they are still ending"
        self.fleet.nodes_ended()
        again = "" if why in (STOPPED, BY_REQUEST) else " Once that is mended, upgrade again."
        assert self.look(ALONE) == [f"say: taken back: {why.rstrip('.')}. {AS_BEFORE}{again}"]
        assert self.progress.outcome == "taken back"
        assert self.version_on_disk == (1, 2)
        assert candidate_in(self.folder) is None

    @property
    def progress(self) -> Progress:
        found = progress_in(self.folder)
        assert found is not None
        return found

    @property
    def version_on_disk(self) -> tuple[int, int]:
        """The version that the run goes on with, and the last one that was tried."""
        settings = RunSettings.load(self.folder)
        return settings.version, settings.versions_tried


def _told(file: Path) -> str:
    values = json.loads(file.read_text())
    if file.name == "run.json":
        return f"version {values['version']}, {values['versions_tried']} tried"
    return f"version {values['settings']['version']}{', live' if values['live'] else ''}"


# --- what versions leave on disk --------------------------------------------------------------------------


def live_on(run: Upgraded, version: int) -> None:
    """What the processes of a version leave on disk."""
    settings = run.fleet.settings
    for name in run.request(version).settings.node_names if version > 1 else settings.node_names:
        for file in (f"ready/{name}", f"pulse/{name}", f"failed/{name}.txt", f"state/{name}.1/rocks"):
            put(run.folder / file)
        for file in (f"logs/{name}.log", f"logs/{name}.out.log", f"logs/{name}.log.1"):
            put(run.folder / file)
    code = run.folder if version == 1 else run.folder / "versions" / str(version)
    for mark in ("flow.json", "shape.json", "seated", "code/flow.py", *(["adopted"] if version > 1 else [])):
        put(code / mark)
    put(
        run.folder
        / "saved"
        / "run"
        / "counts@0"
        / snapshots_folder(version)
        / f"{version:020d}_000001_ab.json"
    )
    (run.folder / "saved" / "run" / "counts@0" / "objects").mkdir(exist_ok=True)


def put(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def left(run: Upgraded) -> set[str]:
    """All files of the run but what `Upgrading` itself writes, and what is between it and the command."""
    files = {str(file.relative_to(run.folder)) for file in run.folder.rglob("*") if file.is_file()}
    return {file for file in files if not file.startswith((f"{FOLDER}/", "run."))}
