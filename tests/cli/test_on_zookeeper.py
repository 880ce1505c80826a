"""`understudy` commands against a real ZooKeeper, with processes that stand in for nodes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from process_kit import runs
from understudy.cli import run as run_command
from understudy.cli.main import main
from understudy.core.shape.partition import Partition
from understudy.core.shape.topology import Topology
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.runtime.candidate import Candidate
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.folder_lock import lock_of_run
from understudy.runtime.gateway.leading import FACT
from understudy.runtime.going_on import await_departure
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.process import begun_file, failure_file, finished_file, ready_file
from understudy.runtime.settings import RunSettings

pytestmark = pytest.mark.zookeeper

#: A process with a child of its own; both wait until they are killed.
FAMILY = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def settings(zookeeper: ZooKeeperServer, tmp_path: Path) -> RunSettings:
    made = RunSettings(tmp_path.name, "flow.py", str(tmp_path / "run"), zookeeper.address)
    made.save()
    return made


@pytest.fixture
def coordination(settings: RunSettings) -> Iterator[Coordination]:
    with Coordination(settings.zookeeper, settings.run) as made:
        yield made


@pytest.fixture
def family(settings: RunSettings) -> Iterator[psutil.Process]:
    with _started(["understudy.runtime.main", "node", settings.folder, "node-1"]) as process:
        yield process


@contextmanager
def _started(arguments: list[str]) -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", FAMILY, *arguments], stdin=subprocess.PIPE) as process:
        parent = psutil.Process(process.pid)
        while not parent.children():
            assert process.poll() is None
        try:
            yield parent
        finally:
            # Also when a test has failed: one that is stopped would be waited for in vain.
            for member in [*parent.children(), parent] if parent.is_running() else []:
                member.kill()


def _gone(processes: list[psutil.Process]) -> bool:
    return _soon(lambda: not any(map(runs, processes)))


def _soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def _seated(*nodes: str) -> View:
    return View(1, {Partition("copy"): Seats(1, tuple(Seat(node, 1, Status.ACTIVE) for node in nodes))})


@pytest.mark.parametrize("name", ["node-1", "node-1.1", "secondary"])
def test_a_member_dies_with_all_that_it_started(
    name: str, settings: RunSettings, coordination: Coordination, family: psutil.Process
) -> None:
    coordination.join("node", "node-1.1", {"pid": family.pid, "node": "node-1", "flight": "nowhere"})
    coordination.publish(_seated("node-2.1", "node-1.1"), None)
    processes = [family, *family.children()]
    assert main(["kill", name, settings.folder]) == 0
    assert _gone(processes)


def test_another_program_that_has_the_number_of_a_member_is_spared(
    settings: RunSettings, coordination: Coordination, capsys: pytest.CaptureFixture[str]
) -> None:
    """The member may be of another machine, or have ended just now."""
    with _started([]) as other:
        coordination.join("node", "node-1.1", {"pid": other.pid, "node": "node-1", "flight": "nowhere"})
        assert main(["kill", "node-1", settings.folder]) == 2
        assert runs(other)
    assert f"process {other.pid}, and that is none of this run's" in capsys.readouterr().err


def test_an_unknown_name_is_answered_with_who_is_there(
    settings: RunSettings,
    coordination: Coordination,
    family: psutil.Process,
    capsys: pytest.CaptureFixture[str],
) -> None:
    coordination.join("node", "node-1.1", {"pid": family.pid, "node": "node-1", "flight": "nowhere"})
    assert main(["kill", "node-9", settings.folder]) == 2
    err = capsys.readouterr().err
    assert "There is no 'node-9'" in err
    assert "node-1" in err
    assert family.is_running()


def test_a_role_that_no_node_has_is_reported(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kill", "secondary", settings.folder]) == 2
    assert "No node is secondary" in capsys.readouterr().err


def test_a_standby_is_a_member_without_a_seat_and_never_the_gateway(
    settings: RunSettings, coordination: Coordination, family: psutil.Process
) -> None:
    coordination.join("gateway", "gateway.1", {"pid": 2**30})
    coordination.join("node", "node-2.1", {"pid": 2**30, "node": "node-2"})
    coordination.join("node", "node-1.1", {"pid": family.pid, "node": "node-1"})
    coordination.publish(_seated("node-2.1"), None)
    processes = [family, *family.children()]
    assert main(["kill", "standby", settings.folder]) == 0
    assert _gone(processes)


def test_a_stopped_process_that_is_no_member_any_more_is_still_found(settings: RunSettings) -> None:
    with _started(["understudy.runtime.main", "node", settings.folder, "node-2"]) as process:
        assert main(["kill", "node-2", settings.folder, "--signal", "STOP"]) == 0
        # A process on another core takes a moment to heed a signal.
        assert _soon(lambda: process.status() == psutil.STATUS_STOPPED)
        assert main(["kill", "node-2", settings.folder, "--signal", "CONT"]) == 0
        assert _soon(lambda: process.status() != psutil.STATUS_STOPPED)


def test_status_of_a_run_without_a_gateway_says_so(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = lock_of_run(settings.path)
    lock.take()
    assert main(["status", settings.folder]) == 3
    lock.release()
    assert "has no gateway yet" in capsys.readouterr().err


def test_status_of_a_run_whose_gateway_is_gone_says_where_to_look(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    replace(settings, gateway_port=port).save()
    lock = lock_of_run(settings.path)
    lock.take()
    assert main(["status", settings.folder]) == 3
    err = capsys.readouterr().err
    assert "it starts or hangs, or its gateway does" in err
    assert f"{settings.folder}/logs" in err
    lock.release()
    failed = failure_file(settings.path, "node-1")
    failed.parent.mkdir()
    failed.write_text("column nosuch is missing.\n")
    assert main(["status", settings.folder]) == 3
    err = capsys.readouterr().err
    assert "broke off: it was not stopped. node-1 failed: column nosuch is missing." in err
    assert f"{settings.folder}/logs" in err


def test_status_of_a_run_that_is_done_says_so(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_file(settings.path).touch()
    assert main(["status", settings.folder]) == 3
    assert "has finished" in capsys.readouterr().err


FLOW = """
import understudy as us
flow = us.Flow("copy")
source = flow.source("packets", us.Push("n int, ts timestamp"), time="ts")

