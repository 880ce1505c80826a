"""`understudy run` on a folder that holds something: what goes on, what is refused, and that a refusal leaves
everything as it was.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from understudy.cli import run as module
from understudy.cli.main import main
from understudy.flow.loading import load
from understudy.runtime import fit
from understudy.runtime.candidate import Candidate, candidate_in
from understudy.runtime.folder_lock import FolderLock, lock_of_run
from understudy.runtime.local import LocalRun
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.pinning import load_pinned, pin_shape
from understudy.runtime.process import begun_file, finished_file, seated_file
from understudy.runtime.settings import RunSettings

FLOW = """
import understudy as us
flow = us.Flow("copy")
source = flow.source("packets", us.Push("n int, ts timestamp"), time="ts")

@flow.fragment(source, time="ts")
def copy(packets):
    return packets

flow.sink(copy, us.JsonLines("out"))
"""
Contents = dict[str, bytes]


class Started(Exception):
    """The run would start now."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings.run)
        self.settings = settings


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(FLOW)
    return tmp_path


@pytest.fixture
def former(here: Path) -> RunSettings:
    """A run that had begun and was stopped."""
    made = RunSettings("run", str(here / "flow.py"), str(here / "run"), "", own_zookeeper=True, flow="copy")
    made.save()
    begun_file(made.path).touch()
    for name in ("lock", "ready/gateway", "log/1.wal", "flow.json"):
        (made.path / name).parent.mkdir(exist_ok=True)
        (made.path / name).touch()
    (made.path / "logs").mkdir()
    return made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunSettings]]:
    """Runs the command as far as anything would start; with which settings."""

    def start(settings: RunSettings, **_: object) -> LocalRun:
        raise Started(settings)

    monkeypatch.setattr(LocalRun, "on_own_zookeeper", start)

    def run(*options: str, flow: str = "flow.py") -> RunSettings:
        with pytest.raises(Started) as would:
            main(["run", flow, "--folder", "run", "--plain", *options])
        return would.value.settings

    yield run


def contents(folder: Path) -> Contents:
    """All files of a run's folder but the lock, which tells who held it last."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != "lock"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def refused(*options: str, flow: str = "flow.py") -> int:
    return main(["run", flow, "--folder", "run", "--plain", *options])


# --- it goes on ---------------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_goes_on_as_its_next_generation(
    former: RunSettings, started: Callable[..., RunSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    again = started()
    assert (again.run, again.generation, again.folder) == ("run", 2, former.folder)
    assert "goes on from its log: no state was saved yet" in capsys.readouterr().out
    assert RunSettings.load(former.path).generation == 1, "nothing has started yet"
    assert not (former.path / "ready").exists()
    assert (former.path / "log" / "1.wal").exists()


def test_a_run_goes_on_with_the_output_that_it_has(
    former: RunSettings, here: Path, started: Callable[..., RunSettings]
) -> None:
    (here / "out").mkdir()
    (here / "out" / f"{7:020d}_{9:020d}.jsonl").write_text("{}\n")
    assert started().generation == 2


def test_a_run_whose_launcher_was_killed_before_its_next_generation_started_goes_on(
    former: RunSettings, started: Callable[..., RunSettings]
) -> None:
    assert [started().generation for _ in range(3)] == [2, 2, 2]


def test_a_run_whose_start_failed_before_anything_began_begins(
    former: RunSettings, started: Callable[..., RunSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that saves nothing, and with code that was mended."""
    begun_file(former.path).unlink()
    again = started("--policy", "cluster")
    assert (again.policy.name, again.saves, again.generation) == ("cluster", False, 2)
    assert not (former.path / "flow.json").exists()


def test_a_folder_without_settings_is_that_of_a_new_run(
    here: Path, started: Callable[..., RunSettings]
) -> None:
    """A start that was refused, or that was killed, may have left it."""
    (here / "run" / "logs").mkdir(parents=True)
    (here / "run" / "lock").touch()
    assert started().generation == 1


def test_the_folder_is_free_again_after_a_start_that_failed(
    former: RunSettings, started: Callable[..., RunSettings]
) -> None:
    started()
    lock = lock_of_run(former.path)
    lock.take()
    lock.release()


# --- after an upgrade ---------------------------------------------------------------------------------------

CHANGED = FLOW.replace("return packets", "return packets.where('n > 0')")


