"""A process that fails while it comes up again is retried; only a failed first start may end a run.

These runs have no nodes, so no Spark: what matters is that the run goes on, with all that it holds.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from counting import PUSHED, write_flow

from understudy.cli.main import main
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.policy import policy_named
from understudy.runtime import pulse
from understudy.runtime.client import Client
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.local import WORKED_S, Child, LocalRun
from understudy.runtime.process import failure_file, finished_file, ready_file
from understudy.runtime.pulse import Pulse, pulse_file
from understudy.runtime.settings import RunSettings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def run(tmp_path: Path, server: ZooKeeperServer) -> Iterator[LocalRun]:
    """Not started yet, on a ZooKeeper that is not its own."""
    flow = str(write_flow(tmp_path, PUSHED))
    policy = policy_named("none")
    settings = RunSettings("retried", flow, str(tmp_path / "run"), server.address, policy=policy)
    with LocalRun(settings, nodes=0) as run:
        yield run


def look_until(run: LocalRun, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Look after the run, as its owner does, until something is so."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        run.check()
        time.sleep(0.05)


def test_a_gateway_that_cannot_come_up_again_is_tried_until_it_can(
    run: LocalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.start()
    look_until(run, lambda: run.status() is not None)
    look_until(run, ready_file(run.settings.path, "gateway").exists)
    run.kill("gateway")
    run.children["gateway"].process.wait()
    with socket.create_server((run.settings.host, run.settings.gateway_port)):
        pauses_s: list[float] = []
        for failures in (1, 2, 3):
            look_until(run, lambda failures=failures: run.children["gateway"].failures == failures)  # type: ignore[misc]
            again_at = run.children["gateway"].again_at
            assert again_at is not None
            pauses_s.append(again_at - time.monotonic())
        assert pauses_s == sorted(pauses_s)
        assert pauses_s[-1] > 2 * pauses_s[0] > 0
        setback = run.setbacks["gateway"].text
        assert "3 times in a row" in setback
        assert f"cannot listen on {run.settings.host}:{run.settings.gateway_port}" in setback
        assert main(["status", run.settings.folder]) == EnvironmentFailed.exit_code
        assert "cannot listen" in capsys.readouterr().err
        # As a full disk leaves it.
        failure_file(run.settings.path, "gateway").write_text("")
        assert "It gave no reason (exit code 3)" in run.setbacks["gateway"].text
    look_until(run, lambda: run.status() is not None)
    assert run.setbacks == {}


@pytest.mark.parametrize(
    ("came_up", "age_s", "failures"), [(True, WORKED_S + 1, 1), (False, WORKED_S + 1, 4), (True, 1.0, 4)]
)
def test_a_process_that_worked_for_long_fails_for_the_first_time(
    run: LocalRun, came_up: bool, age_s: float, failures: int
) -> None:
    ready, failed = ready_file(run.settings.path, "gateway"), subprocess.Popen(["false"])
    failed.wait()
    if came_up:
        ready.parent.mkdir(parents=True)
        ready.touch()
    beats = Pulse(pulse_file(run.settings.path, "gateway"))
    child = Child("gateway", [], failed, beats, started_at=time.monotonic() - age_s, failures=3)
    run._children["gateway"] = child
    run._begun = True
    run.check()
    assert child.failures == failures


def test_a_gateway_that_dies_while_an_outside_zookeeper_is_away_comes_up_when_that_is_back(
    run: LocalRun, server: ZooKeeperServer
) -> None:
    run.start()
    look_until(run, ready_file(run.settings.path, "gateway").exists)
    server.kill()
    run.kill("gateway")
    look_until(run, lambda: "gateway" in run.setbacks)
    assert "ZooKeeper does not answer" in run.setbacks["gateway"].text
    server.start()
    look_until(run, lambda: run.status() is not None)


def test_a_gateway_that_cannot_come_up_at_first_ends_the_run_at_once(run: LocalRun) -> None:
    with socket.create_server((run.settings.host, 0)) as taken:
        port = taken.getsockname()[1]
        run.settings = RunSettings(**{**run.settings.__dict__, "gateway_port": port})
        run.start()
        with pytest.raises(EnvironmentFailed, match=f"gateway failed: cannot listen on .*:{port}"):
            look_until(run, lambda: False)


@pytest.mark.parametrize("added", ["meaning = 42", "def half("], ids=["another", "half saved"])
def test_a_gateway_that_is_killed_after_its_flow_was_edited_comes_up_with_the_flow_as_it_was(
    run: LocalRun, added: str
) -> None:
    flow = Path(run.settings.flow_path)
    run.start()
    look_until(run, ready_file(run.settings.path, "gateway").exists)
    flow.write_text(f"{flow.read_text()}\n{added}\n")
    run.kill("gateway")
    look_until(run, lambda: not run.came_up("gateway"))
    look_until(run, lambda: run.came_up("gateway") and run.status() is not None)
    assert f"{flow} has changed since this run began" in run.settings.log_file("gateway").read_text()


def test_a_process_that_cannot_even_be_started_is_named_at_first_and_tried_later(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as none:
        none.setattr(sys, "executable", str(run.settings.path))
        with pytest.raises(EnvironmentFailed, match=r"gateway cannot be started: .*Permission denied"):
            run.start()
    run.start()
    look_until(run, ready_file(run.settings.path, "gateway").exists)
    with monkeypatch.context() as none:
        none.setattr(sys, "executable", str(run.settings.path))
        run.kill("gateway")
        run.children["gateway"].process.wait()
        look_until(run, lambda: run.children["gateway"].failures == 2)
        assert re.search(r"2 times in a row.* cannot be started: .*Permission", run.setbacks["gateway"].text)
    look_until(run, lambda: run.status() is not None)
    assert not run.setbacks


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalRun]:
    """A run on a ZooKeeper of its own, that has begun."""
    flow = str(write_flow(tmp_path, PUSHED))
    settings = RunSettings("retried", flow, str(tmp_path / "run"), "", policy=policy_named("none"))
    with LocalRun.on_own_zookeeper(settings, nodes=0) as run:
        run.start()
        look_until(run, ready_file(run.settings.path, "gateway").exists)
        run.check()
        yield run


def test_a_zookeeper_of_the_runs_own_that_cannot_start_again_is_tried_until_it_can(own: LocalRun) -> None:
    assert own.zookeeper is not None
    with socket.socket() as in_the_way:
        in_the_way.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.zookeeper.kill()
        in_the_way.bind(("127.0.0.1", own.zookeeper.port))
        in_the_way.listen()
        look_until(own, lambda: "zookeeper" in own.setbacks)
        assert "ZooKeeper cannot listen" in own.setbacks["zookeeper"].text
        assert own.children["gateway"].running
    look_until(own, lambda: "zookeeper" not in own.setbacks)
    assert own.zookeeper.running
    own.zookeeper.kill()
    own.zookeeper.log.unlink()
    own.zookeeper.log.mkdir()
    look_until(own, lambda: "zookeeper" in own.setbacks)
    assert "ZooKeeper cannot be started: " in own.setbacks["zookeeper"].text
    own.zookeeper.log.rmdir()
    look_until(own, lambda: "zookeeper" not in own.setbacks)


def test_a_zookeeper_of_the_runs_own_that_stands_still_is_ended_and_started_again(
    own: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own.zookeeper is not None
    frozen = own.zookeeper.pid
    assert frozen is not None
    look_until(own, pulse_file(own.settings.path, "zookeeper").exists)
    os.kill(frozen, signal.SIGSTOP)
    monkeypatch.setattr(pulse, "STILL_LOOKS", 3)
    look_until(own, lambda: own.zookeeper is not None and own.zookeeper.pid != frozen)
    monkeypatch.undo()
    assert own.zookeeper.answers
    assert own.children["gateway"].incarnation == 1


def test_a_gateway_whose_log_is_gone_comes_up_when_it_is_put_back(run: LocalRun, tmp_path: Path) -> None:
    run.start()
    look_until(run, ready_file(run.settings.path, "gateway").exists)
    # From here on there is something to lose.
    run.check()
    address = f"{run.settings.host}:{run.settings.gateway_port}"
    with Client(address, timeout_s=60) as client:
        client.push("numbers", [{"key": 1, "value": 2, "ts": 0}])
    (segment,) = (run.settings.path / "log").glob("*.wal")
    kept = segment.rename(tmp_path / segment.name)
    run.kill("gateway")
    look_until(run, lambda: "gateway" in run.setbacks)
    assert "Rows that were acknowledged cannot be recovered" in run.setbacks["gateway"].text
    kept.rename(segment)
    look_until(run, lambda: run.status() is not None)


#: A sink that never gets to the end of its closing.
STUCK = """
import time
from dataclasses import dataclass
import understudy as us

