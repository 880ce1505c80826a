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
    a version is not wanted    turn the sinks away from it, then close it

**Producers first.** The saved states that a candidate begins with must fit together. States are taken over
one after the other while the version before goes on saving, so a consumer's state must not be older than
what its producers had let go of when theirs was saved. It is not if the consumer's is taken over later.
docs/upgrades.md has the argument.

**The version that no sink takes stops nobody.** Sources wait for the others only. One that cannot keep pace
is said to be crowded, and whoever looks after the run ends it.

Everything here belongs to the boundaries' actor, except where it says otherwise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.host.parcels import ViewSeen
from understudy.core.turning import Closed, Delivered, Opened, Rested, Turn, Turning, TurningEvent
from understudy.core.view.events import Report
from understudy.core.view.view import View
from understudy.runtime.actor import Actor
from understudy.runtime.candidate import Candidate
from understudy.runtime.gateway.boundary import Boundary, Dealt
from understudy.runtime.gateway.leading import Leading
from understudy.runtime.gateway.opening import begin_candidate
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.ingest.rereading import LogReader
from understudy.runtime.mesh import purpose_of
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Accepted, Endpoint, NotYet

log = logging.getLogger(__name__)


class Outside(Protocol):
    """What versions need of their gateway. None of these may block."""

    def deliver(self, sink: str, buckets: Sequence[Bucket], version: int) -> None: ...

    def trim(self, source: str, through: BucketId) -> None: ...

    def forget(self, source: str, through: BucketId) -> None: ...

    def reader(self, source: str, after: BucketId) -> LogReader: ...

    def fail(self, error: BaseException) -> None: ...

    def room(self, source: str, there_is: bool) -> None: ...

    def stats(self, node: str, facts: Mapping[str, Any]) -> None: ...


