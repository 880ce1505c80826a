"""An upgrade, step by step, as the process that started a run does it (docs/upgrades.md has the whole).

    asked           `understudy upgrade` has looked whether the saved state fits, and left a request
    starting        nodes with the new code start beside the others, one after the other
    catching up     they have the state and take what came since; the sinks do not take their output yet
    turning         the sinks are told to
    on trial        they do. The old version goes on, and takes over again at once if the new one fails.
    deciding        the run's settings are replaced by those of the new version, once the disk takes them
    finishing       the run goes on with the new version, whatever happens; the gateway lets go of the old one
    taking back     the sinks turn back, the gateway lets go of the new version
    ending          the nodes of the version that is over end. If they take long, the upgrade is over all the
                    same, and the next one waits for them

Until `deciding` any failure of the new version takes it back: a process of it that ends, a partition of it
that has no copy, output that falls behind the old version's, or that does not come at all. A process of it
that was killed is not started again: a second version that lacks memory would take it from the first. A
failure of the gateway counts, too, because the new version's output may be what it failed over. A gateway
that was only killed is waited for, and the trial begins again; once.

Each step is one look at the run and at most one change: the files of `runtime.candidate` say what is wanted,
the gateway brings it about, and its status says how far it is. Nothing that fails here, such as a disk that
is full, ends the run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from understudy.core.host.places import GATEWAY
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.candidate import Candidate, remove_candidate
from understudy.runtime.candidate_status import CandidateStatus, Status
from understudy.runtime.candidate_trial import CandidateTrial
from understudy.runtime.leftovers import bound_histories, drop_code, drop_logs, drop_nodes, drop_states
from understudy.runtime.settings import RunSettings
from understudy.runtime.untaken import begin_untaken
from understudy.runtime.upgrade_files import (
    DONE,
    TAKEN_BACK,
    Request,
    is_cancelled,
    progress_in,
    remove_request,
    request_in,
)
from understudy.runtime.upgrade_telling import UpgradeTelling

log = logging.getLogger(__name__)

#: So many looks in a row must find it ready.
LOOKS = 2
#: From the start of its nodes until it is ready.
READY_S_MAX = 900.0
#: How long the gateway may take to let go of a version before its nodes are ended all the same.
LETTING_GO_S_MAX = 30.0
#: How long nodes may take to end before the upgrade is said to be over all the same.
ENDING_S_MAX = 30.0
#: Reasons to take a version back that are no fault of it.
STOPPED, BY_REQUEST = "the run is being stopped", "it was cancelled"


class Fleet(Protocol):
    """The processes of a run, as an upgrade needs them."""

    settings: RunSettings

    def start_node(self, name: str, version: int) -> None:
        """Raises `EnvironmentFailed` if it cannot be started."""
        ...

    def came_up(self, name: str) -> bool: ...

    def why_gone(self, name: str) -> str | None:
        """Why a process is gone; None while it runs."""
        ...

    def why_failed(self, name: str) -> str | None:
        """Why a process ended by itself and not in good order; None if it runs, or was killed."""
        ...

    def end_nodes(self, names: Sequence[str], then: Callable[[], None]) -> None:
        """Forget these nodes and, beside everything else, end them in good order; then do this."""
        ...

    def go_on_as(self, settings: RunSettings) -> None:
        """These are the run's settings from now on. Raises `EnvironmentFailed` if they cannot be written, or
        if they were, and may not outlive a loss of power.
        """
        ...


class Upgrading:
    """Takes requests and carries them out, one step with every `look`. Belongs to one thread."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._folder = fleet.settings.path
        self._request: Request | None = None
        #: The version that the run had before.
        self._former: RunSettings | None = None
        self._step: Callable[[Status | None], None] = self._await_request
        self._telling = UpgradeTelling(self._folder)
        self._started: list[str] = []
        self._looks = 0
        self._since = 0.0
        self._trial: CandidateTrial | None = None
        self._trouble = ""
        self._why = ""
        #: Set when the nodes of the version that is over have ended; and how the upgrade went then.
        self._over = threading.Event()
        self._outcome = "", ""
        self._closing = False

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that are not to be started again if they end."""
        if self._step in (self._make_certain, self._finish):
            return frozenset(self._before.node_names)
        return frozenset(self._started)

    @property
    def is_idle(self) -> bool:
        """Whether no version has begun, and is not over, beside that of the run."""
        return self._step == self._await_request

    @property
    def is_delivered(self) -> bool:
        """Whether the gateway delivers what the new version puts out while it may still be taken back, or did
        so until now: a mistake that the gateway meets may be the new version's.
        """
        return self._step in (self._turn, self._try, self._take_back)

    def news(self) -> list[str]:
        """What has happened since this was last asked."""
        return self._telling.news()

    def close(self) -> None:
        """The run is about to end: what is on trial is taken back, and no request is taken up any more."""
        self._closing = True

    def look(self, status: Status | None) -> None:
        """Do the next step, if it is due. `status` is the gateway's, None if it does not answer."""
        self._telling.look()
        if self._step in (self._start, self._catch_up, self._turn, self._try):
            why = self._failure(status)
            if why is not None:
                self._begin_taking_back(why)
                return
        self._step(status)

    # --- the steps ---------------------------------------------------------------------------------------

    def _await_request(self, _status: Status | None) -> None:
        request = None if self._closing else request_in(self._folder)
        if request is None:
            return
        settings = self._fleet.settings
        if request.version <= settings.versions_tried:
            log.warning("an old request for version %d is left alone", request.version)
            known = progress_in(self._folder)
            if known is None or known.version != request.version:
                self._refuse(request, "that version was tried before")
        elif not request.is_for(settings):
            self._refuse(request, "the run was begun again meanwhile. Ask for the upgrade again")
        else:
            self._begin(request)
        # Last, so that either the request or the candidate is seen from outside.
        remove_request(self._folder)

    def _begin(self, request: Request) -> None:
        settings = self._fleet.settings
        try:
            # Never again a version of this number, however this one ends.
            self._fleet.go_on_as(replace(settings, versions_tried=request.version))
        except EnvironmentFailed as problem:
            self._refuse(request, str(problem))
            return
        self._request, self._former, self._started = request, settings, []
        self._looks, self._trouble = 0, ""
        self._telling.begin(request.version)
        try:
            begin_untaken(request.settings)
            Candidate(request.settings, request.dataflow).save()
        except EnvironmentFailed as problem:
            self._begin_taking_back(str(problem))
            return
        names = ", ".join(request.settings.node_names)
        self._telling.say(f"starting {names} with the new code, version {request.version}")
        self._turn_to(self._start)

    def _start(self, _status: Status | None) -> None:
        """The next node, once the one before is ready: Sparks that start at once starve what runs."""
        names = self._wanted.settings.node_names
        if not all(map(self._fleet.came_up, self._started)):
            return
        if len(self._started) == len(names):
            self._telling.say("the new version catches up")
            self._turn_to(self._catch_up)
            return
        name = names[len(self._started)]
        try:
            self._fleet.start_node(name, self._wanted.version)
        except EnvironmentFailed as problem:
            self._begin_taking_back(str(problem))
        else:
            self._started.append(name)

    def _catch_up(self, status: Status | None) -> None:
        seen = self._seen(status)
        if seen is not None and seen.trouble not in ("", self._trouble):
            self._trouble = seen.trouble
            self._telling.say(f"the new version cannot begin yet: {self._trouble}")
        self._looks = self._looks + 1 if seen is not None and seen.is_near else 0
        if self._looks < LOOKS:
            return
        try:
            Candidate(self._wanted.settings, self._wanted.dataflow, live=True).save()
        except EnvironmentFailed as problem:
            self._begin_taking_back(str(problem))
            return
        self._trial = CandidateTrial(self._wanted, self._clock)
        self._turn_to(self._turn)

    def _turn(self, status: Status | None) -> None:
        if self._tried.seen_live(status) is not None:
            trial = f"on trial for {self._wanted.trial_s:g} s"
            self._telling.say(f"the new version's output is delivered; {trial}")
            self._turn_to(self._try)

    def _try(self, status: Status | None) -> None:
        early = self._tried.end(status)
        if early is None:
            return
        if early:
            self._telling.say(early)
        self._turn_to(self._decide)
        self._decide(status)

    def _decide(self, _status: Status | None) -> None:
        """The moment at which the run's settings name the new version decides."""
        settings = replace(self._wanted.settings, versions_tried=self._wanted.version)
        try:
            self._fleet.go_on_as(settings)
        except EnvironmentFailed as problem:
            named = self._version_on_disk()
            if named == self._before.version:
                self._begin_taking_back(str(problem))
                return
            # It may be decided. Then it must be for certain before the old version's states go.
            log.warning("not decided yet: %s", problem)
            if named == self._wanted.version:
                self._turn_to(self._make_certain)
            return
        self._telling.say(f"the run goes on with version {settings.version}; ending the old one")
        self._turn_to(self._finish)

    def _make_certain(self, status: Status | None) -> None:
        """The settings name the new version, which only a loss of power could still undo."""
        self._decide(status)

    def _finish(self, status: Status | None) -> None:
        self._without_candidate()
        if status is None or status["version"] != self._wanted.version or status["candidate"] is not None:
            return
        before = self._before
        self._end(before.node_names, "done", DONE, logs_before=before.first_node)

    def _take_back(self, status: Status | None) -> None:
        if not self._without_candidate():
            return
        let_go = status is not None and status["candidate"] is None
        if let_go or self._clock() - self._since > LETTING_GO_S_MAX:
            why = self._why if self._why.endswith(".") else f"{self._why}."
            again = "" if self._why in (STOPPED, BY_REQUEST) else " Once that is mended, upgrade again."
            kept = f"Nothing is lost: the run has version {self._before.version}, as before."
            self._end(self._started, f"taken back: {why} {kept}{again}", TAKEN_BACK)

    def _await_end(self, _status: Status | None) -> None:
        if self._over.is_set():
            self._telling.say(*self._outcome)
            self._turn_to(self._await_request)
        elif self._clock() - self._since > ENDING_S_MAX:
            self._telling.say(
                "nodes that are over have not ended yet; the next upgrade waits until they have"
            )
            self._telling.say(*self._outcome)
            self._turn_to(self._await_late_end)

    def _await_late_end(self, _status: Status | None) -> None:
        """The nodes of the next version may have the names of those that end, and their files are removed."""
        if self._over.is_set():
            self._turn_to(self._await_request)
            return
        request = None if self._closing else request_in(self._folder)
        if request is None or request.version <= self._fleet.settings.versions_tried:
            return
        if request.version != self._telling.version:
            self._telling.begin(request.version)
            self._telling.say("waiting until the nodes of the upgrade before have ended")

    # --- what goes wrong ---------------------------------------------------------------------------------

    def _failure(self, status: Status | None) -> str | None:
        """Why the new version is to be taken back."""
        if self._closing:
            return STOPPED
        if is_cancelled(self._folder):
            return BY_REQUEST
        for name in self._started:
            if (why := self._fleet.why_gone(name)) is not None:
                return f"{name} has ended: {why}"
        if (why := self._fleet.why_failed(GATEWAY)) is not None:
            return f"the gateway failed: {why}"
        if self._step in (self._turn, self._try):
            return self._tried.shortcoming(status)
        if self._clock() - self._since > READY_S_MAX:
            return f"it was not ready within {READY_S_MAX:g} s. {self._trouble}"
        seen = self._seen(status)
        return None if seen is None else seen.shortcoming(None)

    def _begin_taking_back(self, why: str) -> None:
        self._why = why.strip()
        self._telling.say(f"taking the new version back: {self._why}")
        self._turn_to(self._take_back)
        # At once. That the gateway has let go is seen by a status that is asked for later.
        self._without_candidate()

    # --- parts -------------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> Request:
        assert self._request is not None
        return self._request

    @property
    def _before(self) -> RunSettings:
        assert self._former is not None
        return self._former

    @property
    def _tried(self) -> CandidateTrial:
        assert self._trial is not None
        return self._trial

    def _seen(self, status: Status | None) -> CandidateStatus | None:
        """What the gateway says of the new version."""
        return CandidateStatus.of(status, self._wanted.version, self._wanted.bucket_us)

    def _version_on_disk(self) -> int | None:
        """The version that the run goes on with if it ends now; None if that cannot be told."""
        try:
            return RunSettings.load(self._folder).version
        except EnvironmentFailed:
            return None

    def _without_candidate(self) -> bool:
        """Whether there is no candidate any more."""
        try:
            remove_candidate(self._folder)
        except OSError as problem:
            log.warning("the candidate cannot be removed: %s", problem)
            return False
        return True

    def _turn_to(self, step: Callable[[Status | None], None]) -> None:
        self._step = step
        if step != self._catch_up:
            # Starting and catching up have one limit.
            self._since = self._clock()

    def _refuse(self, request: Request, why: str) -> None:
        self._telling.begin(request.version)
        self._telling.say(f"taken back: {why}", TAKEN_BACK)

    def _end(self, nodes: Sequence[str], sentence: str, outcome: str, *, logs_before: int = 0) -> None:
        """End the nodes of a version that is over, and remove what is left of it, beside everything else."""
        names, settings = list(nodes), self._fleet.settings
        over = self._over = threading.Event()
        self._started = []
        self._outcome = sentence, outcome

        def tidy_up() -> None:
            try:
                drop_nodes(settings, names)
                drop_logs(settings, logs_before)
                drop_code(settings, settings.versions_tried)
                bound_histories(settings)
            finally:
                over.set()
            # The store may take its time, and the next upgrade need not wait for it.
            drop_states(settings)

        self._turn_to(self._await_end)
        self._fleet.end_nodes(names, tidy_up)
