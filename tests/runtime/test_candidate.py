"""The two files that say which versions of a flow are wanted, as a gateway reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disk_kit import DiskRecord
from understudy.core.shape.topology import Topology
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime import candidate as module
from understudy.runtime.candidate import Candidate, Wanted, candidate_in, remove_candidate, settings_of
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.settings import RunSettings
from understudy.runtime.upgrade_files import Request

SHAPE = Dataflow(
    Topology({"a": ("rows", "rules"), "b": ("a",)}, {"a": 3, "b": 1}, {"sink:out": "b", "sink:raw": "a"}),
    {"a": ("k", "day"), "b": ()},
)


@pytest.fixture
def base(tmp_path: Path) -> RunSettings:
    made = RunSettings("run", "/flows/old.py", str(tmp_path), "zk:1")
    made.save()
    return made


@pytest.fixture
def candidate(base: RunSettings) -> Candidate:
    return Candidate(replace(base, flow_path="/flows/new.py", version=2, first_node=3), SHAPE)


@pytest.fixture
def file(base: RunSettings) -> Path:
    return base.path / "candidate.json"


def decided(candidate: Candidate) -> RunSettings:
    return replace(candidate.settings, versions_tried=candidate.version)


# --- the file -----------------------------------------------------------------------------------------------


def test_what_was_saved_is_what_is_found(base: RunSettings, candidate: Candidate) -> None:
    assert candidate_in(base.path) is None
    candidate.save()
    assert candidate_in(base.path) == candidate
    replace(candidate, live=True).save()
    assert candidate_in(base.path) == replace(candidate, live=True)


@pytest.mark.parametrize(
    ("store", "mode"),
    [("s3://b/p?secret_key=word", 0o600), ("s3://key:word@b/p", 0o600), ("s3://b/p", 0o644), ("/a@b", 0o644)],
)
def test_files_with_keys_of_the_store_are_for_their_owner_alone(
    base: RunSettings, candidate: Candidate, store: str, mode: int
) -> None:
    before = os.umask(0o022)
    try:
        settings = replace(candidate.settings, store=store)
        settings.save()
        replace(candidate, settings=settings).save()
        Request(settings, SHAPE, 10.0, 100_000).leave()
    finally:
        os.umask(before)
    written = [file for file in base.path.rglob("*.json") if "word" in file.read_text() or mode == 0o644]
    assert {file.name for file in written} == {"run.json", "candidate.json", "request.json"}
    assert {file.stat().st_mode & 0o777 for file in written} == {mode}


def test_it_is_gone_when_it_was_removed(base: RunSettings, candidate: Candidate) -> None:
    candidate.save()
    assert remove_candidate(base.path)
    assert not remove_candidate(base.path)
    assert candidate_in(base.path) is None


def test_it_outlives_a_loss_of_power_and_so_does_its_end(
    base: RunSettings, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskRecord(base.path, monkeypatch)
    candidate.save()
    assert disk.steps == ["sync candidate.half", "rename candidate.half to candidate.json", "sync ."]
    assert disk.synced["candidate.half"] == (base.path / "candidate.json").read_bytes()
    del disk.steps[:]
    remove_candidate(base.path)
    assert disk.steps == ["sync ."]


def test_a_disk_that_is_full_leaves_it_as_it_was(
    base: RunSettings, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate.save()

    def full(_file: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        EnvironmentFailed, match=r"candidate\.json cannot be written: No space .*repair the disk"
    ):
        replace(candidate, live=True).save()
    assert candidate_in(base.path) == candidate


def change(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def spoil(file: Path) -> None:
        values = json.loads(file.read_text())
        change(values)
        file.write_text(json.dumps(values))

    return spoil


SPOILED: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_text(file.read_text()[:40]),
    "empty": lambda file: file.write_text(""),
    "no text": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda file: file.write_text("[]"),
    "deep": lambda file: file.write_text("[" * 100_000),
    "no settings": change(lambda values: values.pop("settings")),
    "a policy that makes no sense": change(lambda values: values["settings"]["policy"].update(silence_ms=3)),
    "no dataflow": change(lambda values: values.pop("dataflow")),
    "segments without a number": change(lambda values: values["dataflow"].update(counts={})),
    "inputs of another kind": change(lambda values: values["dataflow"].update(inputs=7)),
    "not live and not at rest": change(lambda values: values.pop("live")),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_damaged_one_is_named(
    base: RunSettings, candidate: Candidate, file: Path, spoil: Callable[[Path], object]
) -> None:
    candidate.save()
    spoil(file)
    with pytest.raises(EnvironmentFailed, match=f"{file} cannot be read: "):
        candidate_in(base.path)


def test_one_of_another_version_of_the_program_is_none(
    base: RunSettings, candidate: Candidate, file: Path
) -> None:
    candidate.save()
    change(lambda values: values["settings"].update(format=99))(file)
    assert candidate_in(base.path) is None


# --- which settings a process begins with -------------------------------------------------------------------


def test_a_process_has_the_settings_of_the_version_that_it_is_started_for(
    base: RunSettings, candidate: Candidate
) -> None:
    candidate.save()
    assert settings_of(base.folder, None) == settings_of(base.folder, 1) == base
    assert settings_of(base.folder, 2) == candidate.settings
    decided(candidate).save()
    remove_candidate(base.path)
    assert settings_of(base.folder, None) == settings_of(base.folder, 2) == decided(candidate)


@pytest.mark.parametrize("version", [1, 3])
def test_a_process_of_a_version_that_is_over_does_not_begin(
    base: RunSettings, candidate: Candidate, version: int
) -> None:
    decided(candidate).save()
    with pytest.raises(EnvironmentFailed, match=f"has no version {version} any more"):
        settings_of(base.folder, version)


# --- what a gateway sees ------------------------------------------------------------------------------------


def seen(wanted: Wanted) -> tuple[int, int | None, bool]:
    """The version that the run goes on with, the one beside it, and whether that one is live."""
    beside = wanted.candidate
    return wanted.base.version, None if beside is None else beside.version, beside is not None and beside.live


def test_an_upgrade_is_seen_step_by_step_and_each_step_once(base: RunSettings, candidate: Candidate) -> None:
    wanted = Wanted(base)
    assert (seen(wanted), wanted.changed()) == ((1, None, False), False)
    steps: list[tuple[Callable[[], object], tuple[int, int | None, bool]]] = [
        (candidate.save, (1, 2, False)),
        (replace(candidate, live=True).save, (1, 2, True)),
        (decided(candidate).save, (2, None, False)),
    ]
    for step, then in steps:
        step()
        assert wanted.changed()
        assert seen(wanted) == then
        assert not wanted.changed()
    remove_candidate(base.path)
    assert not wanted.changed(), "a candidate that became the base is none already"
    assert wanted.base == decided(candidate)


def test_a_candidate_that_is_taken_back_is_seen_to_be_gone(base: RunSettings, candidate: Candidate) -> None:
    candidate.save()
    wanted = Wanted(base)
    assert seen(wanted) == (1, 2, False)
    remove_candidate(base.path)
    assert (wanted.changed(), seen(wanted)) == (True, (1, None, False))
    replace(candidate, settings=replace(candidate.settings, version=3)).save()
    assert (wanted.changed(), seen(wanted)) == (True, (1, 3, False))


def test_a_file_that_was_replaced_by_the_same_is_no_change(base: RunSettings, candidate: Candidate) -> None:
    candidate.save()
    wanted = Wanted(base)
    candidate.save()
    base.save()
    assert not wanted.changed()


def test_what_has_not_been_replaced_is_not_read_again(
    base: RunSettings, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked twenty times a second."""
    candidate.save()
    wanted = Wanted(base)
    monkeypatch.setattr(module, "candidate_in", lambda _folder: pytest.fail("nothing was replaced"))
    monkeypatch.setattr(module.RunSettings, "load", lambda _folder: pytest.fail("nothing was replaced"))
    assert not wanted.changed()


