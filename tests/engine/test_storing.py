"""A snapshot links what is needed and no more, and shows every kind of damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.engine import storing
from understudy.engine.storing import (
    Digests,
    link_checkpoint,
    open_snapshot,
    revive_checkpoint,
    seal_snapshot,
    verify_snapshot,
)
from understudy.flow.errors import EnvironmentFailed


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What Spark leaves after nine micro-batches, with a full copy of the state at version 6."""
    root = tmp_path / "checkpoint"
    for log in ("offsets", "commits"):
        (root / log).mkdir(parents=True)
        for number in range(9):
            (root / log / str(number)).write_text(f"{log} {number}")
        (root / log / ".8.crc").write_text("")
    (root / "metadata").write_text('{"id": "one"}')
    store = root / "state" / "0" / "0"
    store.mkdir(parents=True)
    for version in range(1, 11):
        (store / f"{version}.delta").write_text(f"delta {version}")
    (store / "6.snapshot").write_text("all through 6")
    return root


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def sealed(checkpoint: Path, into: Path):
    link_checkpoint(checkpoint, into / "checkpoint")
    return seal_snapshot(into, {"through": 8, "output_through": 7}, Digests())


def test_only_what_the_last_micro_batch_needs_is_linked(checkpoint: Path, tmp_path: Path) -> None:
    link_checkpoint(checkpoint, tmp_path / "into")
    state = {f"state/0/0/{name}" for name in ("6.snapshot", "7.delta", "8.delta", "9.delta")}
    logs = {"offsets/7", "offsets/8", "commits/7", "commits/8"}
    assert names(tmp_path / "into") == {"metadata", *logs, *state}
    assert (tmp_path / "into" / "metadata").stat().st_ino == (checkpoint / "metadata").stat().st_ino


def test_a_file_that_spark_removes_meanwhile_is_no_longer_needed(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes a full copy of the state, and removes what that makes needless, while links are made."""
    store = checkpoint / "state" / "0" / "0"
    really = storing.link

    def overtaken(source: Path, target: Path) -> None:
        if source.name == "6.snapshot":
            (store / "9.snapshot").write_text("all through 9")
            source.unlink()
        really(source, target)

    monkeypatch.setattr(storing, "link", overtaken)
    link_checkpoint(checkpoint, tmp_path / "into")
    assert {name for name in names(tmp_path / "into") if "state" in name} == {"state/0/0/9.snapshot"}


def test_a_checkpoint_without_a_commit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(EnvironmentFailed, match="no committed micro-batch"):
        link_checkpoint(tmp_path / "checkpoint", tmp_path / "into")


def test_equal_files_have_equal_digests_and_a_revived_query_has_its_own_id(
    checkpoint: Path, tmp_path: Path
) -> None:
    one, two = sealed(checkpoint, tmp_path / "one"), sealed(checkpoint, tmp_path / "two")
    assert one.digest == two.digest
    assert verify_snapshot(open_snapshot(tmp_path / "one"))["through"] == 8
    revive_checkpoint(tmp_path / "one" / "checkpoint", tmp_path / "revived")
    assert names(tmp_path / "revived") == names(tmp_path / "one" / "checkpoint")
    assert (tmp_path / "revived" / "metadata").read_text() != '{"id": "one"}'
    assert (checkpoint / "metadata").read_text() == '{"id": "one"}'


@pytest.mark.parametrize("damage", ["changed", "missing", "manifest gone", "manifest cut", "another state"])
def test_damage_is_found_and_named(checkpoint: Path, tmp_path: Path, damage: str) -> None:
    snapshot = sealed(checkpoint, tmp_path / "into")
    victim = tmp_path / "into" / "checkpoint" / "offsets" / "8"
    said = "offsets/8"
    if damage == "changed":
        victim.unlink()
        victim.write_text("offsets 9")
    elif damage == "missing":
        victim.unlink()
    elif damage == "another state":
        (checkpoint / "offsets" / "8").unlink()
        (checkpoint / "offsets" / "8").write_text("something else")
        other = sealed(checkpoint, tmp_path / "other")
        (tmp_path / "into").rename(tmp_path / "old")
        other.directory.rename(tmp_path / "into")
        said = "digest"
    else:
        manifest = tmp_path / "into" / "manifest.json"
        text = manifest.read_text()
        manifest.unlink()
        said = "no manifest.json"
        if damage == "manifest cut":
            manifest.write_text(text[:-9])
            said = "damaged"
    with pytest.raises(EnvironmentFailed, match=said):
        verify_snapshot(snapshot)
