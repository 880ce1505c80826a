"""The JVM and its owner end together, and neither leaves the other waiting."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "own_jvm.py"), request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("owner", ["wait"], indirect=True)
@pytest.mark.parametrize("stopped", [False, True])
def test_the_jvm_ends_when_its_owner_is_killed(owner: subprocess.Popen[str], stopped: bool) -> None:
    assert owner.stdout is not None
    jvm = psutil.Process(int(owner.stdout.readline()))
    if stopped:
        jvm.suspend()
    owner.kill()
    try:
        jvm.wait(timeout=30)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            jvm.kill()


@pytest.mark.parametrize("owner", ["advance"], indirect=True)
def test_an_advance_fails_when_the_jvm_is_killed(owner: subprocess.Popen[str]) -> None:
    said, _ = owner.communicate(timeout=120)
    assert said.startswith("EnvironmentFailed: fragment 'orphan': the JVM that Spark runs in has ended")
