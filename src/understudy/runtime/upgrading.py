"""An upgrade, step by step, as the process that started a run does it (docs/upgrades.md has the whole).

    asked           `understudy upgrade` has looked whether the saved state fits, and left a request
    starting        nodes with the new code start beside the others, one after the other
    catching up     they have the state and take what came since; the sinks do not take their output yet
    turning         the sinks are told to
    on trial        they do. The old version goes on, and takes over again at once if the new one fails.
    finishing       the run goes on with the new version, whatever happens; the old one ends
    taking back     the new version ends, the old one goes on

Until `finishing` any failure of the new version takes it back: a process of it that ends, a partition of it
that has no copy, output that falls behind the old version's, or that does not come at all.

Each step is one look at the run and at most one change: the files of `runtime.candidate` say what is wanted,
the gateway brings it about, and its status says how far it is.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from understudy.flow.errors import EnvironmentFailed, FlowError
from understudy.runtime.candidate import Candidate, remove_candidate
from understudy.runtime.durable import write_whole
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.pinning import unpin
from understudy.runtime.saving.store import SnapshotStore
from understudy.runtime.settings import RunSettings

log = logging.getLogger(__name__)

FOLDER = "upgrade"
REQUEST, PROGRESS, CANCELLED = "request.json", "progress.json", "cancelled"
#: How far the new version's output may be behind when the sinks turn to it, and how far behind the old one's
#: on trial.
BEHIND_S_MAX = 1.0
SLOWER_S_MAX = 10.0
#: So many looks in a row must find it ready.
LOOKS = 2
#: From the start of its nodes until it is ready.
READY_S_MAX = 900.0
#: How long the gateway may take to let go of a version before its nodes are ended all the same.
LETTING_GO_S_MAX = 30.0

DONE, TAKEN_BACK = "done", "taken back"


@dataclass(frozen=True)
class Request:
    """A version that is to take over, and for how long it is on trial."""

    settings: RunSettings
    dataflow: Dataflow
    trial_s: float
    bucket_us: int

    def leave(self) -> None:
        """Leave it in the run's folder, for the process that started the run."""
        folder = self.settings.path / FOLDER
        folder.mkdir(exist_ok=True)
        for old in (PROGRESS, CANCELLED):
            (folder / old).unlink(missing_ok=True)
        values = {
            "settings": self.settings.to_json(),
            "dataflow": self.dataflow.to_json(),
            "trial_s": self.trial_s,
            "bucket_us": self.bucket_us,
        }
        write_whole(folder / REQUEST, json.dumps(values, indent=2) + "\n")


@dataclass(frozen=True)
class Progress:
    """What has happened so far, in sentences, and how it ended: `DONE`, `TAKEN_BACK`, or not yet."""

    version: int
    sentences: tuple[str, ...]
    outcome: str = ""


def progress_in(folder: Path) -> Progress | None:
    """How an upgrade of the run in that folder goes; None if it was not taken up yet."""
    try:
        values = json.loads((folder / FOLDER / PROGRESS).read_text())
    except FileNotFoundError:
        return None
    return Progress(values["version"], tuple(values["sentences"]), values["outcome"])


def cancel(folder: Path) -> None:
    """Have an upgrade taken back, if it is not finished by then."""
    (folder / FOLDER / CANCELLED).touch()


class Fleet(Protocol):
    """The processes of a run, as an upgrade needs them."""

    settings: RunSettings

    def start_node(self, name: str, version: int) -> None: ...

    def came_up(self, name: str) -> bool: ...

    def why_gone(self, name: str) -> str | None:
        """Why a process is gone; None while it runs."""
        ...

    def end_nodes(self, names: Sequence[str]) -> None:
        """End these in good order. Takes a few seconds."""
        ...

    def go_on_as(self, settings: RunSettings) -> None:
        """These are the run's settings from now on."""
        ...


Status = Mapping[str, Any]