@pytest.fixture
def upgraded(former: RunSettings, here: Path) -> RunSettings:
    """A run that was upgraded to a changed flow, in another file, and then stopped."""
    (here / "new").mkdir()
    (here / "new" / "flow.py").write_text(CHANGED)
    changes = {"flow_path": str(here / "new" / "flow.py"), "version": 2, "versions_tried": 3, "first_node": 3}
    made = RunSettings(**{**vars(former), **changes, "standby": 1})
    made.save()
    for name in ("flow.json", "begun"):
        (made.path / name).unlink()
    load_pinned(made)
    pin_shape(made, {"format": 1})
    return made


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flow files of which it was asked whether they fit the saved state. They do."""
    asked: list[str] = []

    def answer(settings: RunSettings) -> dict[str, list[str]]:
        asked.append(settings.flow_path)
        return {"refusals": [], "accepted": ["copy: a filter is gone"]}

    monkeypatch.setattr(fit, "_asked", answer)
    return asked


def test_a_run_that_was_upgraded_goes_on_with_its_version_and_its_nodes(
    upgraded: RunSettings, started: Callable[..., RunSettings], looked_at: list[str]
) -> None:
    again = started(flow="new/flow.py")
    assert (again.version, again.versions_tried, again.generation) == (2, 3, 2)
    assert again.node_names == ["node-3", "node-4", "node-5"]
    assert again.coordinates == "run~2@2"
    assert looked_at == [], "the file is what the version began with"
    assert (upgraded.version_path / "flow.json").exists()


def test_options_count_from_the_first_node_of_the_version(
    upgraded: RunSettings, started: Callable[..., RunSettings]
) -> None:
    again = started("--nodes", "3", "--standby", "0", "--heap", "900", flow="new/flow.py")
    assert (again.node_names, again.heap_mb) == (["node-3", "node-4", "node-5"], 900)
    assert started("--nodes", "4", flow="new/flow.py").node_names[-1] == "node-7"


def test_the_file_that_is_given_is_compared_with_the_code_of_the_version_that_the_run_has(
    upgraded: RunSettings,
    here: Path,
    started: Callable[..., RunSettings],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file of the version before is a change by now."""
    again = started()
    assert looked_at == [str(here / "flow.py")]
    assert "copy: a filter is gone" in capsys.readouterr().out
    assert (again.version, again.flow_path) == (2, str(here / "flow.py"))
    assert not (upgraded.version_path / "flow.json").exists(), "its next generation begins with that file"


@pytest.fixture
def cut_off(former: RunSettings, here: Path) -> Candidate:
    """A run whose launcher was killed while a version with changed code was on trial."""
    (former.path / "flow.json").unlink()
    load_pinned(former)
    pin_shape(former, {"format": 1})
    RunSettings(**{**vars(former), "versions_tried": 2}).save()
    (here / "flow.py").write_text(CHANGED)
    second = RunSettings(**{**vars(former), "version": 2, "first_node": 3})
    load_pinned(second)
    made = Candidate(second, Dataflow.of(load(second.flow_path), second), live=True)
    made.save()
    return made


TAKEN_BACK = "an upgrade was not finished and is taken back: the run goes on from the state of version 1"


def test_a_run_that_was_killed_on_trial_goes_on_with_the_old_file(
    cut_off: Candidate,
    here: Path,
    started: Callable[..., RunSettings],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "flow.py").write_text(FLOW)
    again = started()
    assert (again.version, again.versions_tried, again.node_names) == (1, 2, ["node-1", "node-2"])
    assert looked_at == []
    assert TAKEN_BACK in capsys.readouterr().out
    assert candidate_in(again.path) is None
    assert not cut_off.settings.version_path.exists()
    started()
    assert TAKEN_BACK not in capsys.readouterr().out


