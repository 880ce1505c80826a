"""A command that ends leaves no process behind, whenever it is killed, and says why if the flow is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from counting import PUSHED, write_flow
from owning import Owner, until

from understudy.cli.main import main

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

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


@pytest.mark.parametrize("gateway", ["running", "stopped"])
def test_an_owner_that_is_killed_takes_its_gateway_and_zookeeper_along(
    owner: Callable[..., Owner], tmp_path: Path, gateway: str
) -> None:
    study = owner("-c", OWNER, str(write_flow(tmp_path, PUSHED)), str(tmp_path / "run"), gateway)
    assert study.process.stdout is not None
    assert study.process.stdout.readline() == "up\n"
    assert study.left_after(signal.SIGKILL) == []


def run_once(flow: Path, folder: Path) -> list[str]:
    command = ["-m", "understudy.cli.main", "run", str(flow), "--folder", str(folder), "--plain"]
    return [*command, "--policy", "none", "--heap", "512"]


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
    folder = tmp_path / "run"
    run = owner(*run_once(write_flow(tmp_path, PUSHED), folder))
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


def test_a_flow_that_was_lost_is_still_said_to_be_when_its_run_has_ended(
    owner: Callable[..., Owner], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    run = owner(*run_once(write_flow(tmp_path, PUSHED), folder), "--snapshot-every", "0")
    until(lambda: "ACTIVE" in status(folder, capsys))
    assert main(["kill", "node-1", str(folder)]) == 0
    said, _ = run.process.communicate(timeout=60)
    assert "The flow is lost: counts/0: No copy holds the state any more" in said
    assert run.process.returncode == 1
    assert run.family() == []
    assert "flow failed: counts/0: No copy holds the state any more" in status(folder, capsys)


def status(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    main(["status", str(folder)])
    said = capsys.readouterr()
    return said.out + said.err
