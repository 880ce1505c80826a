"""Two versions of a run in a folder, on a real store. The candidate begins in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from boundary_kit import WAIT_S

import understudy as us
from understudy.core.bucket import NOTHING, BucketId
from understudy.core.replica.events import CopyState
from understudy.core.shape.partition import Partition
from understudy.core.view.view import View
from understudy.engine.storing import Digests, seal_snapshot
from understudy.flow.policy import policy_named
from understudy.runtime.gateway.edition import Edition
from understudy.runtime.gateway.opening import ADOPTED, begin_candidate
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.saving.of_run import store_of
from understudy.runtime.saving.store import SnapshotStore
from understudy.runtime.settings import RunSettings

#: Where nodes are to call, which none does here.
ADDRESS = "127.0.0.1:1"


def small_flow() -> us.Flow:
    """A fragment in two partitions, and one that reads it."""
    flow = us.Flow("small", bucket="100 ms")
    rows = flow.source("rows", us.Push("k bigint, ts timestamp"), time="ts")

    @flow.fragment(rows, time="ts", partition_by=["k"])
    def pairs(rows: Any) -> Any:
        return rows

    @flow.fragment(pairs, time="ts")
    def sums(pairs: Any) -> Any:
        return pairs

    flow.sink(sums, us.Console(), name="out")
    return flow


PAIRS, MORE_PAIRS, SUMS = Partition("pairs"), Partition("pairs", 1), Partition("sums")


class Upgraded:
    """A run of version 1, and its candidate, version 2."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        policy = policy_named("flux")
        self.before = RunSettings(
            folder.name,
            "flow.py",
            str(folder),
            zookeeper,
            policy=policy,
            nodes=2,
            partitions=2,
            history=False,
        )
        settings = replace(self.before, version=2, first_node=3)
        dataflow = Dataflow.of(small_flow(), settings)
        self.edition = Edition(settings, dataflow, forgotten={"rows": NOTHING})
        self.views: list[View] = []
        self.thread: threading.Thread | None = None

    @property
    def settings(self) -> RunSettings:
        return self.edition.settings

    @property
    def mark(self) -> Path:
        return self.settings.version_path / ADOPTED

    @property
    def first(self) -> SnapshotStore:
        return store_of(self.before)

    @property
    def second(self) -> SnapshotStore:
        return store_of(self.settings)

    def save(self, partition: Partition, through: BucketId, *, version: int = 1) -> None:
        """A copy of a version saves its state."""
        folder = self.before.path / f"state-{version}-{through}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state").write_text(f"{version} {through}")
        seal_snapshot(folder, {"through": through, "output_through": through}, Digests())
        store = self.first if version == 1 else self.second
        store.save(partition, folder, CopyState(1, through, ()))

    def save_all(self, through: BucketId) -> None:
        for partition in (PAIRS, MORE_PAIRS, SUMS):
            self.save(partition, through)

    def adopted(self) -> dict[Partition, list[BucketId]]:
        """What every partition of the candidate has on its shelf."""
        return {each: [one.through for one in self.second.listed(each)] for each in (PAIRS, MORE_PAIRS, SUMS)}

    def begin(self) -> None:
        """Begin in a thread, as the gateway does."""
        self.thread = threading.Thread(
            target=begin_candidate,
            args=(self.edition, self.before, ADDRESS, self.views.append),
            name="version 2",
            daemon=True,
        )
        self.thread.start()

    def await_begun(self) -> None:
        assert self.thread is not None
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), self.edition.trouble

    def again(self) -> None:
        """The gateway was killed, and the next one begins with the same candidate."""
        self.end()
        self.edition = Edition(self.settings, self.edition.dataflow, forgotten=self.edition.forgotten)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {WAIT_S} s"
            time.sleep(0.01)

    def end(self) -> None:
        self.edition.over.set()
        self.edition.leave()
        if self.thread is not None:
            self.thread.join(WAIT_S)
            assert not self.thread.is_alive()