@flow.fragment(source, time="ts")
def copy(packets):
    return packets

flow.sink(copy, us.Console())
"""


def test_a_name_that_zookeeper_knows_is_refused(
    settings: RunSettings,
    coordination: Coordination,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    coordination.put_fact(FACT, {"flight": "nowhere", "pid": 1})
    (tmp_path / "flow.py").write_text(FLOW)
    folder = tmp_path / "elsewhere" / settings.run
    arguments = ["--zookeeper", settings.zookeeper, "--folder", str(folder)]
    assert main(["run", str(tmp_path / "flow.py"), *arguments]) == 2
    assert f"knows a run named {settings.run!r} already" in capsys.readouterr().err
    assert not folder.exists()


def test_a_run_whose_processes_still_live_elsewhere_does_not_go_on(
    settings: RunSettings,
    coordination: Coordination,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    replace(settings, flow="copy").save()
    begun_file(settings.path).touch()
    ready_file(settings.path, "node-1").parent.mkdir()
    ready_file(settings.path, "node-1").touch()
    monkeypatch.setattr(run_command, "await_departure", partial(await_departure, wait_s=0.3))
    for name in ("node-1.1", "node-2.1"):
        coordination.join("node", name, {"pid": 2**30, "node": name, "flight": "nowhere"})
    assert main(["run", str(tmp_path / "flow.py"), "--folder", settings.folder]) == 2
    err = capsys.readouterr().err
    assert f"The run in {settings.folder} is still running elsewhere: node-1.1, node-2.1." in err
    assert ready_file(settings.path, "node-1").exists()
    assert RunSettings.load(settings.folder).generation == 1


def test_a_node_of_a_version_that_is_on_trial_is_known_by_both_of_its_names(
    settings: RunSettings, coordination: Coordination
) -> None:
    second = replace(settings, version=2, first_node=3)
    shape = Topology({"copy": ("packets",)}, {"copy": 1}, {"sink:copy": "copy"})
    Candidate(second, Dataflow(shape, {})).save()
    coordination.publish(_seated("node-1.1"), None)
    for name in ("node-3", "node-3.1"):
        with (
            _started(["understudy.runtime.main", "node", settings.folder, "node-3"]) as node,
            Coordination(second.zookeeper, second.coordinates) as beside,
        ):
            beside.join("node", "node-3.1", {"pid": node.pid, "node": "node-3", "flight": "nowhere"})
            beside.join("gateway", "gateway.1", {"pid": 2**30})
            processes = [node, *node.children()]
            assert main(["kill", name, settings.folder]) == 0
            assert _gone(processes)
