"""`understudy run` on a folder that holds something: what goes on, what is refused, and that a refusal leaves
everything as it was.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from folders_kit import FLOW, contents, refused

from understudy.cli import run as module
from understudy.core.shape.partition import Partition
from understudy.runtime.folder_lock import FolderLock, lock_of_run
from understudy.runtime.process import begun_file, finished_file, seated_file
from understudy.runtime.saving import claim
from understudy.runtime.saving.claim import Claim
from understudy.runtime.saving.needed import Needed
from understudy.runtime.saving.of_run import store_of
from understudy.runtime.settings import RunSettings

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


def test_what_an_upgrade_left_is_looked_for_with_the_keys_that_are_given_now(
    former: RunSettings, started: Callable[..., RunSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store no longer answers to those that the run had."""
    stores: list[str] = []
    monkeypatch.setattr(module, "drop_unfinished", lambda settings: stores.append(settings.store))
    assert former.store == ""
    started("--store", "run/saved")
    assert stores == [former.store_url]


def test_a_folder_without_settings_is_that_of_a_new_run(
    here: Path, started: Callable[..., RunSettings]
) -> None:
    """A start that was refused, or that was killed, may have left it."""
    (here / "run" / "logs").mkdir(parents=True)
    (here / "run" / "lock").touch()
    assert started().generation == 1


def test_no_two_runs_save_under_one_name_whatever_their_folders_are_called(
    here: Path, started: Callable[..., RunSettings]
) -> None:
    """A folder that was deleted and made anew, or that another machine has, too."""
    names = set()
    for _ in range(3):
        begun = started("--store", str(here / "store"))
        names.add(begun.saved_as)
        begun.save()
        assert started().saved_as == begun.saved_as, "it goes on where its state is"
        shutil.rmtree(begun.path)
    assert len(names) == 3
    assert all(name.startswith("run-") for name in names)


def test_a_run_does_not_go_on_with_a_store_that_has_lost_its_state(
    former: RunSettings, started: Callable[..., RunSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its disk is not mounted, say. It would begin with nothing, and wait for what the log has let go of."""
    Needed(former.version_path).note(Partition("copy"))
    before = contents(former.path)
    assert refused() == 3
    assert "holds no state of copy/0, although this run has saved it there" in capsys.readouterr().err
    assert contents(former.path) == before


def test_a_run_that_lives_elsewhere_with_the_same_state_is_not_begun_again(
    former: RunSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(claim, "BEAT_S", 0.05)
    monkeypatch.setattr(claim, "_POLL_S", 0.2)
    before = contents(former.path)
    other = Claim(store_of(former), Path("/copied"))
    other.take(print)
    other.keep()
    assert refused() == 2
    assert "This run is still running, in /copied on " in capsys.readouterr().err
    other.release()
    assert contents(former.path) == before


def test_the_folder_is_free_again_after_a_start_that_failed(
    former: RunSettings, started: Callable[..., RunSettings]
) -> None:
    started()
    lock = lock_of_run(former.path)
    lock.take()
    lock.release()


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