def test_a_decision_between_two_readings_is_not_taken_for_a_version_that_was_taken_back(
    base: RunSettings, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that let go of the new version now would have none that the run goes on with."""
    replace(candidate, live=True).save()
    wanted = Wanted(base)
    honest = candidate_in
    replace(base, versions_tried=2).save()

    def later(folder: Path) -> Candidate | None:
        monkeypatch.setattr(module, "candidate_in", honest)
        decided(candidate).save()
        remove_candidate(base.path)
        return honest(folder)

    monkeypatch.setattr(module, "candidate_in", later)
    assert wanted.changed()
    assert seen(wanted) == (2, None, False)


def test_files_that_are_replaced_all_the_time_are_read_at_the_next_look(
    base: RunSettings, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(base)
    candidate.save()
    honest, reads = candidate_in, 0

    def restless(folder: Path) -> Candidate | None:
        nonlocal reads
        reads += 1
        found = honest(folder)
        candidate.save()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(module, "candidate_in", restless)
        assert not wanted.changed()
    assert reads > 1
    assert (wanted.changed(), seen(wanted)) == (True, (1, 2, False))


def test_a_decision_is_seen_when_it_outlives_a_loss_of_power(
    base: RunSettings, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is let go by it. The process that decides may still wait for its disk, or have failed to."""
    replace(candidate, live=True).save()
    wanted = Wanted(base)
    decided(candidate).save()
    with monkeypatch.context() as patched:
        patched.setattr(module, "sync", failing_disk)
        assert not wanted.changed()
        assert seen(wanted) == (1, 2, True)
    assert (wanted.changed(), seen(wanted)) == (True, (2, None, False))


def failing_disk(_folder: Path) -> None:
    raise OSError("Input/output error")


def test_a_file_that_could_not_be_read_is_read_when_it_is_whole_again(
    base: RunSettings, candidate: Candidate, file: Path
) -> None:
    wanted = Wanted(base)
    file.write_text("{")
    for _ in range(2):
        with pytest.raises(EnvironmentFailed, match="cannot be read"):
            wanted.changed()
    candidate.save()
    assert wanted.changed()


def test_a_gateway_that_was_started_for_a_version_that_is_over_by_now_does_not_begin(
    base: RunSettings, candidate: Candidate
) -> None:
    """It would let the log go by the saved states of the version before."""
    candidate.save()
    decided(candidate).save()
    with pytest.raises(EnvironmentFailed, match=r"went on with version 2 .* It has to be started again\."):
        Wanted(base)
    assert seen(Wanted(RunSettings.load(base.path))) == (2, None, False)


def test_a_run_whose_settings_are_not_on_disk_has_those_that_it_was_given(tmp_path: Path) -> None:
    unsaved = RunSettings("run", "flow.py", str(tmp_path), "")
    assert seen(Wanted(unsaved)) == (1, None, False)
