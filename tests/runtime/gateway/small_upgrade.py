"""A run that is upgraded, real but for its engines: a gateway in a process of its own, which a test may kill,
and nodes of both versions in this one, on a real ZooKeeper, a real log and a real store.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from small_engine import WIDTH_US
from small_run import SmallEngines

import understudy as us
from understudy.core.bucket import BucketId
from understudy.core.host.places import GATEWAY
from understudy.core.view.events import Report
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.loading import load
from understudy.flow.policy import policy_named
from understudy.history.judging import judge
from understudy.history.reading import records_of
from understudy.history.records import DeliveredRecord
from understudy.runtime.actor import Actor
from understudy.runtime.candidate import Candidate, remove_candidate
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.members import Member as Joined
from understudy.runtime.coordination.reports import written
from understudy.runtime.gateway.leading import FACT
from understudy.runtime.node.copies import Copies
from understudy.runtime.node.saving import saving_for
from understudy.runtime.partitioning import Dataflow, host_for
from understudy.runtime.process import ready_file
from understudy.runtime.recording import RunRecorder
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import RunStatus
from understudy.runtime.transport.endpoint import Endpoint

WAIT_S = 60.0
SAVE_MS = 200

FLOW = """
import understudy as us

flow = us.Flow("small", bucket="100 ms")
rows = flow.source("rows", us.Push("k bigint, ts timestamp"), time="ts")

@flow.fragment(rows, time="ts", partition_by=["k"])
def pairs(rows):
    return rows

@flow.fragment(pairs, time="ts")
def sums(pairs):
    return pairs

