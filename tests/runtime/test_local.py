"""The processes of a run while it is upgraded, with programs in their places that do nothing."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from process_kit import runs
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime import children, local
from understudy.runtime.children import Child
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.folder_lock import lock_of_run
from understudy.runtime.local import LocalRun
from understudy.runtime.process import failure_file, ready_file
from understudy.runtime.pulse import Pulse, pulse_file
from understudy.runtime.settings import RunSettings
from understudy.runtime.stopped import Stopped, leave_stopped, stopped_in
from understudy.runtime.upgrade_files import FOLDER, REQUEST, Request
from upgrade_kit import LIVE, NEAR, SHAPE, pin_new_code

FLOW = """
import understudy as us
flow = us.Flow("small")
rows = flow.source("rows", us.Push("n int, ts timestamp"), time="ts")

@flow.fragment(rows, time="ts")
def same(rows):
    return rows

flow.sink(same, us.Console())
"""
WAITS = ("sleep", "1000")
#: Ends as over a mistake in the user's code, as soon as it hears a signal.
ERRS = ("sh", "-c", f"trap 'exit {UserError.exit_code}' USR1; echo ready; while true; do sleep 0.1; done")
#: Does not end when it is asked to.
STUBBORN = ("sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done")


class Programs:
    """What is run in the place of each process, by its name; and all that was started."""

    def __init__(self) -> None:
        self.of: dict[str, tuple[str, ...]] = {}
        self.started: list[str] = []

    def start(
        self, settings: RunSettings, name: str, command: list[str], incarnation: int = 1, failures: int = 0
    ) -> Child:
        self.started.append(name)
        ready_file(settings.path, name).unlink(missing_ok=True)
        process = subprocess.Popen(
            self.of.get(name, WAITS), stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        pulse = Pulse(pulse_file(settings.path, name))
        return Child(name, command, process, pulse, incarnation, failures=failures)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    made = Programs()
    monkeypatch.setattr(local, "started", made.start)
    monkeypatch.setattr(children, "RETRY_PAUSE_S", 0.05)
    monkeypatch.setattr(local, "RESPAWN_PAUSE_S", 0.0)
    return made


@pytest.fixture
def run(tmp_path: Path, programs: Programs) -> Iterator[LocalRun]:
    """A run of two nodes that has begun. Its gateway has no port, so it answers nothing."""
    (tmp_path / "flow.py").write_text(FLOW)
    settings = RunSettings("run", str(tmp_path / "flow.py"), str(tmp_path / "run"), "", gateway_port=1)
    with LocalRun(settings, nodes=2, respawn=True) as made:
        made.start()
        for name in ("gateway", "node-1", "node-2"):
            come_up(made, name)
        made.check()
        yield made


def come_up(run: LocalRun, name: str) -> None:
    file = ready_file(run.settings.path, name)
    file.parent.mkdir(exist_ok=True)
    file.touch()


def asked_for_version_2(run: LocalRun) -> RunSettings:
    settings = replace(run.settings, version=2, first_node=3)
    pin_new_code(settings)
    Request(settings, SHAPE, 10.0, 100_000).leave()
    return settings


def catching_up(run: LocalRun) -> None:
    """Let the run be upgraded so far that nodes 3 and 4 have come up."""
    settings = asked_for_version_2(run)
    run.upgrading.look(None)
    for name in settings.node_names:
        run.upgrading.look(None)
        come_up(run, name)
    run.upgrading.look(None)


def on_trial(run: LocalRun) -> None:
    catching_up(run)
    for seen in (NEAR, NEAR, LIVE):
        run.upgrading.look(seen)


def is_ready(run: LocalRun, name: str) -> None:
    """It hears signals from here on."""
    output = run.children[name].process.stdout
    assert output is not None
    assert output.readline() == b"ready\n"


def errs(run: LocalRun, name: str) -> None:
    run.children[name].process.send_signal(signal.SIGUSR1)
    ended(run, name)


def ended(run: LocalRun, name: str) -> None:
    run.children[name].process.wait(10)


# --- what is started again, and what ends the run -----------------------------------------------------------


def test_a_node_of_the_version_that_may_go_is_not_started_again_and_the_others_are(
    run: LocalRun, programs: Programs
) -> None:
    catching_up(run)
    del programs.started[:]
    for name in ("node-2", "node-4"):
        run.kill(name)
        ended(run, name)
    run.check()
    assert programs.started == ["node-2"]


def test_a_mistake_in_a_node_of_the_new_version_does_not_end_the_run(
    run: LocalRun, programs: Programs
) -> None:
    programs.of["node-4"] = ("sh", "-c", f"exit {UserError.exit_code}")
    catching_up(run)
    ended(run, "node-4")
    run.check()
    assert run.why_gone("node-4") is not None
    run.upgrading.look(None)
    assert "taking the new version back: node-4 has ended: It gave no reason (exit code 2)" in " ".join(
        run.upgrading.news()
    )


def test_a_node_that_was_held_back_and_fails_does_not_end_a_run_that_delivers(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.os, "cpu_count", lambda: 2)
    programs.of["node-2"] = ("sh", "-c", "exit 3")
    (tmp_path / "flow.py").write_text(FLOW)
    settings = RunSettings("run", str(tmp_path / "flow.py"), str(tmp_path / "run"), "", gateway_port=1)
    with LocalRun(replace(settings, generation=2), nodes=2, respawn=True) as resumed:
        resumed.start()
        for name in ("gateway", "node-1"):
            come_up(resumed, name)
        resumed.check()
        assert resumed.held_back == ["node-2"]
        resumed.start_node("node-2", 1)
        ended(resumed, "node-2")
        resumed.check()
        assert resumed.setbacks["node-2"].failures == 1


def gateway_that_errs(run: LocalRun, programs: Programs) -> None:
    """A gateway that had come up ends as over a mistake in the user's code, and the next one works."""
    programs.of["gateway"] = ERRS
    run.kill("gateway")
    ended(run, "gateway")
    run.check()
    is_ready(run, "gateway")
    come_up(run, "gateway")
    failure_file(run.settings.path, "gateway").parent.mkdir()
    failure_file(run.settings.path, "gateway").write_text("sink 'out': KeyError: 'n'.\n")
    programs.of["gateway"] = WAITS
    errs(run, "gateway")


