"""A copy on its node: an engine with its worker, and the movement of its state.

The protocol is in `core.host` on the node's actor; a hosted copy carries out its instructions. An engine is
made and started beside the dataflow, in a thread of its own. A copy that leaves takes its engine with it; the
host ignores what the worker still reports, which it recognises by the seat's epoch.

The failure of a newcomer harms no other copy. After a full disk, a file that was damaged on its way, or an
engine that does not start from its snapshot, the host retries or gives the seat up, and the other copies on
the node go on.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from understudy.core.bucket import NOTHING, Bucket, BucketId
from understudy.core.edge.outlet import OutletState
from understudy.core.errors import require
from understudy.core.host.parcels import Began, FetchState
from understudy.core.replica.events import (
    CopyState,
    FetchFailed,
    Installed,
    LimitGroups,
    Processed,
    Produced,
    Progress,
    Received,
    Saved,
    SaveFailed,
    SnapshotFailed,
    SnapshotTaken,
)
from understudy.core.shape.partition import Copy, Partition
from understudy.engine.interface import CopyEngine, Snapshot
from understudy.engine.storing import open_snapshot
from understudy.runtime.hosting import Hosting
from understudy.runtime.node.mover import StateFetch
from understudy.runtime.node.pace import Pace
from understudy.runtime.node.saving import Saving
from understudy.runtime.node.shipped import Lent, Shipped
from understudy.runtime.node.worker import Shares, Worker, WorkerStats
from understudy.runtime.recording import RunRecorder
from understudy.runtime.saving.restoring import Restored

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CopyParts:
    """What a node gives each of its copies."""

    folder: Path
    make_engine: Callable[[], CopyEngine]
    #: Two queries that start at once take longer than one after the other.
    starting: threading.Lock
    consumers: tuple[Partition, ...]
    stream_for: Callable[[Partition], str]
    time_of: Mapping[str, str]
    pace: Pace
    on_failure: Callable[[BaseException], None]
    #: Where the state is saved, if it is.
    saving: Saving | None = None


class HostedCopy:
    """One copy in its seat. Public methods that do not say otherwise belong to the actor."""

    def __init__(
        self, copy: Copy, epoch: int, hosting: Hosting, recorder: RunRecorder, parts: CopyParts
    ) -> None:
        self.copy = copy
        self.epoch = epoch
        self._hosting = hosting
        self._recorder = recorder
        self._parts = parts
        self._over = threading.Event()
        self._engine: CopyEngine | None = None
        self._worker: Worker | None = None
        self._taken: dict[int, Snapshot] = {}
        #: Snapshots that a standby may fetch, by version. Read by the endpoint's threads.
        self.lent: dict[int, Lent] = {}
        self.fetching: StateFetch | None = None
        #: What a backup holds.
        self.shipped = Shipped(parts.folder, self._over)
        #: A backup's queries, built before they are needed.
        self._spare: CopyEngine | None = None
        self._steps_seen = 0

    def look_for_progress(self) -> None:
        """Say `Progress` if the engine has worked since the last look: its group may take minutes."""
        engine = self._engine
        steps = 0 if engine is None else engine.steps
        if steps != self._steps_seen:
            self._steps_seen = steps
            self._progressed()

    @property
    def stats(self) -> WorkerStats:
        return WorkerStats() if self._worker is None else self._worker.stats

    # --- beginning and leaving ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Start with an empty engine."""
        self._in_thread("engine", self._begin)

    def fetch(self, wanted: FetchState, fetch: StateFetch) -> None:
        """Start with the state of another copy, or hold it."""
        if self.fetching is not None:
            # It hangs, or is long over.
            self.fetching.stop()
        self.fetching = fetch
        if wanted.hold:
            self._in_thread("backup", lambda: self._receive(wanted, fetch))
        else:
            self._in_thread("catch-up", lambda: self._fetch(wanted, fetch))

    def hold(self, attempt: int) -> None:
        """Keep the snapshot that was received in the place of the one before."""
        if self.shipped.hold(attempt):
            self._in_thread("backup", self._prepare)

    def _prepare(self) -> None:
        """Build the queries of a backup, so that a take-over only has to start them."""
        with self._parts.starting:
            if self._engine is None and not self._over.is_set():
                self._spare = self._parts.make_engine()

    def start_held(self) -> None:
        """Start with the snapshot that is held."""
        held = self.shipped.held
        require(held is not None, f"{self.copy} was to take over and holds no snapshot")
        assert held is not None
        if self.fetching is not None:
            self.fetching.stop()
        self._in_thread("take-over", lambda: self._start_held(held))

    def _start_held(self, held: Lent) -> None:
        produced = {partition: outlet.produced_through for partition, outlet in held.state.outlets}
        if self._start(held.snapshot, produced):
            self._recorder.installed_in(self.copy, held.state.version, held.state.through)
            self._hosting.post(Began(self.copy, self.epoch, held.state))
        self.shipped.drop()

    def _receive(self, wanted: FetchState, fetch: StateFetch) -> None:
        try:
            state = self.shipped.receive(wanted.attempt, fetch, self._progressed)
        except Exception as problem:
            if not self._over.is_set():
                log.warning("%s: a snapshot was not received: %s", self.copy, problem)
                self._fetch_failed(wanted, problem)
            return
        if state is not None:
            self._hosting.inside(self.copy, self.epoch, Received(wanted.attempt, state.through))

    def end(self) -> threading.Thread:
        """Leave the seat; the engine ends in the thread that is returned."""
        self._over.set()
        if self.fetching is not None:
            self.fetching.stop()
        return self._in_thread("leaving", self._end)

    def _in_thread(self, what: str, do: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                do()
            except BaseException as error:
                self.failed(error)

        thread = threading.Thread(target=guarded, name=f"{what} {self.copy}", daemon=True)
        thread.start()
        return thread

    def _begin(self) -> None:
        into = self._parts.folder / "restored"
        try:
            restored = self._restored(into)
            state = None if restored is None else self._for_consumers(restored.state)
            produced = {} if state is None else {p: outlet.produced_through for p, outlet in state.outlets}
            if not self._start(None if restored is None else restored.snapshot, produced):
                return
        finally:
            # A copy that has left meanwhile has removed its folder, and this brought it back.
            shutil.rmtree(self._parts.folder if self._over.is_set() else into, ignore_errors=True)
        if state is not None:
            self._recorder.installed_in(self.copy, state.version, state.through)
        self._hosting.post(Began(self.copy, self.epoch, state))

    def _for_consumers(self, state: CopyState) -> CopyState:
        """A saved state, for the consumers that there are now: sinks may have come and gone since."""
        saved = dict(state.outlets)
        produced = max((outlet.produced_through for outlet in saved.values()), default=NOTHING)
        # One that is new gets what is put out from now on.
        anew = OutletState((), produced, NOTHING, ())
        outlets = tuple((each, saved.get(each, anew)) for each in sorted(self._parts.consumers))
        return replace(state, outlets=outlets)

    def _restored(self, into: Path) -> Restored | None:
        """The state that was saved last; None if none ever was, or none is."""
        if self._parts.saving is None:
            return None
        restored = self._parts.saving.restored(self.copy, into, self._over)
        if restored is not None:
            log.info("%s goes on from its saved state, bucket %d", self.copy, restored.state.through)
        return restored

    def _fetch(self, wanted: FetchState, fetch: StateFetch) -> None:
        into = self._parts.folder / f"incoming-{wanted.attempt}"
        try:
            state = fetch.run(into, self._progressed)
            produced = {partition: outlet.produced_through for partition, outlet in state.outlets}
            began = self._start(open_snapshot(into), produced)
        except Exception as problem:
            if not self._over.is_set():
                log.warning("%s: its state was not installed: %s", self.copy, problem)
                log.debug("the reason", exc_info=problem)
                self._drop_engine()
                self._fetch_failed(wanted, problem)
            return
        finally:
            shutil.rmtree(into, ignore_errors=True)
        if began:
            self._recorder.installed_in(self.copy, state.version, state.through)
            self._hosting.inside(self.copy, self.epoch, Installed(wanted.attempt, state))

    def _fetch_failed(self, wanted: FetchState, problem: Exception) -> None:
        failed = FetchFailed(wanted.attempt, f"{type(problem).__name__}: {problem}")
        self._hosting.inside(self.copy, self.epoch, failed)

    def _progressed(self) -> None:
        self._hosting.inside(self.copy, self.epoch, Progress())

    def _start(self, snapshot: Snapshot | None, produced: Mapping[Partition, BucketId]) -> bool:
        """Make the engine and start it; False if the copy has left meanwhile."""
        with self._parts.starting:
            if self._over.is_set():
                return False
            engine = self._engine = self._spare or self._parts.make_engine()
            self._spare = None
            engine.start(snapshot)
            self._worker = Worker(
                engine,
                self,
                self._parts.pace,
                stream_for=self._parts.stream_for,
                time_of=self._parts.time_of,
                produced=produced,
            )
        self.limit_groups(self._worker.limit)
        return True

    def _drop_engine(self) -> None:
        with self._parts.starting:
            engines, self._engine, self._spare = (self._engine, self._spare), None, None
            try:
                for engine in filter(None, engines):
                    engine.close()
            except Exception:
                # It is given up in any case, and other copies on this node go on.
                log.exception("the engine of %s did not end in good order", self.copy)

    def _end(self) -> None:
        # First the engine: it may still be starting, and gets its worker under the same lock.
        self._drop_engine()
        if self._worker is not None:
            self._worker.end()
        shutil.rmtree(self._parts.folder, ignore_errors=True)

    # --- what the host asks for --------------------------------------------------------------------------

    def process(self, buckets: tuple[Bucket, ...]) -> None:
        require(self._worker is not None, f"{self.copy} was given work before it had an engine")
        assert self._worker is not None
        self._recorder.handed_to(self.copy, buckets)
        self._worker.process(buckets)

    def snapshot(self, version: int) -> None:
        assert self._worker is not None
        into = self._parts.folder / "outgoing" / str(version)
        shutil.rmtree(into, ignore_errors=True)
        try:
            into.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            self.snapshot_failed(version, problem)
            return
        self._worker.snapshot(version, into)

    def lend(self, state: CopyState) -> None:
        snapshot = self._taken.pop(state.version)
        self.lent[state.version] = Lent(snapshot, state)

    def save(self, version: int) -> None:
        """Put a snapshot that is kept into the store."""
        saving, lent = self._parts.saving, self.lent[version]
        require(saving is not None, f"{self.copy} was to be saved, and there is no store")
        assert saving is not None

        def saved(floor: BucketId) -> None:
            self._hosting.inside(self.copy, self.epoch, Saved(version, floor))

        def failed(why: str) -> None:
            self._hosting.inside(self.copy, self.epoch, SaveFailed(version, why))

        self._in_thread("saving", lambda: saving.save(self.copy, lent.snapshot, lent.state, saved, failed))

    def unlend(self, version: int) -> None:
        lent = self.lent.pop(version, None)
        snapshot = self._taken.pop(version, None) if lent is None else lent.snapshot
        if snapshot is not None:
            shutil.rmtree(snapshot.directory, ignore_errors=True)

    def hurry(self) -> None:
        """A process was lost: this copy may have to stand in for one that was ahead of it."""
        self._parts.pace.hurry(time.monotonic())
        self.wake()

    def wake(self) -> None:
        if self._worker is not None:
            self._worker.wake()

    # --- the worker --------------------------------------------------------------------------------------

    def produced(self, shares: Shares) -> None:
        for consumer, buckets in shares:
            self._recorder.produced_for(self.copy, consumer, buckets)
        self._hosting.inside(self.copy, self.epoch, Produced(shares))

    def limit_groups(self, limit: LimitGroups) -> None:
        self._hosting.inside(self.copy, self.epoch, limit)

    def processed(self) -> None:
        self._hosting.inside(self.copy, self.epoch, Processed())

    def snapshot_taken(self, version: int, snapshot: Snapshot, pause_us: int) -> None:
        self._recorder.snapshot_of(self.copy, version, snapshot, pause_us)
        # Kept before the host hears of it: the host's answer is to lend it.
        self._taken[version] = snapshot
        self._hosting.inside(self.copy, self.epoch, SnapshotTaken(version))

    def snapshot_failed(self, version: int, why: Exception) -> None:
        log.warning("%s: no snapshot could be taken: %s", self.copy, why)
        self._hosting.inside(self.copy, self.epoch, SnapshotFailed(version, str(why)))

    def failed(self, error: BaseException) -> None:
        if self._over.is_set():
            log.info("%s left while its engine worked: %s", self.copy, error)
            return
        self._parts.on_failure(error)