class Upgrading:
    """Takes requests and carries them out, one step with every `look`. Belongs to one thread."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._folder = fleet.settings.path / FOLDER
        self._request: Request | None = None
        #: The version that the run had before.
        self._former: RunSettings | None = None
        self._step: Callable[[Status | None], None] = self._await_request
        self._sentences: list[str] = []
        self._started: list[str] = []
        self._looks = 0
        self._since = 0.0
        self._why = ""
        self._news: list[str] = []

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes of a version that is not yet the run's own: whether they live is looked at here."""
        return frozenset(self._started)

    def news(self) -> list[str]:
        """What has happened since this was last asked."""
        news, self._news = self._news, []
        return news

    def look(self, status: Status | None) -> None:
        """Do the next step, if it is due. `status` is the gateway's, None if it does not answer."""
        if self._request is not None and self._step not in (self._finish, self._take_back):
            why = self._failure(status)
            if why is not None:
                self._begin_taking_back(why)
        self._step(status)

    # --- the steps ---------------------------------------------------------------------------------------

    def _await_request(self, _status: Status | None) -> None:
        request = self._taken_request()
        if request is None:
            return
        settings = self._fleet.settings
        self._sentences, self._looks, self._started = [], 0, []
        version = request.settings.version
        if version != settings.versions_tried + 1 or request.settings.run != settings.run:
            log.warning("an old request for version %d is left alone", version)
            return
        self._request, self._former = request, settings
        # Never again a version of this number, however this one ends.
        self._fleet.go_on_as(replace(settings, versions_tried=version))
        Candidate(request.settings, request.dataflow).save()
        names = request.settings.node_names
        self._say(f"starting {_listed(names)} with the new code, version {version}")
        self._turn_to(self._start)

    def _start(self, _status: Status | None) -> None:
        """The next node, once the one before is ready: Sparks that start at once starve what runs."""
        names = self._wanted.settings.node_names
        if all(map(self._fleet.came_up, self._started)):
            if len(self._started) < len(names):
                name = names[len(self._started)]
                self._started.append(name)
                self._fleet.start_node(name, self._wanted.settings.version)
            else:
                self._say("the new version catches up")
                self._turn_to(self._catch_up)

    def _catch_up(self, status: Status | None) -> None:
        facts = self._facts(status)
        ready = facts is not None and facts["open"] and facts["whole"]
        near = facts is not None and ready and self._seconds(facts["behind"]) <= BEHIND_S_MAX
        self._looks = self._looks + 1 if near else 0
        if self._looks >= LOOKS:
            Candidate(self._wanted.settings, self._wanted.dataflow, live=True).save()
            self._turn_to(self._turn)

    def _turn(self, status: Status | None) -> None:
        facts = self._facts(status)
        if facts is not None and facts["live"]:
            trial = f"on trial for {self._wanted.trial_s:g} s"
            self._say(f"the new version's output is delivered; {trial}")
            self._turn_to(self._try)

    def _try(self, status: Status | None) -> None:
        # An old version that cannot keep up any more could not take over either.
        crowded = status is not None and bool(status["waiting_for_room"])
        if crowded or self._clock() - self._since >= self._wanted.trial_s:
            version = self._wanted.settings.version
            self._fleet.go_on_as(replace(self._wanted.settings, versions_tried=version))
            self._say(f"the run goes on with version {version}; ending the old one")
            self._turn_to(self._finish)

    def _finish(self, status: Status | None) -> None:
        remove_candidate(self._wanted.settings.path)
        if status is None or status["version"] != self._wanted.settings.version or status["candidate"]:
            return
        before = self._before
        self._end(before, before.node_names, "done", DONE)

    def _take_back(self, status: Status | None) -> None:
        remove_candidate(self._wanted.settings.path)
        let_go = status is not None and status["candidate"] is None
        if let_go or self._clock() - self._since > LETTING_GO_S_MAX:
            self._end(self._wanted.settings, self._started, f"taken back: {self._why}", TAKEN_BACK)

    # --- what goes wrong ---------------------------------------------------------------------------------

    def _failure(self, status: Status | None) -> str | None:
        """Why the new version is to be taken back."""
        if (self._folder / CANCELLED).exists():
            return "it was cancelled"
        for name in self._started:
            if (why := self._fleet.why_gone(name)) is not None:
                return f"{name} failed: {why}"
        if self._step in (self._start, self._catch_up) and self._clock() - self._since > READY_S_MAX:
            trouble = (self._facts(status) or {}).get("trouble", "")
            return f"it was not ready within {READY_S_MAX:g} s. {trouble}"
        facts = self._facts(status)
        if facts is None or not facts["open"]:
            return None
        if facts["crowded"] and not facts["takes"]:
            return f"it does not keep pace with {_listed(facts['crowded'])}"
        if self._step in (self._turn, self._try):
            if facts["down"]:
                return f"no copy of {_listed(facts['down'])} is left"
            slower_s = self._seconds(facts["slower"])
            if slower_s > SLOWER_S_MAX:
                return f"its output is {slower_s:.0f} s behind that of the old version"
        return None

    def _begin_taking_back(self, why: str) -> None:
        self._why = why.strip()
        self._say(f"taking the new version back: {self._why}")
        self._turn_to(self._take_back)

    # --- parts -------------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> Request:
        assert self._request is not None
        return self._request

    @property
    def _before(self) -> RunSettings:
        assert self._former is not None
        return self._former

    def _facts(self, status: Status | None) -> Mapping[str, Any] | None:
        """What the gateway says of the new version."""
        facts: Mapping[str, Any] | None = None if status is None else status["candidate"]
        return facts if facts is not None and facts["version"] == self._wanted.settings.version else None

    def _seconds(self, buckets: Mapping[str, int]) -> float:
        return max(buckets.values(), default=0) * self._wanted.bucket_us / 1e6

    def _turn_to(self, step: Callable[[Status | None], None]) -> None:
        self._step = step
        if step != self._catch_up:
            # Starting and catching up have one limit.
            self._since = self._clock()

    def _say(self, sentence: str, outcome: str = "") -> None:
        log.info("upgrade: %s", sentence)
        self._sentences.append(sentence)
        self._news.append(sentence)
        values = {
            "version": self._wanted.settings.version,
            "sentences": self._sentences,
            "outcome": outcome,
        }
        try:
            write_whole(self._folder / PROGRESS, json.dumps(values) + "\n")
        except OSError as problem:
            log.warning("how the upgrade goes cannot be written down: %s", problem)

    def _end(self, version: RunSettings, nodes: Sequence[str], sentence: str, outcome: str) -> None:
        """End the nodes of one version, and remove what is left of it, beside everything else."""
        names = list(nodes)
        self._started = []

        def end() -> None:
            self._fleet.end_nodes(names)
            tidy_up(version)

        threading.Thread(target=end, name=f"ending version {version.version}", daemon=True).start()
        self._say(sentence, outcome)
        self._request = None
        self._turn_to(self._await_request)

    def _taken_request(self) -> Request | None:
        file = self._folder / REQUEST
        try:
            values = json.loads(file.read_text())
            dataflow = Dataflow.from_json(values["dataflow"])
            times = float(values["trial_s"]), int(values["bucket_us"])
            request = Request(RunSettings.from_json(values["settings"]), dataflow, *times)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, FlowError) as problem:
            log.warning("%s is no request for an upgrade: %s", file, problem)
            request = None
        with suppress(OSError):
            file.unlink()
        return request


def tidy_up(version: RunSettings) -> None:
    """Remove what is left of a version that is over: its saved states, its code and its marks."""
    try:
        store = SnapshotStore.open(version.store_url, version.run, keep=version.snapshots_kept)
        store.drop_version(version.version)
    except EnvironmentFailed as problem:
        # They are removed when the run is next started.
        log.warning("%s", problem)
    if version.version == 1:
        unpin(version)
    else:
        shutil.rmtree(version.version_path, ignore_errors=True)


def drop_unfinished(settings: RunSettings) -> str | None:
    """Before a run goes on: what an upgrade that was not finished has left goes; a sentence if there was one.

    Only for the holder of the folder's lock.
    """
    was_there = remove_candidate(settings.path)
    shutil.rmtree(settings.path / FOLDER, ignore_errors=True)
    if not was_there:
        return None
    return "an upgrade was not finished: the run goes on with the version before it"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