def test_a_mistake_that_the_gateway_meets_ends_the_run(run: LocalRun, programs: Programs) -> None:
    gateway_that_errs(run, programs)
    with pytest.raises(UserError, match="gateway failed: sink 'out': KeyError: 'n'"):
        run.check()


def test_a_mistake_that_the_gateway_meets_in_what_a_version_on_trial_puts_out_takes_that_back(
    run: LocalRun, programs: Programs
) -> None:
    on_trial(run)
    gateway_that_errs(run, programs)
    del programs.started[:]
    run.check()
    run.upgrading.look(None)
    assert run.upgrading.news()[-1] == (
        "taking the new version back: the gateway failed: sink 'out': KeyError: 'n'."
    )
    deadline_s = time.monotonic() + 20.0
    while not programs.started:
        run.check()
        assert time.monotonic() < deadline_s
    assert programs.started == ["gateway"]


def test_a_gateway_that_is_killed_on_trial_is_only_started_again(run: LocalRun, programs: Programs) -> None:
    on_trial(run)
    run.upgrading.news()
    run.kill("gateway")
    ended(run, "gateway")
    del programs.started[:]
    run.check()
    run.upgrading.look(None)
    assert programs.started == ["gateway"]
    assert run.upgrading.news() == []


def test_a_run_that_saves_its_last_states_takes_a_version_on_trial_back(run: LocalRun) -> None:
    on_trial(run)
    run.upgrading.news()
    assert not run.save_and_hold(), "nothing listens on its port"
    run.status()
    assert run.upgrading.news() == ["taking the new version back: the run is being stopped"]


# --- nodes of a version that is over ------------------------------------------------------------------------


