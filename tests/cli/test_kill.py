"""`understudy kill` tells a run's own processes from others, and finds the one that goes by a name now."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from understudy.cli import kill
from understudy.cli.main import main
from understudy.runtime.settings import RunSettings

#: Waits until its input closes.
LONELY = "input()"
#: Forks and says the number of what it has forked; both wait until the input closes.
FORKING = "import os; forked = os.fork(); print(forked, flush=True) if forked else 0; input()"
#: The same, but leaves it behind.
LEAVING = "import os; forked = os.fork(); print(forked, flush=True) if forked else input()"


class Processes:
    """Processes that stand in for those of a run."""

    def __init__(self, settings: RunSettings) -> None:
        self._folder = settings.folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, program: str = LONELY) -> int:
        """Start a process under a name of the run; its process id."""
        kind = "gateway" if name == "gateway" else "node"
        return self.start_stranger(program, "understudy.runtime.main", kind, self._folder, name)

    def start_stranger(self, program: str = LONELY, *arguments: str) -> int:
        command = [sys.executable, "-c", program, *arguments]
        self.started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return self.started[-1].pid

    def forked(self) -> int:
        """The process id of what the process started last has forked."""
        output = self.started[-1].stdout
        assert output is not None
        return int(output.readline())

    def end(self) -> None:
        for process in self.started:
            process.kill()
            # This closes its input, so that what it has forked ends, too.
            process.communicate()


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    made = RunSettings(tmp_path.name, "flow.py", str(tmp_path / "run"), "nowhere:1")
    made.save()
    return made


@pytest.fixture
def processes(settings: RunSettings) -> Iterator[Processes]:
    made = Processes(settings)
    yield made
    made.end()


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were to be signalled; none of them is."""
    pids: list[int] = []
    monkeypatch.setattr(kill, "signal_tree", lambda pid, _number: pids.append(pid))
    return pids


def members(**pids: int) -> kill._Known:
    """What ZooKeeper knows of members in their first incarnation."""
    own_names = {f"{name}.1": pid for name, pid in pids.items()}
    return kill._Known({**pids, **own_names}, {f"{name}.1": name for name in pids}, list(own_names), {})


def told(monkeypatch: pytest.MonkeyPatch, **pids: int) -> None:
    monkeypatch.setattr(kill, "_asked", lambda _settings: members(**pids))


@pytest.mark.parametrize("is_member", [True, False], ids=["a member", "no member any more"])
def test_what_a_process_has_forked_is_not_taken_for_it(
    is_member: bool,
    settings: RunSettings,
    processes: Processes,
    signalled: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = processes.start("gateway", FORKING)
    assert psutil.Process(processes.forked()).ppid() == gateway
    told(monkeypatch, **({"gateway": gateway} if is_member else {}))
    assert main(["kill", "gateway", settings.folder]) == 0
    assert signalled == [gateway]


def test_what_a_dead_gateway_has_forked_is_not_taken_for_the_next_one(
    settings: RunSettings, processes: Processes, signalled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.start("gateway", LEAVING)
    left = processes.forked()
    processes.started[0].wait()
    gateway = processes.start("gateway")
    told(monkeypatch)
    assert kill.processes_of(settings)["gateway"] == [left, gateway]
    assert main(["kill", "gateway", settings.folder]) == 0
    assert signalled == [gateway]


@pytest.mark.parametrize("member", [0, 1], ids=["the older", "the younger"])
def test_of_several_processes_of_a_name_the_member_is_meant(
    member: int,
    settings: RunSettings,
    processes: Processes,
    signalled: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [processes.start("gateway") for _ in range(2)]
    told(monkeypatch, gateway=found[member])
    assert main(["kill", "gateway", settings.folder]) == 0
    assert signalled == [found[member]]


def test_a_process_started_again_is_found_while_zookeeper_still_knows_its_predecessor(
    settings: RunSettings, processes: Processes, signalled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, **{"node-1": 2**30})
    node = processes.start("node-1")
    assert main(["kill", "node-1", settings.folder]) == 0
    assert signalled == [node]


def test_the_successor_of_an_incarnation_is_not_taken_for_it(
    settings: RunSettings, processes: Processes, signalled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, **{"node-1": 2**30})
    processes.start("node-1")
    assert main(["kill", "node-1.1", settings.folder]) == 2
    assert not signalled


def test_a_process_that_is_started_while_zookeeper_is_asked_is_found(
    settings: RunSettings, processes: Processes, signalled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill, "_asked", lambda _settings: members(**{"node-1": processes.start("node-1")}))
    assert main(["kill", "node-1", settings.folder]) == 0
    assert signalled == [processes.started[0].pid]


@pytest.mark.parametrize("whose", ["a stranger's", "another node's"])
def test_the_number_of_a_member_elsewhere_is_not_signalled_here(
    whose: str,
    settings: RunSettings,
    processes: Processes,
    signalled: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    number = processes.start_stranger() if whose == "a stranger's" else processes.start("node-1")
    told(monkeypatch, **{"node-2": number})
    for name in ("node-2", "node-2.1"):
        assert main(["kill", name, settings.folder]) == 2
    assert not signalled


def test_a_process_that_only_its_command_line_knows_is_killed(
    settings: RunSettings, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch)
    processes.start("node-1")
    assert main(["kill", "node-1", settings.folder]) == 0
    assert processes.started[0].wait(timeout=10) == -signal.SIGKILL
