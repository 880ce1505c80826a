"""Our own ZooKeeper server: starting, ending, and what can be in its way."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from process_kit import runs
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.coordination import server as module
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.server import HOST, WRAPPER, ZooKeeperServer

pytestmark = pytest.mark.zookeeper


def test_it_listens_on_one_loopback_port_and_nowhere_else(shared_server: ZooKeeperServer) -> None:
    sockets = psutil.Process(shared_server.pid).net_connections(kind="inet")
    listening = [s.laddr for s in sockets if s.status == psutil.CONN_LISTEN]
    assert [(at.port, at.ip.removeprefix("::ffff:")) for at in listening] == [(shared_server.port, HOST)]


def test_what_was_stored_is_there_after_a_restart_on_the_same_port(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path)
    with server, Coordination(server.address, "run") as connection:
        connection.put_fact("answer", {"value": 42})
    assert not server.running
    with server, Coordination(server.address, "run") as connection:
        assert connection.get_fact("answer") == {"value": 42}


@pytest.mark.parametrize("name", ["räu m 50%41 #1+x", "a\\tmp", "戏\U0001f3ad", "x=y:z!"])
def test_its_data_is_in_its_folder_whatever_the_name_of_that(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "zookeeper"
    with ZooKeeperServer(folder) as server, Coordination(server.address, "run") as connection:
        connection.put_fact("answer", {"value": 42})
    assert list((folder / "data" / "version-2").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentFailed, match=f"{HOST}:{port}.*choose another"):
            ZooKeeperServer(tmp_path, port).start()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(EnvironmentFailed, match=r"nowhere/bin/java.*UNDERSTUDY_JAVA_HOME"):
        ZooKeeperServer(tmp_path).start()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailed, match="file/below cannot be written"):
        ZooKeeperServer(tmp_path / "file" / "below").start()


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("where a folder should be")
    with pytest.raises(EnvironmentFailed, match=r"(?s)ended while starting.*version-2"):
        server.start()
    assert not server.running


OWNER = """
import sys
from pathlib import Path
from understudy.runtime.coordination.server import ZooKeeperServer
print(ZooKeeperServer(Path(sys.argv[1])).start().pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("end", "stopped"), [(signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGKILL, True)]
)
def test_it_ends_with_its_owner(tmp_path: Path, end: signal.Signals, stopped: bool, eventually: Any) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert owner.stdout is not None
    java = psutil.Process(int(owner.stdout.readline()))
    if stopped:
        java.suspend()
    owner.send_signal(end)
    owner.wait()
    owner.stdout.close()
    eventually(lambda: not runs(java))


def test_java_ends_although_its_owner_is_killed_before_it_could_hear_of_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    # No process reads what the shell prints, as when the owner is gone by then: that ends the shell.
    os.close(reading)
    program = f"echo $$ > {tmp_path}/half; mv {tmp_path}/half {tmp_path}/pid; exec sleep 1000"
    shell = subprocess.Popen(
        ["/bin/sh", "-c", WRAPPER, "zookeeper", "/bin/sh", "-c", program],
        stdin=subprocess.PIPE,
        stdout=writing,
    )
    os.close(writing)
    while not (tmp_path / "pid").exists():
        time.sleep(0.005)
    java = psutil.Process(int((tmp_path / "pid").read_text()))
    try:
        shell.communicate()
        java.wait(10)
    finally:
        if java.is_running():
            java.kill()


@pytest.mark.parametrize(("program", "code"), [("sleep 0.1", 0), ("exit 7", 7), ("kill -9 $$", 128 + 9)])
def test_no_shell_outlives_java_to_kill_what_has_its_process_id_by_then(
    program: str, code: int, eventually: Any
) -> None:
    shell = subprocess.Popen(
        ["/bin/sh", "-c", WRAPPER, "zookeeper", "/bin/sh", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    assert shell.stderr is not None
    with shell.stdin, shell.stdout, shell.stderr:
        assert shell.wait(10) == code
        assert int(shell.stdout.readline()) > 0
        eventually(lambda: not _group(shell.pid))


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, signal.Signals]]:
    """The numbers of processes and groups that are signalled, and how; all of it happens."""
    found: list[tuple[int, signal.Signals]] = []

    def noting(honest: Callable[[int, signal.Signals], None]) -> Callable[[int, signal.Signals], None]:
        def send(to: int, number: signal.Signals) -> None:
            found.append((to, number))
            honest(to, number)

        return send

    for name in ("kill", "killpg"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    return found


@pytest.fixture
def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ZooKeeperServer:
    """A server with a program in the place of Java that does nothing, and counts as one that answers."""
    monkeypatch.setattr(ZooKeeperServer, "_command", lambda _self: ["sleep", "1000"])
    monkeypatch.setattr(module, "_answers", lambda _port: True)
    return ZooKeeperServer(tmp_path)


def test_a_server_that_died_is_stopped_without_a_signal_to_its_numbers(
    without_java: ZooKeeperServer, signals: list[tuple[int, signal.Signals]], eventually: Any
) -> None:
    psutil.Process(without_java.start().pid).kill()
    eventually(lambda: not without_java.running)
    signals.clear()
    without_java.stop()
    assert signals == []


def test_a_start_that_fails_does_not_signal_the_java_of_an_earlier_one(
    without_java: ZooKeeperServer,
    signals: list[tuple[int, signal.Signals]],
    monkeypatch: pytest.MonkeyPatch,
    eventually: Any,
) -> None:
    earlier = without_java.start().pid
    psutil.Process(earlier).kill()
    eventually(lambda: not without_java.running)
    monkeypatch.setattr(module, "WRAPPER", "exec >/dev/null; sleep 1000")
    signals.clear()
    with pytest.raises(EnvironmentFailed, match="Java cannot be started"):
        without_java.start()
    assert earlier not in [to for to, _ in signals]


def test_a_server_is_ended_before_the_shell_that_watches_could_see_its_pipe_close(
    without_java: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    process = without_java.start()._process
    assert process is not None
    assert process.stdin is not None
    pipe, honest = process.stdin, os.killpg

    def end(group: int, number: signal.Signals) -> None:
        closed.append(pipe.closed)
        honest(group, number)

    monkeypatch.setattr(os, "killpg", end)
    without_java.stop()
    assert closed == [False]


def test_a_server_whose_shell_is_stopped_too_can_be_killed(tmp_path: Path, eventually: Any) -> None:
    server = ZooKeeperServer(tmp_path).start()
    group = os.getpgid(server.pid)
    os.killpg(group, signal.SIGSTOP)
    server.kill()
    assert not server.running
    eventually(lambda: not _group(group))


def test_a_server_that_does_not_answer_in_time_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    groups: list[int] = []

    def never(_port: int) -> bool:
        groups.append(os.getpgid(server.pid))
        return False

    server = ZooKeeperServer(tmp_path)
    monkeypatch.setattr(module, "READY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(module, "_answers", never)
    with pytest.raises(EnvironmentFailed, match="did not answer"):
        server.start()
    eventually(lambda: not _group(groups[0]))


def _group(group: int) -> list[psutil.Process]:
    """The processes of a group that have not ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def test_a_shell_that_cannot_start_java_is_reported_with_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRAPPER", "echo no memory >&2")
    with pytest.raises(EnvironmentFailed, match=r"(?s)Java cannot be started.*no memory"):
        ZooKeeperServer(tmp_path).start()
