"""What versions of a flow leave on disk, after an upgrade and after one that was cut off, and which goes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime import leftovers as module
from understudy.runtime.candidate import candidate_in
from understudy.runtime.going_on import drop_marks, has_begun
from understudy.runtime.leftovers import bound_histories, drop_code, drop_logs, drop_states, drop_unfinished
from understudy.runtime.saving.layout import snapshots_folder
from understudy.runtime.settings import RunSettings
from understudy.runtime.upgrade_files import FOLDER, REQUEST, cancel
from understudy.runtime.upgrading import LOOKS
from upgrade_kit import (
    ALONE,
    DONE,
    LIVE,
    TRIAL_S,
    Upgraded,
    facts,
    left,
    live_on,
    put,
    status,
)

TAKEN_BACK = "an upgrade was not finished and is taken back: the run goes on from the state of version 1"
DONE_BEFORE = "an upgrade was done: the run goes on from the state of version 2"
#: Of which version files are, by how they begin.
OF_THE_FIRST = ("flow.json", "shape.json", "code/", "seated", "saved/run/counts@0/snapshots/")
OF_THE_SECOND = ("versions/2/", "saved/run/counts@0/snapshots@2/")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upgraded:
    made = Upgraded(tmp_path / "run", monkeypatch)
    live_on(made, 1)
    return made


def begins(run: Upgraded, prefixes: tuple[str, ...]) -> set[str]:
    return {file for file in left(run) if file.startswith(prefixes)}


@pytest.mark.parametrize("phase", ["starting", "catching up", "turning", "on trial"])
def test_until_it_is_decided_the_run_goes_on_with_the_version_before(run: Upgraded, phase: str) -> None:
    run.reach(phase)
    before = begins(run, OF_THE_FIRST)
    live_on(run, 2)
    former = RunSettings.load(run.folder)
    assert drop_unfinished(former) == TAKEN_BACK
    assert former.version == 1
    assert candidate_in(run.folder) is None
    assert not (run.folder / FOLDER).exists()
    assert begins(run, OF_THE_FIRST) == before
    assert not begins(run, OF_THE_SECOND)
    assert drop_unfinished(former) is None, "once"


@pytest.mark.parametrize("removed", [False, True], ids=["candidate there", "candidate gone"])
def test_from_then_on_it_goes_on_with_the_new_one(run: Upgraded, removed: bool) -> None:
    run.reach("finishing")
    live_on(run, 2)
    before = begins(run, OF_THE_SECOND)
    if removed:
        run.look(LIVE)
    former = RunSettings.load(run.folder)
    assert drop_unfinished(former) == (None if removed else DONE_BEFORE)
    assert (former.version, former.node_names) == (2, ["node-3", "node-4"])
    assert begins(run, OF_THE_SECOND) == before
    assert not begins(run, OF_THE_FIRST)
    (former.version_path / "seated").unlink()
    assert has_begun(former), "the mark that said so was the first version's"


def test_a_decision_of_which_the_disk_was_not_certain_stands_if_the_file_names_the_new_version(
    run: Upgraded,
) -> None:
    run.reach("on trial")
    run.look(LIVE)
    run.full["run.json"] = True
    run.look(LIVE, after_s=TRIAL_S)
    run.full.clear()
    assert drop_unfinished(RunSettings.load(run.folder)) == DONE_BEFORE


def test_while_it_is_taken_back_there_is_nothing_to_say_any_more(run: Upgraded) -> None:
    run.reach("taking back")
    live_on(run, 2)
    former = RunSettings.load(run.folder)
    assert drop_unfinished(former) is None
    assert not begins(run, OF_THE_SECOND)
    assert former.versions_tried == 2, "the next version is the third"


def test_while_the_old_version_ends_the_run_goes_on_with_the_new_one(run: Upgraded) -> None:
    run.reach("finishing")
    run.look(LIVE)
    run.look(DONE)
    live_on(run, 2)
    assert drop_unfinished(RunSettings.load(run.folder)) is None
    assert not begins(run, OF_THE_FIRST)


def test_a_request_that_was_not_taken_up_goes_with_the_code_that_was_written_down_for_it(
    run: Upgraded,
) -> None:
    run.ask()
    put(run.folder / "versions" / "2" / "flow.json")
    assert drop_unfinished(RunSettings.load(run.folder)) is None
    assert not (run.folder / FOLDER / REQUEST).exists()
    assert not (run.folder / "versions" / "2").exists()


def test_a_damaged_candidate_does_not_keep_a_run_from_going_on(run: Upgraded) -> None:
    run.reach("catching up")
    (run.folder / "candidate.json").write_text("{")
    assert drop_unfinished(RunSettings.load(run.folder)) == TAKEN_BACK
    assert candidate_in(run.folder) is None


def test_a_candidate_that_cannot_be_removed_keeps_a_run_from_going_on(run: Upgraded) -> None:
    run.reach("catching up")
    run.full["without candidate.json"] = True
    with pytest.raises(EnvironmentFailed, match="cannot be removed: Read-only file system"):
        drop_unfinished(RunSettings.load(run.folder))


def test_a_store_that_does_not_answer_does_not_keep_a_run_from_going_on(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> None:
        raise EnvironmentFailed("The store does not answer.")

    run.reach("catching up")
    live_on(run, 2)
    with monkeypatch.context() as patched:
        patched.setattr(module, "store_of", silent)
        assert drop_unfinished(RunSettings.load(run.folder)) == TAKEN_BACK
    assert drop_unfinished(RunSettings.load(run.folder)) is None
    assert not begins(run, OF_THE_SECOND), "what was left is removed the next time"


def test_a_run_that_was_never_upgraded_keeps_all_that_it_has(run: Upgraded) -> None:
    before = left(run)
    assert drop_unfinished(run.fleet.settings) is None
    assert left(run) == before


def test_a_later_version_has_marks_of_its_own(run: Upgraded) -> None:
    run.reach("finishing")
    live_on(run, 2)
    former = RunSettings.load(run.folder)
    drop_unfinished(former)
    drop_marks(former)
    assert not (run.folder / "versions" / "2" / "seated").exists(), "no view of its next generation was seen"
    assert has_begun(former)
    assert (run.folder / "versions" / "2" / "flow.json").exists()


def test_only_folders_of_versions_that_are_over_go(run: Upgraded) -> None:
    for name in ("2", "3", "4", "mine"):
        put(run.folder / "versions" / name / "flow.json")
    third = RunSettings(**{**vars(run.fleet.settings), "version": 3, "versions_tried": 3})
    drop_code(third, through=3)
    assert sorted(file.name for file in (run.folder / "versions").iterdir()) == ["3", "4", "mine"]
    drop_code(third)
    assert sorted(file.name for file in (run.folder / "versions").iterdir()) == ["3", "mine"]


def test_logs_of_the_last_version_and_of_this_one_stay(run: Upgraded) -> None:
    for number in (1, 2, 3, 12):
        for file in (f"node-{number}.log", f"node-{number}.jvm.log.2"):
            put(run.folder / "logs" / file)
    put(run.folder / "logs" / "gateway.log")
    put(run.folder / "logs" / "node-one.log")
    drop_logs(run.fleet.settings, first_node=3)
    names = sorted(file.name for file in (run.folder / "logs").iterdir())
    kept = [
        "gateway.log",
        "node-12.jvm.log.2",
        "node-12.log",
        "node-3.jvm.log.2",
        "node-3.log",
        "node-one.log",
    ]
    assert names == kept


def write_history(run: Upgraded, name: str, size: int) -> None:
    put(run.folder / "history" / name)
    (run.folder / "history" / name).write_text("x" * size)


def test_histories_of_versions_that_are_over_share_one_bound(run: Upgraded) -> None:
    settings = replace(run.fleet.settings, history_bytes_max=4_000, history_part_bytes=1_000, first_node=11)
    for number in (1, 2, 9, 10, 11):
        write_history(run, f"node-{number}.1.part-000001.jsonl", 1_000)
        write_history(run, f"node-{number}.1.jsonl", 500)
    write_history(run, "gateway.jsonl", 5_000)
    bound_histories(settings)
    assert sorted(file.name for file in (run.folder / "history").iterdir()) == [
        "gateway.jsonl",
        "node-1.1.jsonl",
        "node-10.1.jsonl",
        "node-10.1.part-000001.jsonl",
        "node-11.1.jsonl",
        "node-11.1.part-000001.jsonl",
        "node-2.1.jsonl",
        "node-9.1.jsonl",
        "node-9.1.part-000001.jsonl",
    ]
    assert (run.folder / "history" / "node-1.1.jsonl").stat().st_size < 200, "a header that says what is gone"


@pytest.mark.parametrize("at", ["the end of an upgrade", "the next start"])
def test_histories_are_bounded_when_a_version_is_over(run: Upgraded, at: str) -> None:
    run.fleet.settings = replace(run.fleet.settings, history_bytes_max=1_000)
    run.reach("finishing")
    write_history(run, "node-1.1.jsonl", 5_000)
    write_history(run, "node-3.1.jsonl", 5_000)
    if at == "the next start":
        drop_unfinished(RunSettings.load(run.folder))
    else:
        run.look(DONE)
        run.fleet.nodes_ended()
    left_over = {file.name: file.stat().st_size for file in (run.folder / "history").iterdir()}
    assert left_over["node-1.1.jsonl"] < 200
    assert left_over["node-3.1.jsonl"] == 5_000


def test_a_history_that_cannot_be_removed_keeps_no_run_from_going_on(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError("Read-only file system")

    monkeypatch.setattr(module, "keep_within", read_only)
    assert drop_unfinished(run.fleet.settings) is None


def test_a_run_that_saves_nothing_has_no_store_to_look_into(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "store_of", lambda *_, **__: pytest.fail("nothing is saved"))
    drop_states(RunSettings(**{**vars(run.fleet.settings), "snapshot_every_ms": 0, "versions_tried": 2}))
    drop_states(run.fleet.settings)
    run.look(ALONE)


# --- what is left behind ------------------------------------------------------------------------------------


def test_a_version_that_was_taken_back_leaves_its_logs_and_what_its_code_was(run: Upgraded) -> None:
    before = left(run)
    run.reach("catching up")
    live_on(run, 2)
    cancel(run.folder)
    for _ in range(2):
        run.look(ALONE)
    run.fleet.nodes_ended()
    run.look(ALONE)
    assert {file.split("/")[0] for file in left(run) - before} == {"logs", "untaken.json"}
    assert before <= left(run), "the old version has all that it had"


def test_an_old_version_leaves_its_logs_alone_and_the_new_one_has_all_that_it_has(run: Upgraded) -> None:
    before = left(run)
    run.reach("finishing")
    live_on(run, 2)
    of_new = left(run) - before - {"candidate.json"}
    run.look(DONE)
    run.fleet.nodes_ended()
    run.look(DONE)
    assert of_new <= left(run)
    assert {file.split("/")[0] for file in left(run) & before} == {"logs"}


def has_own_fragment(run: Upgraded, version: int) -> None:
    """A fragment that no version before had and none after has, with a state that was saved."""
    code = run.folder / "versions" / str(version)
    (code / "shape.json").write_text(json.dumps({"segments": {"counts": [], f"only{version}": []}}))
    shelf = run.folder / "saved" / "run" / f"only{version}@0"
    put(shelf / snapshots_folder(version) / f"{version:020d}_000001_ab.json")
    put(shelf / "objects" / "0a1b")


def test_a_hundred_upgrades_leave_no_more_on_disk_than_two(run: Upgraded) -> None:
    sizes = []
    for version in range(2, 102):
        first = run.fleet.settings.first_node + 2
        is_done = version % 3 > 0
        run.fleet.up = {f"node-{first}", f"node-{first + 1}"}
        base = run.fleet.settings.version
        of_it = facts(version=version)
        live = status({**of_it, "live": True, "takes": True}, version=base)
        run.ask(version, first_node=first)
        for seen in (*[status(version=base)] * 4, *[status(of_it, version=base)] * LOOKS, live):
            run.look(seen)
        names = [f"node-{first}", f"node-{first + 1}"]
        for name in names:
            for file in (f"ready/{name}", f"failed/{name}.txt", f"state/{name}.1/x", f"logs/{name}.log"):
                put(run.folder / file)
        put(run.folder / "versions" / str(version) / "flow.json")
        shelf = run.folder / "saved" / "run" / "counts@0"
        put(shelf / snapshots_folder(version) / f"{version:020d}_000001_ab.json")
        has_own_fragment(run, version)
        run.look(live)
        if not is_done:
            cancel(run.folder)
        run.look(live, after_s=TRIAL_S)
        run.look(status(version=version if is_done else base))
        run.fleet.nodes_ended()
        run.look(status(version=version if is_done else base))
        assert run.progress.outcome == ("done" if is_done else "taken back")
        sizes.append(len(left(run)))
    assert max(sizes[2:]) <= max(sizes[:3])
    assert run.fleet.settings.version == 101


def test_what_a_version_left_that_could_not_be_removed_goes_with_the_next_one(run: Upgraded) -> None:
    """A gateway that let go of it late may have written to its shelf again."""
    run.reach("taking back")
    run.look(ALONE)
    run.fleet.nodes_ended()
    run.look(ALONE)
    live_on(run, 2)
    run.fleet.up.clear()
    run.reach("taking back", version=3)
    run.look(ALONE)
    run.fleet.nodes_ended()
    assert not (run.folder / "versions" / "2").exists()
    assert not list((run.folder / "saved").rglob("snapshots@2/*.json"))


def test_the_version_that_is_asked_for_next_is_not_taken_for_one_that_is_over(run: Upgraded) -> None:
    """`understudy upgrade` writes its code down while the one before still ends."""
    run.reach("taking back")
    run.look(ALONE)
    live_on(run, 3)
    run.fleet.nodes_ended()
    assert (run.folder / "versions" / "3" / "flow.json").exists()
    assert list((run.folder / "saved").rglob("snapshots@3/*.json"))


def test_a_store_that_does_not_answer_does_not_keep_an_upgrade_from_its_end(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> None:
        raise EnvironmentFailed("The store does not answer.")

    monkeypatch.setattr(module, "store_of", silent)
    run.reach("finishing")
    run.look(DONE)
    run.fleet.nodes_ended()
    assert run.look(DONE) == ["say: done"]
