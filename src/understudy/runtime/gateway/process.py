"""The gateway process: intake, boundary and delivery of one flow, behind one Flight port.

A gateway that was killed is started again with the same folder and port. It recovers its positions from its
log and its sinks, and the replicas, which have been trying to reach it, attach again.

While the flow is upgraded, there is a boundary for each of two versions (`gateway.versions`).

When every source has ended and all their output is delivered, the gateway's work is done. It says so with a
mark in the run's folder, at once: however its end goes from there on, it is not started again. Then it ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.host.places import GATEWAY
from understudy.runtime.actor import Actor
from understudy.runtime.candidate import Wanted
from understudy.runtime.durable import leave_mark
from understudy.runtime.gateway.counts import Counts
from understudy.runtime.gateway.delivery import DeliveredRange, Delivery
from understudy.runtime.gateway.intake import Intake, now_us
from understudy.runtime.gateway.versions import Versions
from understudy.runtime.ingest.buckets import SealedBucket, end_bucket
from understudy.runtime.ingest.rereading import LogReader
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.pinning import load_pinned
from understudy.runtime.process import Ending, finished_file, opened_file, ready_file
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint
from understudy.runtime.transport.wire import Frame

log = logging.getLogger(__name__)

NAME = GATEWAY


class Gateway:
    """Everything in the gateway process, wired together. What is outside of the versions' boundaries."""

    def __init__(self, settings: RunSettings, ending: Ending) -> None:
        # Before a log is read, which takes long: what is wanted from here on is noticed by `run`.
        self._wanted = Wanted(settings)
        self._settings = settings
        self._ending = ending
        self._ready = ready_file(settings.path, NAME)
        self._opened = opened_file(settings.path)
        self._flow = load_pinned(settings)
        dataflow = Dataflow.of(self._flow, settings)
        self._recorder = RunRecorder(
            settings, self._flow.name, NAME, version=settings.version, ends=dataflow.ends
        )
        self._stats = Counts(self._flow.bucket_us)
        self._actor = Actor("boundary", ending.fail)
        self._delivery = Delivery(
            self._flow, settings.path, self._delivered, ending.fail, digests=settings.history
        )
        self._intake = Intake(self._flow, settings.path, self._on_sealed, ending.fail)
        # The log before the journals: a journal shows that there was a log, and a log that has taken anything
        # in shows that there were journals. A gateway that was killed in between comes up again.
        recovered = self._intake.recover(begun=self._begun())
        positions, unreported = self._delivery.recover(begun=self._intake.goes_on)
        self._intake.require_through(positions)
        for sink, done in unreported:
            self._recorder.delivered_before(sink, done.after, done.through, done.buckets, done.version)
        self._endpoint = Endpoint(
            settings.host, settings.gateway_port, beat_s=settings.beat_s, silence_s=settings.silence_s
        )
        self._versions = Versions(
            settings,
            dataflow,
            self._actor,
            self,
            endpoint=self._endpoint,
            recorder=self._recorder,
            recovered=recovered,
            delivered=positions,
            trimmed=self._intake.trimmed,
            forgotten=self._intake.forgotten,
            candidate=self._wanted.candidate,
        )

    def run(self) -> None:
        """Work until the end."""
        self._versions.begin()
        self._endpoint.handle("push", self._intake.admit)
        self._endpoint.handle("status", self._admit_status)
        self._endpoint.ready()
        self._versions.join()
        self._delivery.start()
        self._versions.follow()
        self._intake.start()
        self._recorder.begun()
        leave_mark(self._opened)
        self._ready.parent.mkdir(exist_ok=True)
        self._ready.touch()
        reading = finished = False
        try:
            while not self._ending.wait(0.05):
                self._versions.tick()
                if self._wanted.changed():
                    self._versions.agree_with(self._wanted.base, self._wanted.candidate)
                if not reading and self._versions.running:
                    # A paced source that began while Spark still starts would only pile up rows.
                    reading = True
                    self._intake.start_readers()
                if self._finished():
                    log.info("every source has ended and everything is delivered")
                    self._mark_finished()
                    finished = True
                    break
        finally:
            # The machines first: what they still say concerns a log that is open.
            self._actor.end()
            self._versions.end()
            self._intake.end()
            self._delivery.end()
            if finished:
                # Writers had a limit of their own to close; what follows is bounded like any other end.
                self._ending.ask()
                self._recorder.ended()
            self._recorder.close()
            self._versions.leave()
            self._endpoint.end()

    def _finished(self) -> bool:
        """Whether every source has ended and every sink holds all of the results."""
        last, delivered = self._intake.last_bucket, self._versions.delivered_through
        if last is None:
            return False
        if last == NOTHING:
            # Every source ended without a single row.
            return True
        # Time goes on to its end after the last row; to be well past the row is to have delivered everything.
        past = last + (end_bucket(self._flow.bucket_us) - last) // 2
        return delivered is not None and all(through > past for through in delivered.values())

    def _mark_finished(self) -> None:
        leave_mark(finished_file(self._settings.path))

    def _begun(self) -> str | None:
        """What shows that a gateway of this run had a log; None if nothing does."""
        if self._delivery.goes_on:
            return f"{self._settings.path / 'delivery'} shows that this run goes on"
        if self._opened.exists():
            return f"{self._opened} shows that a gateway of this run had come up"
        return None

    # --- what versions ask for ---------------------------------------------------------------------------

    def _on_sealed(self, buckets: list[SealedBucket]) -> None:
        self._versions.on_sealed(buckets)

    def deliver(self, sink: str, buckets: Sequence[Bucket], version: int) -> None:
        self._delivery.put(sink, buckets, version)

    def trim(self, source: str, through: BucketId) -> None:
        self._intake.trim(source, through)

    def forget(self, source: str, through: BucketId) -> None:
        self._intake.forget(source, through)

    def reader(self, source: str, after: BucketId) -> LogReader:
        return self._intake.reader(source, after)

    def fail(self, error: BaseException) -> None:
        self._ending.fail(error)

    def room(self, source: str, there_is: bool) -> None:
        self._intake.room(source, there_is)

    def _delivered(self, sink: str, done: DeliveredRange) -> None:
        self._recorder.delivered(sink, done.after, done.through, done.buckets, done.version)
        self._stats.delivered(sink, done)
        self._versions.on_delivered(sink, done.through)

    # --- status ------------------------------------------------------------------------------------------

    def _admit_status(self, _hello: Mapping[str, Any]) -> Accepted:
        """Sends the status when a connection opens, and again for every frame that arrives. A frame may ask
        that no more rows be taken and that every state be saved: the run is about to be stopped.
        """
        box: list[Channel] = []

        def tell() -> None:
            box[0].send(Frame({"kind": "status", "status": self.status()}))

        def asked(frame: Frame) -> None:
            if frame.kind == "save":
                self._intake.hold()
                self._versions.have_all_saved()
            tell()

        def opened(channel: Channel) -> None:
            box.append(channel)
            tell()

        return Accepted(on_open=opened, on_frame=asked, on_closed=lambda _reason: None, name="status")

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, as plain data."""
        return {
            "run": self._settings.run,
            "flow": self._flow.name,
            "policy": self._settings.policy.name,
            "replicas": self._settings.policy.replicas,
            "at_us": now_us(),
            **self._versions.status(),
            "sealed_through": self._intake.sealed_through,
            "log_bytes": self._intake.log_bytes,
            "rows_in": self._intake.rows_in,
            "late": self._intake.late(),
            "began_again": self._delivery.goes_on,
            "gateway": {"pid": os.getpid(), "flight": self._endpoint.address},
            **self._stats.summary(),
        }