flow.sink(pairs, us.JsonLines({folder!r} + "/pairs"), name="pairs")
flow.sink(sums, us.JsonLines({folder!r} + "/sums"), name="sums")
"""


class Node:
    """A node of one version. Only its engines are small ones."""

    def __init__(self, settings: RunSettings, name: str) -> None:
        self.failures: list[BaseException] = []
        flow = load(settings.flow_path)
        dataflow = Dataflow.of(flow, settings)
        self._members: dict[str, str] = {}
        self.recorder = RunRecorder(settings, flow.name, name, version=settings.version, ends=dataflow.ends)
        self._endpoint = Endpoint(beat_s=settings.beat_s, silence_s=settings.silence_s)
        self._coordination = Coordination(settings.zookeeper, settings.coordinates)
        self._actor = Actor(name, self.failures.append)
        self.copies = Copies(
            host_for(name, dataflow.topology, settings),
            settings,
            self._actor,
            flow=flow,
            engines=SmallEngines(flow, settings),  # type: ignore[arg-type]
            folder=settings.path / "state" / name,
            recorder=self.recorder,
            saving=saving_for(settings),
            address_of=self._address_of,
            tell=self._report,
            on_failure=self.failures.append,
        )
        self.copies.listen_on(self._endpoint)
        self._endpoint.ready()
        self.recorder.begun()
        facts = {"flight": self._endpoint.address, "pid": 1, "node": name}
        self._coordination.join("node", name, facts)
        self._coordination.watch_members(self._on_members)
        self._coordination.watch_view(self.copies.on_view)

    def _on_members(self, members: list[Joined]) -> None:
        self._members = {member.name: str(member.facts["flight"]) for member in members}

    def _address_of(self, name: str) -> str | None:
        if name != GATEWAY:
            return self._members.get(name)
        found = self._coordination.get_fact(FACT)
        return None if found is None else str(found["flight"])

    def _report(self, report: Report) -> None:
        self._coordination.report(*written(report))

    def end(self) -> None:
        self._actor.end()
        self.copies.end()
        self.recorder.ended()
        self.recorder.close()
        self._coordination.close()
        self._endpoint.end()
        self.copies.close_engines()


class UpgradedRun:
    """It begins with the nodes of version 1. A test writes what is wanted, as the launcher of a run does."""

    def __init__(self, folder: Path, zookeeper: str, policy: str) -> None:
        folder.mkdir()
        (folder / "flow.py").write_text(FLOW.format(folder=str(folder)))
        chosen = policy_named(policy)
        self.base = RunSettings(
            folder.parent.name,
            str(folder / "flow.py"),
            str(folder),
            zookeeper,
            policy=chosen,
            nodes=chosen.replicas,
            partitions=2,
            gateway_port=_free_port(),
            snapshot_every_ms=SAVE_MS,
        )
        self.base.save()
        self._status = RunStatus(self.base)
        self._process: subprocess.Popen[bytes] | None = None
        self._nodes: dict[int, list[Node]] = {}
        self._pushed: list[BucketId] = []
        #: The version that was begun last.
        self.tried = 2
        self._client: us.Client | None = None
        self.start_gateway()
        self.start_nodes(self.base)
        self.until(lambda: bool(self.status()["senders"]))

    @property
    def next(self) -> RunSettings:
        """The version that is to take over."""
        return replace(self.base, version=self.tried, first_node=10 * self.tried)

    # --- the gateway -------------------------------------------------------------------------------------

    def start_gateway(self) -> None:
        ready_file(self.base.path, GATEWAY).unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "understudy.runtime.main",
            "gateway",
            self.base.folder,
            "--with-parent",
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self.until(ready_file(self.base.path, GATEWAY).exists)

    def kill_gateway(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(WAIT_S)

    def await_the_end(self) -> int:
        """The gateway's exit code, once it has ended by itself."""
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def status(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                return self._status.ask()
            except EnvironmentFailed:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)

    # --- the versions ------------------------------------------------------------------------------------

    def start_nodes(self, settings: RunSettings) -> None:
        self._nodes[settings.version] = [Node(settings, f"{name}.1") for name in settings.node_names]

    def end_nodes(self, version: int) -> None:
        for node in self._nodes.pop(version):
            node.end()
            assert node.failures == []

    def wants_candidate(self, *, live: bool = False) -> None:
        settings = self.next
        Candidate(settings, Dataflow.of(load(settings.flow_path), settings), live).save()

    def commits(self) -> None:
        """The run goes on with the candidate from here on."""
        self.base = self.next
        self.base.save()

    def takes_back(self) -> None:
        remove_candidate(self.base.path)

    def has_caught_up(self) -> bool:
        facts = self.status()["candidate"]
        near = facts is not None and facts["open"] and facts["whole"]
        return bool(near and max(facts["behind"].values()) <= 1)

    def is_live(self) -> bool:
        facts = self.status()["candidate"]
        return facts is not None and bool(facts["live"])

    def is_alone(self, version: int) -> bool:
        """Whether the gateway works for this version only."""
        found = self.status()
        return found["version"] == version and found["candidate"] is None

    # --- rows --------------------------------------------------------------------------------------------

    def push(self, numbers: Sequence[BucketId]) -> None:
        """A row in each of these buckets, which seals the one before."""
        if self._client is None:
            self._client = us.Client(f"127.0.0.1:{self.base.gateway_port}", timeout_s=WAIT_S)
        for number in numbers:
            self._client.push("rows", [{"k": number, "ts": number * WIDTH_US}])
            self._pushed.append(number)

    def close_source(self) -> None:
        assert self._client is not None
        self._client.close_source("rows")

    def await_delivered(self) -> None:
        """Every sink holds all buckets that are sealed."""
        sealed = self._pushed[-1] - 1

        def delivered() -> bool:
            found = self.status()["delivered_through"]
            return found is not None and min(found.values()) >= sealed

        self.until(delivered)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            for node in [each for nodes in self._nodes.values() for each in nodes]:
                if node.failures:
                    raise node.failures[0]
            assert time.monotonic() < deadline_s, f"not within {WAIT_S} s"
            time.sleep(0.02)

    # --- what came of it ---------------------------------------------------------------------------------

    def delivered_by(self, sink: str = "sums") -> list[int]:
        """The versions that a sink was given rows of, in order, each once for every turn."""
        records = records_of(self.base.history_file(GATEWAY))
        mine = [r.version for r in records if isinstance(r, DeliveredRecord) and r.sink == sink and r.buckets]
        return [version for at, version in enumerate(mine) if at == 0 or mine[at - 1] != version]

    def assert_all_rows_are_out_once_and_in_order(self) -> None:
        found = {sink: us.read_output(self.base.path / sink).to_pydict() for sink in ("pairs", "sums")}
        assert found["pairs"]["k"] == found["sums"]["k"] == self._pushed
        assert found["sums"]["seen"] == list(range(len(self._pushed))), "no state was lost or used twice"

    def end(self) -> None:
        """End it as it is."""
        if self._client is not None:
            self._client.close()
        self._status.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait(WAIT_S)
            assert self._process.stdin is not None
            self._process.stdin.close()
        ending = [threading.Thread(target=self.end_nodes, args=[version]) for version in list(self._nodes)]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join(WAIT_S)

    def assert_clean(self) -> None:
        """The histories of all processes show that nothing was lost, repeated or out of order."""
        verdict = judge((self.base.path / "history").glob("*.jsonl"))
        assert (verdict.findings, verdict.damages) == ([], [])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
