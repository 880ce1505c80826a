"""One run at a time in a folder; the lock goes with its owner and with nobody else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import understudy as us
from disk_kit import DiskRecord
from process_kit import runs
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.loading import load
from understudy.flow.policy import policy_named
from understudy.runtime.folder_lock import FolderLock, lock_of_run, locks_of_outputs
from understudy.runtime.local import LocalRun
from understudy.runtime.settings import RunSettings

#: Holds a folder, starts a process that inherits all that it may, says its number, and waits.
OWNER = """
import subprocess, sys
from pathlib import Path
from understudy.runtime.folder_lock import lock_of_run

lock_of_run(Path(sys.argv[1])).take()
child = subprocess.Popen(["sleep", "1000"], close_fds=False)
print(child.pid, flush=True)
input()
"""

FLOW = """
import understudy as us
flow = us.Flow("copy")
source = flow.source("packets", us.Push("n int, ts timestamp"), time="ts")

@flow.fragment(source, time="ts")
def copy(packets):
    return packets

flow.sink(copy, us.Console())
"""


def test_the_folder_that_it_makes_outlives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is in such a folder: a push that is answered must not be lost with its name."""
    disk = DiskRecord(tmp_path, monkeypatch)
    lock = lock_of_run(tmp_path / "made" / "run")
    lock.take()
    assert disk.steps == ["sync .", "sync made"]
    lock.release()


def test_a_folder_is_held_by_one_and_free_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "run"
    first, second = lock_of_run(folder), lock_of_run(folder)
    first.take()
    first.take()
    said = r"made/run is in use by another run, .*still running\. Stop it with `understudy stop .*made/run`"
    with pytest.raises(UserError, match=said):
        second.take()
    first.release()
    second.take()
    second.release()


def test_a_command_that_only_looks_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    """To look is to hold the lock for a moment."""
    lock = lock_of_run(tmp_path)
    lock.take()
    lock.release()
    with lock.file.open() as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        threading.Timer(0.1, lambda: fcntl.flock(looked_at, fcntl.LOCK_UN)).start()
        lock.take()
    assert lock.is_held()
    lock.release()


def test_a_lock_tells_which_process_holds_it_and_nothing_of_one_that_did(tmp_path: Path) -> None:
    lock, other = lock_of_run(tmp_path), lock_of_run(tmp_path)
    assert other.holder() is None
    lock.take()
    assert other.holder() == os.getpid()
    (tmp_path / "lock").write_text("")
    assert other.holder() is None, "it could not leave its number"
    (tmp_path / "lock").write_text("123456789\n")
    lock.release()
    assert other.holder() is None, "what is left of a former holder may be the number of a stranger now"
    lock.take()
    assert other.holder() == os.getpid()
    lock.release()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailed, match=r"file/run cannot be used"):
        lock_of_run(tmp_path / "file" / "run").take()


def test_a_process_that_outlives_a_killed_owner_does_not_hold_its_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert owner.stdout is not None
    child = psutil.Process(int(owner.stdout.readline()))
    try:
        with pytest.raises(UserError, match="in use"):
            lock_of_run(tmp_path).take()
        owner.kill()
        owner.wait()
        assert runs(child)
        lock = lock_of_run(tmp_path)
        lock.take()
        lock.release()
    finally:
        child.kill()
        owner.kill()
        owner.communicate()


@pytest.mark.parametrize("zookeeper", ["", "127.0.0.1:1"], ids=["of its own", "outside"])
def test_a_run_in_a_folder_that_another_run_holds_starts_nothing(tmp_path: Path, zookeeper: str) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    flow, folder = str(tmp_path / "flow.py"), tmp_path / "run"
    settings = RunSettings("run", flow, str(folder), zookeeper, policy=policy_named("none"))
    other = lock_of_run(folder)
    other.take()
    with pytest.raises(UserError, match="is in use by another run"):
        if zookeeper:
            LocalRun(settings, nodes=0).start()
        else:
            LocalRun.on_own_zookeeper(settings, nodes=0)
    assert [file.name for file in folder.iterdir()] == ["lock"]
    other.release()


def test_a_run_does_not_write_where_another_run_is_about_to(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        FLOW.replace("us.Console()", f"us.JsonLines({str(tmp_path / 'out')!r})")
    )
    settings = RunSettings("run", str(tmp_path / "flow.py"), str(tmp_path / "run"), "127.0.0.1:1")
    (lock,) = locks_of_outputs(load(settings.flow_path))
    lock.take()
    run = LocalRun(settings, nodes=0)
    with pytest.raises(UserError, match=r"sink 'copy': another run writes to .*/out\."):
        run.start()
    assert run.children == {}
    lock.release()
    (again,) = locks_of_outputs(load(settings.flow_path))
    again.take()
    assert us.JsonLines(tmp_path / "out").earlier_output() is None
    again.release()


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_file_in_the_place_of_a_folder_is_called_one(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailed, match="a file is in its place, or above it"):
        FolderLock(tmp_path / folder, "The folder", ValueError()).take()