@dataclass(eq=False)
class Edition:
    """One version at this gateway: how far it lets the log go, and its parts once they are there."""

    settings: RunSettings
    dataflow: Dataflow
    #: By source, through which number it lets memory and the log go.
    trimmed: dict[str, BucketId] = field(default_factory=dict)
    forgotten: dict[str, BucketId] = field(default_factory=dict)
    leading: Leading | None = None
    boundary: Boundary | None = None
    #: Set when it is not wanted any more.
    over: threading.Event = field(default_factory=threading.Event)
    #: Why it cannot begin yet.
    trouble: str = ""

    @property
    def crowded(self) -> list[str]:
        """The sources that have no room here."""
        return [] if self.boundary is None else self.boundary.crowded


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
        self.base = base.version
        live = candidate.version if candidate is not None and candidate.live else self.base
        self._turning = Turning(live, delivered)
        #: What the intake was told last.
        self._trimmed = dict(trimmed)
        self._forgotten = dict(forgotten)
        self._room = dict.fromkeys(trimmed, True)
        #: By source, the last bucket that was put in.
        self._sealed_through = dict(trimmed)
        for bucket in recovered:
            self._sealed_through[bucket.source] = bucket.number
        self._editions: dict[int, Edition] = {}
        first = self._editions[self.base] = Edition(base, dataflow, dict(trimmed), dict(forgotten))
        first.boundary = self._boundary(first, trimmed=trimmed, recovered=recovered)
        self._candidate = candidate
        if candidate is not None:
            # Before anything is forgotten.
            self._editions[candidate.version] = self._pinned(candidate)

    # --- in the gateway's main thread --------------------------------------------------------------------

    def begin(self) -> None:
        """Take part in the coordination of the version that the run goes on with. Waits for ZooKeeper."""
        edition = self._editions[self.base]
        assert edition.boundary is not None
        edition.leading = Leading(edition.settings, edition.dataflow.topology)
        edition.boundary.listen_on(self._endpoint)
        if self._candidate is not None:
            self._endpoint.handle(purpose_of(self._candidate.version), _not_yet)

    def join(self) -> None:
        """Be found by nodes."""
        self._first.begin(self._endpoint.address)

    def follow(self) -> None:
        """Hear of views, and begin with a candidate if there is one."""
        edition = self._editions[self.base]
        self._first.follow(lambda view: self._actor.post(self._on_view, edition, view))
        for other in list(self._editions.values()):
            if other is not edition:
                self._start(other)

    @property
    def _first(self) -> Leading:
        leading = self._editions[self.base].leading
        assert leading is not None
        return leading

    def tick(self) -> None:
        """Several times a second."""
        for edition in list(self._editions.values()):
            if edition.leading is not None:
                edition.leading.tick()

    def agree_with(self, base: RunSettings, candidate: Candidate | None) -> None:
        """This is what is wanted now."""
        self._actor.post(self._agree_with, base, candidate)

    def end(self) -> None:
        """When the actor has ended: close everything but the coordination."""
        for edition in self._editions.values():
            edition.over.set()
            if edition.boundary is not None:
                edition.boundary.end()

    def leave(self) -> None:
        """End the part in the coordination of every version."""
        for edition in self._editions.values():
            if edition.leading is not None:
                edition.leading.end()

    # --- for any thread ----------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether every partition that feeds a sink sends its output."""
        boundary = self._editions[self.base].boundary
        return boundary is not None and boundary.running

    @property
    def delivered_through(self) -> dict[str, BucketId] | None:
        """How far each sink is delivered; None before the first view."""
        boundary = self._editions[self.base].boundary
        return None if boundary is None or boundary.host.view is None else dict(self._turning.delivered)

    def on_sealed(self, buckets: list[SealedBucket]) -> None:
        """These are sealed, in order; from one thread."""
        boundaries = [each.boundary for each in list(self._editions.values()) if each.boundary is not None]
        dealt = {id(boundary): boundary.deal(buckets) for boundary in boundaries}
        for bucket in buckets:
            rows = 0 if bucket.table is None else bucket.table.num_rows
            self._recorder.sealed(bucket.source, bucket.number, rows)
        self._actor.post(self._put, buckets, dealt)

    def on_delivered(self, sink: str, through: BucketId) -> None:
        self._actor.post(self._sink_holds, sink, through)

    def have_all_saved(self) -> None:
        """Have every node of the version that the run goes on with save the states of its copies now."""
        boundary = self._editions[self.base].boundary
        if boundary is not None:
            boundary.have_all_saved()

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, as plain data."""
        edition = self._editions[self.base]
        assert edition.boundary is not None
        others = [each for version, each in list(self._editions.items()) if version != self.base]
        return {
            **edition.boundary.status(),
            "version": self.base,
            "delivered_through": self.delivered_through,
            "members": self._first.members if edition.leading is not None else [],
            "controller": self._first.failure if edition.leading is not None else None,
            "candidate": self._status_of(others[0]) if others else None,
        }

    def _status_of(self, edition: Edition) -> dict[str, Any]:
        """Of a version beside the one that the run goes on with."""
        version, boundary = edition.settings.version, edition.boundary
        base = self._editions[self.base].boundary
        view = None if boundary is None else boundary.host.view
        facts = {
            "version": version,
            "members": edition.leading.members if edition.leading is not None else [],
            "trouble": edition.trouble,
            # Whether all sinks take its output, and whether any does.
            "live": self._turning.turned and self._turning.wanted == version,
            "takes": self._turning.takes(version),
        }
        if boundary is None or view is None:
            return {**facts, "open": False}
        delivered, arrived = self._turning.delivered, boundary.arrived_through
        return {
            **facts,
            "open": True,
            "seats": boundary.status()["seats"],
            "whole": all(seats.whole for seats in view.partitions.values()),
            "down": [str(partition) for partition, seats in view.partitions.items() if seats.lost],
            "crowded": boundary.crowded,
            # How many buckets of each sink were delivered and have not come from this version yet; and how
            # many have come from the version that the run goes on with, and not from this one.
            "behind": _short_of(delivered, arrived),
            "slower": _short_of(base.arrived_through, arrived) if base is not None else {},
        }

    # --- input -------------------------------------------------------------------------------------------

    def _put(self, buckets: list[SealedBucket], dealt: Mapping[int, list[tuple[str, Dealt]]]) -> None:
        for bucket in buckets:
            self._sealed_through[bucket.source] = bucket.number
        for edition in self._editions.values():
            boundary = edition.boundary
            if boundary is not None:
                # One that was opened since they were sealed has not dealt them out yet.
                own = dealt.get(id(boundary))
                boundary.put(boundary.deal(buckets) if own is None else own)

    def _trim(self) -> None:
        """Let the log go as far as every version does."""
        for source, before in list(self._trimmed.items()):
            readers = [each for each in self._editions.values() if source in each.dataflow.topology.sources]
            claims = [each.trimmed[source] for each in readers if each.boundary is not None]
            through = max(before, min(claims, default=before))
            if through > before:
                self._trimmed[source] = through
                self._outside.trim(source, through)
            gone = min([through, *(each.forgotten[source] for each in readers)])
            if gone > self._forgotten[source]:
                self._forgotten[source] = gone
                self._outside.forget(source, gone)

    def _make_room(self) -> None:
        """A source waits for the versions that some sink takes."""
        opened = [each for each in self._editions.values() if each.boundary is not None]
        taken = [each for each in opened if self._turning.takes(each.settings.version)]
        counted = taken or [each for each in opened if each.settings.version == self.base]
        crowded = {source for each in counted for source in each.crowded}
        for source, before in self._room.items():
            room = source not in crowded
            if room != before:
                self._room[source] = room
                self._outside.room(source, room)

    # --- output ------------------------------------------------------------------------------------------

    def _sink_holds(self, sink: str, through: BucketId) -> None:
        for edition in list(self._editions.values()):
            if edition.boundary is not None:
                edition.boundary.sink_holds(sink, through)
        self._turn(Delivered(sink, through))

    def _turn(self, event: TurningEvent) -> None:
        for told in self._turning.handle(event):
            edition = self._editions.get(told.version)
            if edition is not None and edition.boundary is not None:
                edition.boundary.tell_sink(told.sink, told.event)
        if isinstance(event, Turn | Rested):
            self._make_room()
            self._close_unwanted()

    # --- which versions there are ------------------------------------------------------------------------

    def _agree_with(self, base: RunSettings, candidate: Candidate | None) -> None:
        wanted = {base.version} if candidate is None else {base.version, candidate.version}
        if base.version in self._editions:
            self.base = base.version
        if candidate is not None and candidate.version not in self._editions:
            log.info("version %d of the flow begins beside version %d", candidate.version, self.base)
            edition = self._editions[candidate.version] = self._pinned(candidate)
            self._endpoint.handle(purpose_of(candidate.version), _not_yet)
            self._start(edition)
        for version, edition in self._editions.items():
            if version not in wanted:
                edition.over.set()
        live = candidate.version if candidate is not None and candidate.live else base.version
        if live != self._turning.wanted and live in self._editions:
            log.info("the sinks turn to version %d", live)
            self._turn(Turn(live))
        self._close_unwanted()

    def _close_unwanted(self) -> None:
        for version, edition in list(self._editions.items()):
            if not edition.over.is_set() or self._turning.takes(version) or version == self.base:
                continue
            log.info("version %d of the flow ends", version)
            del self._editions[version]
            self._endpoint.handle(purpose_of(version), _not_yet)
            if edition.boundary is not None:
                edition.boundary.end()
            if version in self._turning.open:
                self._turning.handle(Closed(version))
            if edition.leading is not None:
                # It waits for ZooKeeper, which may be away.
                threading.Thread(target=edition.leading.end, name=f"leaving {version}", daemon=True).start()
            self._trim()
            self._make_room()

    def _pinned(self, candidate: Candidate) -> Edition:
        """A version whose saved states, which it does not have yet, need all that the log holds now."""
        return Edition(candidate.settings, candidate.dataflow, forgotten=dict(self._forgotten))

    def _start(self, edition: Edition) -> None:
        """Begin with a candidate, beside everything else."""

        def begin() -> None:
            leading = begin_candidate(edition, self._editions[self.base].settings, self._endpoint.address)
            if leading is not None:
                self._actor.post(self._lead, edition, leading)

        name = f"version {edition.settings.version}"
        threading.Thread(target=begin, name=name, daemon=True).start()

    def _lead(self, edition: Edition, leading: Leading) -> None:
        if edition.over.is_set():
            threading.Thread(target=leading.end, name="leaving", daemon=True).start()
            return
        edition.leading = leading

        def follow() -> None:
            leading.follow(lambda view: self._actor.post(self._on_view, edition, view))

        threading.Thread(target=follow, name=f"following {edition.settings.version}", daemon=True).start()

    def _on_view(self, edition: Edition, view: View) -> None:
        version = edition.settings.version
        if version not in self._editions:
            return
        if edition.boundary is None:
            # A candidate's first: what came before is in the log.
            edition.trimmed = dict(self._sealed_through)
            edition.boundary = self._boundary(edition, trimmed=self._sealed_through)
            edition.boundary.listen_on(self._endpoint)
        edition.boundary.handle(ViewSeen(view))
        if version not in self._turning.open:
            # The view has made its sinks.
            self._turn(Opened(version))

    def _boundary(
        self,
        edition: Edition,
        *,
        trimmed: Mapping[str, BucketId],
        recovered: Sequence[SealedBucket] = (),
    ) -> Boundary:
        """The ends of one version. Its sinks rest until they are woken."""
        version = edition.settings.version
        return Boundary(
            edition.settings,
            self._actor,
            _Around(self, edition, self._outside),
            dataflow=edition.dataflow,
            recorder=self._recorder.of_version(version, edition.dataflow.ends),
            recovered=recovered,
            delivered=self._turning.delivered,
            trimmed=trimmed,
            forgotten=self._forgotten,
            rests=True,
        )


class _Around:
    """What the boundary of one version needs of its process."""

    def __init__(self, versions: Versions, edition: Edition, outside: Outside) -> None:
        self._versions = versions
        self._edition = edition
        self._outside = outside
        self.reader: Callable[[str, BucketId], LogReader] = outside.reader
        self.fail: Callable[[BaseException], None] = outside.fail
        self.stats: Callable[[str, Mapping[str, Any]], None] = outside.stats

    def deliver(self, sink: str, buckets: Sequence[Bucket]) -> None:
        self._outside.deliver(sink, buckets, self._edition.settings.version)

    def trim(self, source: str, through: BucketId) -> None:
        self._edition.trimmed[source] = max(self._edition.trimmed[source], through)
        self._versions._trim()

    def forget(self, source: str, through: BucketId) -> None:
        self._edition.forgotten[source] = max(self._edition.forgotten[source], through)
        self._versions._trim()

    def room(self, _source: str, _there_is: bool) -> None:
        self._versions._make_room()

    def report(self, report: Report) -> bool:
        leading = self._edition.leading
        return leading is not None and leading.report(report)

    def rests(self, sink: str, through: BucketId) -> None:
        # Behind what the host is about to do for the same event.
        version = self._edition.settings.version
        self._versions._actor.post(self._versions._turn, Rested(version, sink, through))


def _short_of(reached: Mapping[str, BucketId], by_this: Mapping[str, BucketId]) -> dict[str, int]:
    """By sink, how many buckets this version lacks of what another has reached."""
    return {sink: max(0, through - by_this.get(sink, NOTHING)) for sink, through in reached.items()}


def _not_yet(_hello: Mapping[str, Any]) -> Accepted:
    raise NotYet("this version of the flow is not open here")