def test_nodes_of_a_version_that_is_over_are_forgotten_at_once_and_end_beside_everything_else(
    run: LocalRun, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that had failed must not end the run while the others still end."""
    monkeypatch.setattr(children, "STOP_TIMEOUT_S", 1.0)
    programs.of |= {"node-3": ERRS, "node-4": STUBBORN}
    catching_up(run)
    stubborn = psutil.Process(run.pid("node-4"))
    for name in ("node-3", "node-4"):
        is_ready(run, name)
    errs(run, "node-3")
    over = threading.Event()
    run.end_nodes(["node-3", "node-4"], over.set)
    assert set(run.children) == {"gateway", "node-1", "node-2"}
    run.check()
    assert not over.is_set()
    assert over.wait(20)
    assert not runs(stubborn)


def test_a_run_that_ends_waits_for_nodes_of_a_version_that_is_over(
    run: LocalRun, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.of["node-4"] = STUBBORN
    catching_up(run)
    stubborn = psutil.Process(run.pid("node-4"))
    is_ready(run, "node-4")
    monkeypatch.setattr(children, "STOP_TIMEOUT_S", 0.5)
    run.end_nodes(["node-4"], lambda: None)
    run.stop()
    assert not runs(stubborn)


def test_nodes_that_are_forgotten_already_are_no_trouble(run: LocalRun) -> None:
    over = threading.Event()
    run.end_nodes(["node-9"], over.set)
    assert over.wait(10)


# --- why a process is gone ----------------------------------------------------------------------------------


def test_a_process_that_was_killed_is_said_to_be_and_why_that_may_be(run: LocalRun) -> None:
    assert (run.why_gone("node-1"), run.why_failed("node-1")) == (None, None)
    failure_file(run.settings.path, "node-1").parent.mkdir()
    failure_file(run.settings.path, "node-1").write_text("what the one before it left")
    run.kill("node-1", signal.SIGKILL)
    ended(run, "node-1")
    assert run.why_gone("node-1") == (
        f"SIGKILL killed it; the system does that if memory runs short. See {run.settings.path / 'logs'}."
    )
    assert run.why_failed("node-1") is None


def test_a_process_that_stood_still_is_said_to_have(run: LocalRun) -> None:
    run.children["node-1"].give_up()
    assert (run.why_gone("node-1") or "").startswith("It stood still for long and was killed.")


def test_a_process_that_failed_has_left_its_reason(run: LocalRun, programs: Programs) -> None:
    programs.of["node-3"] = ("sh", "-c", "exit 3")
    run.start_node("node-3", 1)
    ended(run, "node-3")
    assert "It gave no reason (exit code 3)" in (run.why_failed("node-3") or "")
    failure_file(run.settings.path, "node-3").parent.mkdir()
    failure_file(run.settings.path, "node-3").write_text("the disk is full.\n")
    assert run.why_failed("node-3") == run.why_gone("node-3") == "the disk is full."


# --- the start ----------------------------------------------------------------------------------------------


@pytest.fixture
def beside_zookeeper(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], None]], LocalRun]:
    """A run whose ZooKeeper does this when it is waited for; it does nothing else."""

    def make(awaited: Callable[[], None]) -> LocalRun:
        (tmp_path / "flow.py").write_text(FLOW)
        settings = RunSettings("run", str(tmp_path / "flow.py"), str(tmp_path / "run"), "", gateway_port=1)
        monkeypatch.setattr(ZooKeeperServer, "begin", lambda _: programs.started.append("zookeeper"))
        monkeypatch.setattr(ZooKeeperServer, "start", lambda _: awaited())
        return LocalRun.on_own_zookeeper(settings, nodes=2)

    return make


def test_nodes_start_beside_the_zookeeper_of_the_run_and_the_gateway_when_it_answers(
    beside_zookeeper: Callable[[Callable[[], None]], LocalRun], programs: Programs
) -> None:
    with beside_zookeeper(lambda: programs.started.append("it answers")) as run:
        run.start()
    assert programs.started == ["zookeeper", "node-1", "node-2", "it answers", "gateway"]


def test_a_zookeeper_that_does_not_answer_leaves_nothing_behind(
    beside_zookeeper: Callable[[Callable[[], None]], LocalRun],
) -> None:
    def never() -> None:
        raise EnvironmentFailed("ZooKeeper did not answer")

    with (
        pytest.raises(EnvironmentFailed, match="did not answer"),
        beside_zookeeper(never) as run,
    ):
        try:
            run.start()
        finally:
            begun = [child.process for child in run.children.values()]
            assert len(begun) == 2
    assert all(process.poll() is not None for process in begun)
    assert not lock_of_run(run.settings.path).is_held()


# --- the settings -------------------------------------------------------------------------------------------


def test_settings_that_the_disk_does_not_take_are_not_those_of_the_run(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run.settings

    def full(_file: Path, _target: Path) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(EnvironmentFailed, match="cannot be written: No space left on device"):
            run.go_on_as(replace(before, versions_tried=2))
    assert run.settings == RunSettings.load(before.path) == before
    run.go_on_as(replace(before, versions_tried=2))
    assert run.settings == RunSettings.load(before.path) == replace(before, versions_tried=2)


def test_what_is_over_goes_while_no_upgrade_goes_on(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[int, int]] = []

    def look(settings: RunSettings, status: dict[str, Any]) -> None:
        looked.append((settings.version, status["epoch"]))

    answer = {"epoch": 7, "rows_out": {}, "version": 1, "candidate": None, "waiting_for_room": []}
    monkeypatch.setattr(run._status, "ask", lambda _timeout_s: answer)
    monkeypatch.setattr(run._former_trees, "look", look)
    run.status()
    assert looked == [(1, 7)]
    asked_for_version_2(run)
    run.status()
    run.status()
    assert looked == [(1, 7)], "a version that begins is not over"


def test_a_request_is_taken_up_by_whoever_asks_for_the_status(run: LocalRun) -> None:
    asked_for_version_2(run)
    assert run.status() is None
    assert not (run.settings.path / FOLDER / REQUEST).exists()
    assert run.upgrading.news() == ["starting node-3, node-4 with the new code, version 2"]


def test_every_look_bounds_what_processes_print(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded: list[Path] = []
    monkeypatch.setattr(local, "bound_printed", bounded.append)
    run.check()
    assert bounded == [run.settings.path]


def test_a_run_that_is_stopped_leaves_a_mark_before_another_can_begin(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []
    honest = local.leave_stopped

    def leave(folder: Path, stopped: Stopped) -> None:
        held.append(lock_of_run(folder).is_held())
        honest(folder, stopped)

    monkeypatch.setattr(local, "leave_stopped", leave)
    run.mark_as_stopped(all_saved=True)
    assert stopped_in(run.settings.path) is None, "it still runs"
    run.stop()
    assert (stopped_in(run.settings.path), held) == (Stopped(all_saved=True), [True])


def test_a_run_that_breaks_off_leaves_no_mark_not_even_that_of_an_earlier_stop(
    tmp_path: Path, programs: Programs
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    settings = RunSettings("run", str(tmp_path / "flow.py"), str(tmp_path / "run"), "", gateway_port=1)
    settings.save()
    leave_stopped(settings.path, Stopped(all_saved=True))
    with LocalRun(settings, nodes=1) as made:
        made.start()
        assert stopped_in(settings.path) is None
    assert stopped_in(settings.path) is None
