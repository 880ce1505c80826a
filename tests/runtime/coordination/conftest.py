"""One ZooKeeper server for the tests that leave it alone, and what they use to await news."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.server import ZooKeeperServer

T = TypeVar("T")

#: Short, so that the tests are; a run uses longer ones.
SESSION_TIMEOUT_MS = 1_000
MEMBER_PROCESS = Path(__file__).with_name("member_process.py")


class Heard(Generic[T]):
    """A callback that keeps its arguments, and lets a test await them."""

    def __init__(self) -> None:
        self.all: list[T] = []
        self._news: queue.Queue[T] = queue.Queue()

    def __call__(self, value: T) -> None:
        self._news.put(value)

    def until(self, wanted: Callable[[T], bool], timeout_s: float = 15.0) -> T:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                value = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not heard within {timeout_s} s; heard: {self.all}") from None
            self.all.append(value)
            if wanted(value):
                return value


class Cluster:
    """Opens connections and processes for one run, and ends them all."""

    def __init__(self, server: ZooKeeperServer, run: str) -> None:
        self.server = server
        self.run = run
        self._ends = contextlib.ExitStack()

    def connect(self, kind: type[Coordination] = Coordination) -> Coordination:
        connection = kind(self.server.address, self.run, session_timeout_ms=SESSION_TIMEOUT_MS)
        self._ends.callback(connection.close)
        return connection

    def undo(self, end: Callable[[], None]) -> None:
        self._ends.callback(end)

    def process(self, name: str, *options: str) -> subprocess.Popen[str]:
        """A process that has joined as a node; with "lead" it is the leader by the time this returns."""
        process = subprocess.Popen(
            [sys.executable, str(MEMBER_PROCESS), self.server.address, self.run, name, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._ends.callback(process.wait)
        self._ends.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


_runs = itertools.count()


@pytest.fixture
def cluster(shared_server: ZooKeeperServer) -> Iterator[Cluster]:
    made = Cluster(shared_server, f"run-{next(_runs)}")
    yield made
    made.close()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """With a server that the test may kill."""
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        made = Cluster(server, "run")
        yield made
        if not server.running:
            server.start()
        made.close()


@pytest.fixture
def expire() -> Callable[[Coordination], None]:
    """Ends a connection's session on the server, as a long silence would."""
    from kazoo.client import KazooClient

    def end(connection: Coordination) -> None:
        twin = KazooClient(connection.address, client_id=connection.session.client.client_id)
        twin.start()
        twin.stop()
        twin.close()

    return end


@pytest.fixture
def heard() -> type[Heard[Any]]:
    return Heard


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Waits for a condition that no event announces."""

    def wait(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s"
            time.sleep(0.005)

    return wait
