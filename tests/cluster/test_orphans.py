"""A command that is killed leaves no process behind, whenever that happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from counting import PUSHED, write_flow

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

MARK = "UNDERSTUDY_TEST_OWNER"
LEFT_AFTER_S = 10.0

#: What a study or a test does: a run without nodes, so without Spark, whose gateway is up.
OWNER = """
import signal, sys, time
from pathlib import Path
from understudy.flow.policy import policy_named
from understudy.runtime.local import LocalRun
from understudy.runtime.settings import RunSettings

flow, folder, then = sys.argv[1:]
settings = RunSettings("owned", flow, folder, "", policy=policy_named("none"))
run = LocalRun.on_own_zookeeper(settings, nodes=0)
run.start()
while run.status() is None:
    time.sleep(0.05)
if then == "stopped":
    run.kill("gateway", signal.SIGSTOP)
print("up", flush=True)
time.sleep(1000)
"""


class Owner:
    """A command, and all that it started: found by a mark in the environment, which all of them inherit."""

    def __init__(self, *command: str) -> None:
        self._mark = uuid.uuid4().hex
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), MARK: self._mark}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def family(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def commands(self) -> list[str]:
        return [" ".join(process.cmdline()) for process in self.family() if process.is_running()]

    def left_after(self, number: signal.Signals) -> list[str]:
        """Kill the command itself; what still runs when it should all be gone."""
        self.process.send_signal(number)
        deadline = time.monotonic() + LEFT_AFTER_S
        while self.family() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.commands()

    def end(self) -> None:
        for process in self.family():
            process.kill()
        self.process.communicate()


@pytest.fixture
def owner() -> Iterator[Callable[..., Owner]]:
    owners: list[Owner] = []

    def begin(*command: str) -> Owner:
        owners.append(Owner(sys.executable, *command))
        return owners[-1]

    yield begin
    for each in owners:
        each.end()


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.01)


@pytest.mark.parametrize("gateway", ["running", "stopped"])
def test_an_owner_that_is_killed_takes_its_gateway_and_zookeeper_along(
    owner: Callable[..., Owner], tmp_path: Path, gateway: str
) -> None:
    study = owner("-c", OWNER, str(write_flow(tmp_path, PUSHED)), str(tmp_path / "run"), gateway)
    assert study.process.stdout is not None
    assert study.process.stdout.readline() == "up\n"
    assert study.left_after(signal.SIGKILL) == []


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("ZooKeeper starts", signal.SIGKILL),
        ("ZooKeeper starts", signal.SIGTERM),
        ("Spark starts", signal.SIGKILL),
        ("Spark starts", signal.SIGTERM),
        ("a node is ready", signal.SIGKILL),
        ("it ends", signal.SIGKILL),
    ],
)
def test_a_run_that_is_killed_leaves_nothing(
    owner: Callable[..., Owner], tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    flow, folder = write_flow(tmp_path, PUSHED), tmp_path / "run"
    run = owner(
        *["-m", "understudy.cli.main", "run", str(flow), "--folder", str(folder), "--plain"],
        *["--policy", "none", "--heap", "512"],
    )
    match moment:
        case "ZooKeeper starts":
            until(lambda: any("ZooKeeperServerMain" in line for line in run.commands()))
        case "Spark starts":
            until(lambda: any("SparkSubmit" in line for line in run.commands()))
        case _:
            until((folder / "ready" / "node-1").exists)
    if moment == "it ends":
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert run.left_after(number) == []
