"""A run that goes on: what stays in its folder, what goes, and how its processes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.flow.errors import UserError
from understudy.flow.policy import policy_named
from understudy.history.records import BegunRecord
from understudy.history.writing import PartedFile
from understudy.runtime.going_on import (
    drop_marks,
    has_begun,
    moved,
    next_generation,
    next_incarnation,
    require_able,
)
from understudy.runtime.process import finished_file, opened_file, seated_file
from understudy.runtime.settings import EPOCHS_MAX, RunSettings

DURABLE = ("log/1.wal", "delivery/one.json", "saved/run/x", "history/gateway.jsonl", "flow.json", "opened")
OF_THE_LIVING = ("ready/gateway", "failed/node-1.txt", "pulse/node-1", "state/node-1.1/x", "zookeeper/data/x")


@pytest.fixture
def former(tmp_path: Path) -> RunSettings:
    """A run of which copies had seats."""
    made = RunSettings("run", "flow.py", str(tmp_path / "run"), "127.0.0.1:1", flow="copy")
    made.save()
    for name in (*DURABLE, *OF_THE_LIVING):
        file = made.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    seated_file(made.path).touch()
    return made


def test_what_is_durable_stays_and_what_spoke_of_the_living_goes(former: RunSettings) -> None:
    drop_marks(former)
    assert all((former.path / name).exists() for name in DURABLE)
    assert not any((former.path / name).exists() for name in OF_THE_LIVING)
    assert not seated_file(former.path).exists()
    assert has_begun(former), "there is state, although no view of its next generation was seen"


def test_a_launcher_that_was_killed_in_between_leaves_a_run_that_goes_on(
    former: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it had come to: the marks go one after the other."""
    killed_at = 0
    unlink = Path.unlink

    class Killed(Exception):
        pass

    def dying(path: Path, *given: object, **options: bool) -> None:
        nonlocal killed_at
        if killed_at == 0:
            killed_at = 1
            raise Killed
        unlink(path, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "unlink", dying)
    with pytest.raises(Killed):
        drop_marks(former)
    again = RunSettings.load(former.path)
    assert (again.generation, has_begun(again)) == (1, True)
    require_able(again)
    drop_marks(again)
    assert not seated_file(former.path).exists()
    assert has_begun(again)
    assert (former.path / "flow.json").exists()


def test_each_generation_has_a_name_of_its_own_in_zookeeper_and_greater_epochs(former: RunSettings) -> None:
    second = next_generation(former)
    third = next_generation(second)
    assert [each.coordinates for each in (former, second, third)] == ["run", "run~2", "run~3"]
    assert [each.first_epoch for each in (former, second, third)] == [1, 1 + EPOCHS_MAX, 1 + 2 * EPOCHS_MAX]
    assert third.run == "run", "the store knows it by this"


def test_a_run_of_which_no_copy_had_a_seat_may_go_on_with_mended_code_and_without_saving(
    tmp_path: Path,
) -> None:
    cluster = policy_named("cluster")
    former = RunSettings("run", "flow.py", str(tmp_path), "127.0.0.1:1", policy=cluster, flow="copy")
    (tmp_path / "flow.json").touch()
    opened_file(tmp_path).touch()
    require_able(former)
    drop_marks(former)
    assert not (tmp_path / "flow.json").exists()
    assert not has_begun(former)


@pytest.mark.parametrize("policy", ["cluster", "pair"])
def test_a_run_that_had_state_and_saved_none_cannot_go_on(tmp_path: Path, policy: str) -> None:
    former = RunSettings(
        "run", "flow.py", str(tmp_path), "", policy=policy_named(policy), snapshot_every_ms=0, flow="copy"
    )
    seated_file(tmp_path).touch()
    with pytest.raises(
        UserError, match=r"holds a run that saved no state, so it cannot go on\. Start the flow"
    ):
        require_able(former)


def test_a_finished_run_does_not_go_on(former: RunSettings) -> None:
    finished_file(former.path).touch()
    with pytest.raises(UserError, match="holds a run that is finished: every source has ended"):
        require_able(former)


def test_incarnations_go_on_counting_behind_those_that_have_a_history(former: RunSettings) -> None:
    for name in ("node-1.1.jsonl", "node-1.4.part-000003.jsonl", "node-1.2.jsonl", "node-12.9.jsonl"):
        (former.path / "history" / name).touch()
    second = next_generation(former)
    assert next_incarnation(second, "node-1") == 5
    assert next_incarnation(second, "node-12") == 10
    assert next_incarnation(second, "node-3") == 2, "also without a history no name comes twice at first"
    assert next_incarnation(former, "node-3") == 1


def test_no_incarnation_comes_twice_when_the_histories_of_earlier_ones_are_gone(former: RunSettings) -> None:
    for expected in range(1, 8):
        incarnation = next_incarnation(former, "node-1")
        assert incarnation == expected
        process = f"node-1.{incarnation}"
        file = PartedFile(former.history_file(process), "copy", process, part_bytes=500, total_bytes=1_000)
        file.write([BegunRecord(1, process)] * 30)
        file.close()
    assert not former.history_file("node-1.2").exists()


def test_a_run_goes_on_where_its_folder_is_now(former: RunSettings, tmp_path: Path) -> None:
    former.path.rename(tmp_path / "elsewhere")
    again = moved(RunSettings.load(tmp_path / "elsewhere"), tmp_path / "elsewhere")
    assert (again.folder, again.run) == (str(tmp_path / "elsewhere"), "run")
    assert again.store_url == str(tmp_path / "elsewhere" / "saved")
    assert has_begun(again)
