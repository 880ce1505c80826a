"""What a gateway remembers of saved states."""

from __future__ import annotations

from typing import Any

from understudy.runtime.gateway.newest_saves import NewestSaves


def told(copy: str, through: int | None, at_s: float = 0.0) -> dict[str, Any]:
    """What a node tells of the copy that saves, and of one that does not."""
    stats = {"saved_through": through, "saved_at_s": at_s, "saved_bytes": 10}
    return {"kind": "stats", "copies": {copy: stats, "other/0:0": {"begun": True}}}


def test_the_newest_save_of_each_partition_stays_whichever_node_told_of_it() -> None:
    saves = NewestSaves()
    saves.note(told("a/0:0", 5, 100.0))
    saves.note(told("b/0:1", 9, 90.0))
    saves.note(told("a/0:1", None))
    saves.note(told("a/0:1", 3, 80.0))
    assert saves.status() == {
        "a/0": {"through": 5, "at_s": 100.0, "bytes": 10},
        "b/0": {"through": 9, "at_s": 90.0, "bytes": 10},
    }
    saves.note(told("a/0:1", 7, 110.0))
    assert saves.status()["a/0"] == {"through": 7, "at_s": 110.0, "bytes": 10}


def test_a_wall_clock_that_steps_back_makes_no_save_older() -> None:
    saves = NewestSaves()
    saves.note(told("a/0:0", 100, 1_000.0))
    saves.note(told("a/0:0", 200, 400.0))
    assert saves.status()["a/0"] == {"through": 200, "at_s": 400.0, "bytes": 10}
    saves.note(told("a/0:0", 200, 410.0))
    assert saves.status()["a/0"]["at_s"] == 410.0, "a copy at rest saved the same once more"


def test_a_node_that_saves_nothing_tells_nothing() -> None:
    saves = NewestSaves()
    saves.note({"kind": "stats"})
    saves.note({"copies": {"a/0:0": {"begun": True}}})
    assert saves.status() == {}
