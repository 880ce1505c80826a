"""The versions of a flow at its gateway: usually one, and two while the flow is upgraded.

Each version is a dataflow by itself, with nodes, views and saved states of its own (`core.turning` has the
theory). They meet here alone: the same sources feed them, and each sink takes one of them at a time. What is
wanted is in two files (`runtime.candidate`); the gateway looks at them from time to time and makes things
agree with them, one step after the other:

    a candidate is wanted      pin the log, so that nothing is forgotten that a saved state needs; then let
                               the candidate's shelf begin with the newest saved states of the version before;
                               then take part in its coordination. Its nodes get seats from here on.
    its first view comes       open its boundary, at the bucket that was sealed last. What its copies need
                               from before that number, they get from the log.
    its output is wanted       turn the sinks
    the run goes on with it    so does the gateway, once its ends are here
    a version is not wanted    turn the sinks away from it, then close it

**Producers first.** The saved states that a candidate begins with must fit together. States are taken over
one after the other while the version before goes on saving, so a consumer's state must not be older than
what its producers had let go of when theirs was saved. It is not if the consumer's is taken over later.
docs/upgrades.md has the argument.

**The version that no sink takes stops nobody.** Sources wait for the others only. One that cannot keep pace
is said to be crowded, and whoever looks after the run ends it. What keeps such a version from working is told
as its trouble; only what the base or a sink needs can end the gateway.

Everything here belongs to the boundaries' actor, except where it says otherwise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from understudy.core.bucket import Bucket, BucketId
from understudy.core.host.parcels import ViewSeen
from understudy.core.turning import Closed, Delivered, Opened, Rested, Turn, Turning, TurningEvent
from understudy.core.view.events import Report
from understudy.core.view.view import View
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.actor import Actor
from understudy.runtime.candidate import Candidate
from understudy.runtime.gateway.boundary import Boundary
from understudy.runtime.gateway.edition import Edition
from understudy.runtime.gateway.leading import Leading
from understudy.runtime.gateway.opening import begin_candidate
from understudy.runtime.gateway.shares import Dealt
from understudy.runtime.gateway.sharing import Intake, SharedSources
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.rereading import LogReader
from understudy.runtime.mesh import purpose_of
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Accepted, Endpoint, NotYet

log = logging.getLogger(__name__)


class Outside(Intake, Protocol):
    """What versions need of their gateway. None of these may block."""

    def deliver(self, sink: str, buckets: Sequence[Bucket], version: int) -> None: ...

    def reader(self, source: str, after: BucketId) -> LogReader: ...

    def fail(self, error: BaseException) -> None: ...


class Versions:
    """`base` is the version that the run goes on with. `delivered` says how far each sink is delivered,
    `trimmed` and `forgotten` how far the log is. `begin` comes first, in the gateway's main thread.
    """

    def __init__(
        self,
        base: RunSettings,
        dataflow: Dataflow,
        actor: Actor,
        outside: Outside,
        *,
        endpoint: Endpoint,
        recorder: RunRecorder,
        recovered: Sequence[SealedBucket],
        delivered: Mapping[str, BucketId],
        trimmed: Mapping[str, BucketId],
        forgotten: Mapping[str, BucketId],
        candidate: Candidate | None = None,
    ) -> None:
        self._actor = actor
        self._outside = outside
        self._endpoint = endpoint
        self._recorder = recorder
        live = candidate.version if candidate is not None and candidate.live else base.version
        self._turning = Turning(live, delivered)
        self._sources = SharedSources(outside, trimmed, forgotten, recovered)
        #: The version that the run goes on with. Other threads read this once for all that they look at.
        self._first = Edition(base, dataflow, dict(trimmed), dict(forgotten))
        self._first.boundary = self._boundary(self._first, trimmed=trimmed, recovered=recovered)
        self._editions = {base.version: self._first}
        #: The one that it is to go on with, once its ends are here.
        self._goes_on_with = base.version
        if candidate is not None:
            # Before anything is forgotten.
            self._pin(candidate)

    # --- in the gateway's main thread --------------------------------------------------------------------

    def begin(self) -> None:
        """Take part in the coordination of the version that the run goes on with. Waits for ZooKeeper."""
        first = self._first
        assert first.boundary is not None
        first.leading = Leading(first.settings, first.dataflow.topology)
        first.boundary.listen_on(self._endpoint)

    def join(self) -> None:
        """Be found by nodes."""
        self._leading.begin(self._endpoint.address)

    def follow(self) -> None:
        """Hear of views, and begin with a candidate if there is one."""
        first = self._first
        self._leading.follow(lambda view: self._actor.post(self._on_view, first, view))
        for other in list(self._editions.values()):
            if other is not first:
                self._start(other)

    @property
    def _leading(self) -> Leading:
        leading = self._first.leading
        assert leading is not None
        return leading

    def tick(self) -> None:
        """Several times a second."""
        for edition in list(self._editions.values()):
            leading = edition.leading
            if leading is not None:
                leading.tick()

    def agree_with(self, base: RunSettings, candidate: Candidate | None) -> None:
        """This is what is wanted now."""
        self._actor.post(self._agree_with, base, candidate)

    def end(self) -> None:
        """When the actor has ended: close everything but the coordination."""
        for edition in list(self._editions.values()):
            edition.over.set()
            if edition.boundary is not None:
                edition.boundary.end()

    def leave(self) -> None:
        """End the part in the coordination of every version."""
        for edition in list(self._editions.values()):
            edition.leave()

    # --- for any thread ----------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether some version has every partition that feeds a sink send its output."""
        return any(edition.running for edition in list(self._editions.values()))

    @property
    def delivered_through(self) -> dict[str, BucketId] | None:
        """How far each sink is delivered; None before the first view."""
        boundary = self._first.boundary
        return None if boundary is None or boundary.host.view is None else dict(self._turning.delivered)

    def on_sealed(self, buckets: list[SealedBucket]) -> None:
        """These are sealed, in order; from one thread."""
        boundaries = [each.boundary for each in list(self._editions.values()) if each.boundary is not None]
        dealt = {boundary: boundary.deal(buckets) for boundary in boundaries}
        for bucket in buckets:
            rows = 0 if bucket.table is None else bucket.table.num_rows
            self._recorder.sealed(bucket.source, bucket.number, rows)
        self._actor.post(self._put, buckets, dealt)

    def on_delivered(self, sink: str, through: BucketId) -> None:
        self._actor.post(self._sink_holds, sink, through)

    def have_all_saved(self) -> None:
        """Have every node of the version that the run goes on with save the states of its copies now."""
        boundary = self._first.boundary
        if boundary is not None:
            boundary.have_all_saved()

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, as plain data."""
        first = self._first
        leading, boundary = first.leading, first.boundary
        assert boundary is not None
        others = [edition for edition in list(self._editions.values()) if edition is not first]
        return {
            **boundary.status(),
            "version": first.version,
            "delivered_through": self.delivered_through,
            "members": [] if leading is None else leading.members,
            "controller": None if leading is None else leading.failure,
            "candidate": others[-1].status_beside(first, self._turning) if others else None,
            "nodes": {node: facts for each in (first, *others) for node, facts in dict(each.nodes).items()},
        }

    # --- input -------------------------------------------------------------------------------------------

    def _put(
        self, buckets: list[SealedBucket], dealt: Mapping[Boundary, Sequence[tuple[str, Dealt]]]
    ) -> None:
        self._sources.note_sealed(buckets)
        for edition in self._editions.values():
            boundary = edition.boundary
            if boundary is not None:
                # One that was opened since they were sealed has not dealt them out yet.
                own = dealt.get(boundary)
                boundary.put(boundary.deal(buckets) if own is None else own)

    def _let_go(self) -> None:
        self._sources.let_go(self._editions.values())

    def _make_room(self) -> None:
        taken = [each for each in self._editions.values() if self._turning.takes(each.version)]
        taken = taken or [self._first]
        self._sources.make_room(taken, [each for each in self._editions.values() if each not in taken])

    # --- output ------------------------------------------------------------------------------------------

    def _sink_holds(self, sink: str, through: BucketId) -> None:
        for edition in self._editions.values():
            if edition.boundary is not None:
                edition.boundary.sink_holds(sink, through)
        self._turn(Delivered(sink, through))

    def _turn(self, event: TurningEvent) -> None:
        for told in self._turning.handle(event):
            edition = self._editions.get(told.version)
            if edition is not None and edition.boundary is not None:
                edition.boundary.tell_sink(told.sink, told.event)
        if not isinstance(event, Delivered):
            # Some sink may take another version than before.
            self._make_room()
            self._settle()

    # --- which versions there are ------------------------------------------------------------------------

    def _agree_with(self, base: RunSettings, candidate: Candidate | None) -> None:
        if base.version not in self._editions:
            self._outside.fail(
                EnvironmentFailed(
                    f"The run goes on with version {base.version} of the flow, and this gateway knows only "
                    f"{', '.join(map(str, self._editions))}. It begins again."
                )
            )
            return
        self._goes_on_with = base.version
        if candidate is not None and candidate.version not in self._editions:
            log.info("version %d of the flow begins beside version %d", candidate.version, base.version)
            self._start(self._pin(candidate))
        wanted = {base.version} if candidate is None else {base.version, candidate.version}
        for version, edition in self._editions.items():
            if version not in wanted:
                edition.over.set()
        live = candidate.version if candidate is not None and candidate.live else base.version
        if live != self._turning.wanted:
            log.info("the sinks turn to version %d", live)
            self._turn(Turn(live))
        self._settle()

    def _settle(self) -> None:
        """Go on with the version that is wanted, once its ends are here, and close those that are not."""
        going_on = self._editions[self._goes_on_with]
        if going_on.boundary is not None:
            self._first = going_on
        for edition in list(self._editions.values()):
            taken = self._turning.takes(edition.version)
            if edition.over.is_set() and not taken and edition is not self._first:
                self._close(edition)

    def _close(self, edition: Edition) -> None:
        version = edition.version
        log.info("version %d of the flow ends", version)
        del self._editions[version]
        self._endpoint.handle(purpose_of(version), _not_yet)
        if edition.boundary is not None:
            edition.boundary.end()
        if version in self._turning.open:
            self._turning.handle(Closed(version))
        # It waits for ZooKeeper, which may be away.
        threading.Thread(target=edition.leave, name=f"leaving {version}", daemon=True).start()
        self._let_go()
        self._make_room()

    def _pin(self, candidate: Candidate) -> Edition:
        """A version whose saved states, which it does not have yet, need all that the log holds now."""
        edition = Edition(candidate.settings, candidate.dataflow, forgotten=dict(self._sources.forgotten))
        self._editions[edition.version] = edition
        self._endpoint.handle(purpose_of(edition.version), _not_yet)
        return edition

    def _start(self, edition: Edition) -> None:
        """Begin with a candidate, beside everything else."""
        before = self._editions[self._goes_on_with].settings
        threading.Thread(
            target=begin_candidate,
            args=(edition, before, self._endpoint.address),
            kwargs={"on_view": lambda view: self._actor.post(self._on_view, edition, view)},
            name=f"version {edition.version}",
            daemon=True,
        ).start()

    def _on_view(self, edition: Edition, view: View) -> None:
        version = edition.version
        if self._editions.get(version) is not edition:
            return
        if edition.boundary is None:
            # A candidate's first: what came before is in the log.
            sealed = self._sources.sealed_through
            edition.trimmed = dict(sealed)
            edition.boundary = self._boundary(edition, trimmed=sealed)
            edition.boundary.listen_on(self._endpoint)
        edition.boundary.handle(ViewSeen(view))
        if version not in self._turning.open:
            # The view has made its sinks.
            self._turn(Opened(version))

    def _fail(self, edition: Edition, error: BaseException) -> None:
        """The ends of a version cannot work. If no sink takes its output, that is the trouble of it alone."""
        if edition is self._first or self._turning.takes(edition.version):
            self._outside.fail(error)
        else:
            log.error("version %d of the flow: %s", edition.version, error)
            edition.failure = str(error)

    def _boundary(
        self,
        edition: Edition,
        *,
        trimmed: Mapping[str, BucketId],
        recovered: Sequence[SealedBucket] = (),
    ) -> Boundary:
        """The ends of one version. Its sinks rest until they are woken."""
        return Boundary(
            edition.settings,
            self._actor,
            _Around(self, edition, self._outside),
            dataflow=edition.dataflow,
            recorder=self._recorder.of_version(edition.version, edition.dataflow.ends),
            recovered=recovered,
            delivered=self._turning.delivered,
            trimmed=trimmed,
            forgotten=self._sources.forgotten,
            rests=True,
        )


class _Around:
    """What the boundary of one version needs of its process."""

    def __init__(self, versions: Versions, edition: Edition, outside: Outside) -> None:
        self._versions = versions
        self._edition = edition
        self._outside = outside
        self.reader: Callable[[str, BucketId], LogReader] = outside.reader

    def deliver(self, sink: str, buckets: Sequence[Bucket]) -> None:
        self._outside.deliver(sink, buckets, self._edition.version)

    def trim(self, source: str, through: BucketId) -> None:
        self._edition.trimmed[source] = max(self._edition.trimmed[source], through)
        self._versions._let_go()

    def forget(self, source: str, through: BucketId) -> None:
        self._edition.forgotten[source] = max(self._edition.forgotten[source], through)
        self._versions._let_go()

    def room(self, _source: str, _there_is: bool) -> None:
        self._versions._make_room()

    def fail(self, error: BaseException) -> None:
        self._versions._fail(self._edition, error)

    def report(self, report: Report) -> bool:
        leading = self._edition.leading
        return leading is not None and leading.report(report)

    def stats(self, node: str, facts: Mapping[str, Any]) -> None:
        self._edition.nodes[node] = {key: value for key, value in facts.items() if key != "kind"}

    def rests(self, sink: str, through: BucketId) -> None:
        # Behind what the host is about to do for the same event.
        versions = self._versions
        versions._actor.post(versions._turn, Rested(self._edition.version, sink, through))


def _not_yet(_hello: Mapping[str, Any]) -> Accepted:
    raise NotYet("this version of the flow is not open here")
