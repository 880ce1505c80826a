"""Before a run goes on, the processes of its last generation must be gone from a ZooKeeper that it shares."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.going_on import await_departure, next_generation
from understudy.runtime.settings import RunSettings

pytestmark = pytest.mark.zookeeper

WAIT_S = 30.0


@pytest.fixture
def former(cluster: Any, tmp_path: Path) -> RunSettings:
    return RunSettings(cluster.run, "flow.py", str(tmp_path), cluster.server.address)


def test_members_that_live_elsewhere_are_named(cluster: Any, former: RunSettings) -> None:
    cluster.process("node-1.1")
    cluster.process("node-2.3")
    with pytest.raises(UserError, match=r"is still running elsewhere: node-1\.1, node-2\.3\. Stop these"):
        await_departure(former, wait_s=0.3)


def test_members_that_are_about_to_leave_are_waited_for(cluster: Any, former: RunSettings) -> None:
    """ZooKeeper notices the end of one that was killed only after a while."""
    process = cluster.process("node-1.1")
    threading.Timer(0.5, process.kill).start()
    await_departure(former, wait_s=WAIT_S)
    assert process.wait(WAIT_S) != 0


def test_a_run_that_nobody_is_a_member_of_goes_on_at_once(cluster: Any, former: RunSettings) -> None:
    await_departure(former, wait_s=0.0)


def test_members_of_another_generation_and_of_other_runs_are_not_in_the_way(
    cluster: Any, former: RunSettings
) -> None:
    cluster.process("node-1.1")
    await_departure(next_generation(former), wait_s=0.0)
    await_departure(replace(former, run=f"{former.run}-other"), wait_s=0.0)


def test_a_zookeeper_that_does_not_answer_is_no_proof_that_they_are_gone(former: RunSettings) -> None:
    with pytest.raises(EnvironmentFailed, match="does not answer"):
        await_departure(replace(former, zookeeper="127.0.0.1:1"), wait_s=0.0)