def test_a_run_that_was_killed_on_trial_goes_on_with_the_new_file_if_its_state_takes_that(
    cut_off: Candidate,
    here: Path,
    started: Callable[..., RunSettings],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    again = started()
    assert (again.version, again.flow_path) == (1, str(here / "flow.py"))
    assert looked_at == [str(here / "flow.py")]
    assert TAKEN_BACK in capsys.readouterr().out
    assert not (again.path / "flow.json").exists(), "the code that it has now is written down anew"


def test_a_run_that_was_killed_when_the_new_version_was_its_own_goes_on_with_that(
    cut_off: Candidate,
    started: Callable[..., RunSettings],
    looked_at: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    RunSettings(**{**vars(cut_off.settings), "versions_tried": 2}).save()
    again = started()
    assert (again.version, again.node_names) == (2, ["node-3", "node-4"])
    assert looked_at == []
    assert "an upgrade was done: the run goes on from the state of version 2" in capsys.readouterr().out
    assert candidate_in(again.path) is None
    assert not (again.path / "flow.json").exists(), "that of the version before"


def test_a_refusal_leaves_an_upgrade_that_was_cut_off_as_it_is(
    cut_off: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit = {"refusals": ["its key is another"], "accepted": []}
    monkeypatch.setattr(fit, "_asked", lambda _settings: unfit)
    before = contents(cut_off.settings.path)
    assert refused() == 2
    assert contents(cut_off.settings.path) == before


# --- it is refused ------------------------------------------------------------------------------------------


def test_a_run_of_another_version_is_called_one(
    here: Path, former: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    file = here / "run" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))
    before = contents(former.path)
    assert refused() == 3
    err = capsys.readouterr().err
    assert "was made by another version of Understudy" in err
    assert "has format 2, and this version reads 5. Use the one that made it." in err
    assert contents(former.path) == before


def test_a_run_that_is_still_running_is_said_to_be_before_anything_else(
    former: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = lock_of_run(former.path)
    lock.take()
    finished_file(former.path).touch()
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        # Its gateway listens, and its options differ: that is not what is wrong.
        assert refused("--port", str(gateway.getsockname()[1]), "--policy", "cluster") == 2
    lock.release()
    err = capsys.readouterr().err
    assert "which is still running" in err
    assert f"Stop it with `understudy stop {former.folder}`" in err


@pytest.mark.parametrize(
    ("mark", "said"),
    [(finished_file, "holds a run that is finished"), (seated_file, "holds a run that saved no state")],
)
def test_a_run_that_cannot_go_on_is_left_alone(
    former: RunSettings, mark: Callable[[Path], Path], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if mark is seated_file:
        RunSettings(**{**vars(former), "snapshot_every_ms": 0}).save()
    mark(former.path).touch()
    before = contents(former.path)
    assert refused() == 2
    assert said in capsys.readouterr().err
    assert contents(former.path) == before


def test_another_flow_is_refused_in_the_folder_of_a_run(
    former: RunSettings, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "other.py").write_text(FLOW.replace('us.Flow("copy")', 'us.Flow("other")'))
    before = contents(former.path)
    assert refused(flow="other.py") == 2
    assert "holds a run of flow 'copy', not of 'other'" in capsys.readouterr().err
    assert contents(former.path) == before


def test_a_port_that_is_taken_by_now_changes_nothing(
    former: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(former.path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert refused("--port", str(other.getsockname()[1])) == 3
    assert "choose another one" in capsys.readouterr().err
    assert contents(former.path) == before


def test_a_zookeeper_that_does_not_answer_changes_nothing(
    former: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(former.path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert refused("--zookeeper", address) == 3
    assert f"ZooKeeper does not answer at {address}" in capsys.readouterr().err
    assert contents(former.path) == before


@pytest.fixture
def broken_store(here: Path) -> str:
    """A store that is a file by now, as after a disk that was not mounted."""
    (here / "store").touch()
    return str(here / "store" / "below")


def test_a_store_that_cannot_be_reached_changes_nothing(
    former: RunSettings, broken_store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    RunSettings(**{**vars(former), "store": broken_store}).save()
    before = contents(former.path)
    assert refused() == 3
    assert f"The store of snapshots {broken_store} cannot be written" in capsys.readouterr().err
    assert contents(former.path) == before
    assert RunSettings.load(former.path).generation == 1


def test_a_store_that_cannot_be_listed_changes_nothing(
    former: RunSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(_store: object) -> str:
        raise module.EnvironmentFailed("The store does not answer.")

    monkeypatch.setattr(module, "goes_on_from", silent)
    before = contents(former.path)
    assert refused() == 3
    assert "The store does not answer." in capsys.readouterr().err
    assert contents(former.path) == before


def test_a_new_run_whose_store_cannot_be_reached_leaves_no_folder(
    here: Path, broken_store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused("--store", broken_store) == 3
    assert "cannot be written" in capsys.readouterr().err
    assert not (here / "run").exists()


def test_a_folder_that_was_there_before_stays_when_a_new_run_is_refused(
    here: Path, broken_store: str
) -> None:
    (here / "run").mkdir()
    (here / "run" / "mine").write_text("of the user")
    assert refused("--store", broken_store) == 3
    assert contents(here / "run") == {"mine": b"of the user"}


def test_a_refusal_gives_the_folder_back(former: RunSettings, broken_store: str) -> None:
    RunSettings(**{**vars(former), "store": broken_store}).save()
    refused()
    held: list[FolderLock] = [lock_of_run(former.path)]
    held[0].take()
    held[0].release()


def test_a_former_zookeeper_that_is_gone_is_said_when_another_one_is_named(
    former: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    view: Any = type("View", (), {"say": staticmethod(said.append)})()

    def silent(_former: RunSettings) -> None:
        raise module.EnvironmentFailed("ZooKeeper does not answer at old:1.")

    monkeypatch.setattr(module, "await_departure", silent)
    outside = RunSettings(**{**vars(former), "zookeeper": "old:1", "own_zookeeper": False})
    module._require_departed(outside, "new:1", view)
    assert "the ZooKeeper before, at old:1, does not answer" in said[0]
    with pytest.raises(module.EnvironmentFailed):
        module._require_departed(outside, "old:1", view)