class Stuck(us.Writer):
    def __init__(self, mark):
        self._mark = mark

    def deliver(self, rows, first, through):
        pass

    def close(self):
        self._mark.touch()
        time.sleep(1000)

@dataclass(frozen=True)
class StuckSink(us.SinkKind):
    def open(self, sink, folder):
        return Stuck(folder / "closing")

flow = us.Flow("stuck")
rows = flow.source("numbers", us.Push("n int, ts timestamp"), time="ts")

@flow.fragment(rows, time="ts")
def same(rows):
    return rows

flow.sink(same, StuckSink(), name="out")
"""


def test_a_gateway_that_dies_after_all_is_delivered_is_not_started_again(run: LocalRun) -> None:
    Path(run.settings.flow_path).write_text(STUCK)
    run.start()
    look_until(run, ready_file(run.settings.path, "gateway").exists)
    with Client(f"{run.settings.host}:{run.settings.gateway_port}", timeout_s=60) as client:
        client.close_source("numbers")
    look_until(run, (run.settings.path / "closing").exists)
    assert finished_file(run.settings.path).exists()
    run.kill("gateway")
    run.children["gateway"].process.wait()
    assert run.finished
    run.check()
    assert run.children["gateway"].incarnation == 1


def test_a_process_that_stands_still_is_ended_and_started_again(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.start()
    look_until(run, ready_file(run.settings.path, "gateway").exists)
    frozen = run.pid("gateway")
    look_until(run, pulse_file(run.settings.path, "gateway").exists)
    run.kill("gateway", signal.SIGSTOP)
    monkeypatch.setattr(pulse, "STILL_LOOKS", 3)
    look_until(run, lambda: run.pid("gateway") != frozen)
    monkeypatch.undo()
    look_until(run, lambda: run.status() is not None)
