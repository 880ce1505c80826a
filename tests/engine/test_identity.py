"""A snapshot says what it is of, and goes nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from understudy.engine.identity import WHOLE, Identity, Share
from understudy.engine.storing import Digests, read_manifest, seal_snapshot
from understudy.flow.errors import EnvironmentFailed, FlowError

SESSIONS = Identity(
    "sessions",
    Share(0, 3, ("src", "dst")),
    {"stats": (("app", "src"), 2)},
    {"hosts.parquet/part-0": "10 bytes, ab", "apps.csv": "7 bytes, cd"},
)


def written(identity: Identity, directory: Path) -> dict[str, Any]:
    """What a snapshot's manifest says when it is read again."""
    directory.mkdir()
    seal_snapshot(directory, {**identity.facts(), "through": 5, "output_through": 4}, Digests())
    return read_manifest(directory)


def test_a_snapshot_goes_on_where_it_was_taken(tmp_path: Path) -> None:
    SESSIONS.require_own(tmp_path, written(SESSIONS, tmp_path / "snapshot"))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(SESSIONS, fragment="stats"), "is of fragment 'sessions', not 'stats'"),
        (
            replace(SESSIONS, share=Share(1, 3, ("src", "dst"))),
            "'sessions' is of partition 0 of 3 by src, dst, not of partition 1 of 3 by src, dst",
        ),
        (replace(SESSIONS, share=Share(0, 2, ("src", "dst"))), "not of partition 0 of 2 by src, dst"),
        (replace(SESSIONS, share=Share(0, 3, ("src",))), "not of partition 0 of 3 by src. Restore"),
        (replace(SESSIONS, share=WHOLE), "not of partition 0 of 1. Restore"),
        (
            replace(SESSIONS, tables={**SESSIONS.tables, "hosts.parquet/part-0": "10 bytes, ef"}),
            "'sessions' reads the table hosts.parquet, and its file part-0 differs between replicas: "
            "10 bytes, ef here, 10 bytes, ab where",
        ),
        (
            replace(SESSIONS, tables={"hosts.parquet/part-0": "10 bytes, ab"}),
            "the table apps.csv, and its file apps.csv differs between replicas: missing here, 7 bytes, cd",
        ),
        (
            replace(SESSIONS, dealt_to={"stats": (("app", "src"), 3)}),
            r"dealt out to stats \(by app, src into 2\), not to stats \(by app, src into 3\)",
        ),
    ],
)
def test_a_snapshot_goes_nowhere_else(tmp_path: Path, other: Identity, said: str) -> None:
    with pytest.raises(EnvironmentFailed, match=said):
        other.require_own(tmp_path, written(SESSIONS, tmp_path / "snapshot"))


@pytest.mark.parametrize("dealt_to", [{}, {**SESSIONS.dealt_to, "more": (("app",), 3)}])
def test_consumers_may_come_and_go(tmp_path: Path, dealt_to: Any) -> None:
    replace(SESSIONS, dealt_to=dealt_to).require_own(tmp_path, written(SESSIONS, tmp_path / "snapshot"))


def test_a_state_does_not_go_on_under_a_fragment_of_another_shape(tmp_path: Path) -> None:
    shape = {
        **{"inputs": [["packets", "ts"]], "reads": 1, "time": "ts", "width_us": 100, "lag_us": 0},
        **{"extent_us": 0, "stepwise": False, "operators": [], "output": [], "plan": "p"},
    }
    manifest = written(replace(SESSIONS, shape=shape), tmp_path / "snapshot")
    replace(SESSIONS, shape={**shape, "plan": "q"}).require_own(tmp_path, manifest)
    with pytest.raises(FlowError, match="'sessions': its time is 'end' and was 'ts'"):
        replace(SESSIONS, shape={**shape, "time": "end"}).require_own(tmp_path, manifest)
