"""Schedules that several processes share."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time

import psutil
import pytest

from understudy.sim.checkers import Violation
from understudy.sim.jobs import SEEDS_AT_A_TIME, simulate_on


@pytest.mark.parametrize("upgrades", [False, True])
def test_shared_seeds_come_to_the_same_as_those_of_one_process(upgrades: bool) -> None:
    seeds = 2 * SEEDS_AT_A_TIME + 3
    alone, shared = (simulate_on(jobs, "none", seeds, 7, upgrades=upgrades) for jobs in (1, 2))
    assert shared.seeds == alone.seeds == seeds
    assert (shared.steps, shared.buckets, shared.faults) == (alone.steps, alone.buckets, alone.faults)
    assert (shared.happened["upgrades"] > 0) == upgrades


def test_a_violation_keeps_its_name_between_processes() -> None:
    found = pickle.loads(pickle.dumps(Violation("kept", "a bucket is gone")))
    assert (found.invariant, found.what) == ("kept", "a bucket is gone")


def test_no_process_outlives_a_parent_that_is_killed() -> None:
    program = "from understudy.sim.jobs import simulate_on\nsimulate_on(2, 'pair', 10**6)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as parent:
        started = psutil.Process(parent.pid)
        deadline = time.monotonic() + 30
        while len(started.children()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        children = started.children()
        parent.send_signal(signal.SIGKILL)
    left = psutil.wait_procs(children, timeout=10)[1]
    for child in left:
        child.kill()
    assert len(children) >= 2
    assert not left
