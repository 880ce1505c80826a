"""How safe the state is, in a few words."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from understudy.cli.picture import figures
from understudy.cli.stored import restoring_in, stored, unsaved_in
from understudy.cli.view import _figure_lines
from understudy.core.bucket import NOTHING

NOW_S = 1_700_000_000.0
NOON_S = datetime(2026, 1, 1, 12, 3, 5).timestamp()


def saver(**facts: Any) -> dict[str, Any]:
    """A copy that saved bucket 5 three seconds ago and has taken more since."""
    usual = {
        "begun": True,
        "handed_through": 9,
        "saved_through": 5,
        "saved_at_s": NOW_S - 3,
        "saved_bytes": 4 * 2**20,
        "not_saved_since_s": None,
        "saving_trouble": "",
    }
    return {**usual, **facts}


#: Of a copy that was given nothing.
EMPTY = saver(handed_through=NOTHING, saved_through=None, saved_at_s=0.0, saved_bytes=0)


def saved_by_gateway(at_s: float) -> dict[str, Any]:
    """What the gateway remembers of a/0: some node saved it through bucket 5."""
    return {"a/0": {"through": 5, "at_s": at_s, "bytes": 4 * 2**20}}


def status(copies: dict[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """One node holds all copies, and tells this of them."""
    seats = {copy: {"node": "node-1.1", "status": "ACTIVE", "epoch": 1} for copy in copies}
    nodes = {"node-1.1": {"copies": copies}}
    return {"at_us": int(NOW_S * 1e6), "nodes": nodes, "seats": seats, **more}


def test_the_oldest_saved_state_counts_and_all_sizes() -> None:
    later = saver(saved_at_s=NOW_S - 1)
    assert (
        stored(status({"a/0:0": saver(), "b/0:1": later, "b/0:0": {"begun": True}}))
        == "saved 3 s ago, 8.0 MB"
    )


@pytest.mark.parametrize(("age_s", "said"), [(0, "0 s"), (-5, "0 s"), (119, "119 s"), (600, "10 min")])
def test_an_age_is_told_in_a_unit_that_suits_it(age_s: float, said: str) -> None:
    """The clocks of two machines may differ a little."""
    assert stored(status({"a/0:0": saver(saved_at_s=NOW_S - age_s)})) == f"saved {said} ago, 4.0 MB"


def test_a_state_that_rests_is_not_old() -> None:
    resting = saver(handed_through=5, saved_at_s=NOW_S - 9_999)
    assert stored(status({"a/0:0": resting})) == "all saved, 4.0 MB"
    assert stored(status({"a/0:0": resting, "b/0:0": saver()})) == "saved 3 s ago, 8.0 MB"
    assert stored(status({"a/0:0": resting, "b/0:0": EMPTY})) == "all saved, 4.0 MB", "b/0 was given nothing"


def test_a_run_that_was_given_nothing_has_nothing_to_save() -> None:
    assert stored(status({"a/0:0": EMPTY})) == "nothing to save yet"


@pytest.mark.parametrize("resting", [True, False], ids=["after a start", "after a restart"])
def test_what_waits_in_the_gateway_for_a_copy_is_not_saved(resting: bool) -> None:
    copies = {"a/0:0": saver(handed_through=5), "b/0:0": saver(handed_through=5) if resting else EMPTY}
    said = "saved 3 s ago, 8.0 MB" if resting else "not saved yet"
    assert stored(status(copies, awaiting_rows=["b/0:0"])) == said
    assert unsaved_in(status(copies, awaiting_rows=["b/0:0"])) == ["b/0"]


def test_what_waits_for_a_copy_that_does_not_save_is_saved() -> None:
    copies = {"a/0:0": saver(handed_through=5), "a/0:1": {"begun": True}}
    assert stored(status(copies, awaiting_rows=["a/0:1"])) == "all saved, 4.0 MB"


def test_what_waits_in_the_node_is_not_saved() -> None:
    waiting = saver(handed_through=5, queued_buckets=3)
    assert stored(status({"a/0:0": waiting})) == "saved 3 s ago, 4.0 MB"


def test_what_a_dead_node_told_last_does_not_count() -> None:
    """Its seat stays its own until another copy takes it."""
    now = status({"a/0:1": saver(handed_through=5)}, saved=saved_by_gateway(NOW_S - 3))
    now["seats"] = {"a/0:0": {"node": "node-2.1", "status": "DEAD", "epoch": 1}, **now["seats"]}
    dead = {"node-2.1": {"copies": {"a/0:0": saver(saved_at_s=NOW_S - 130)}}}
    for nodes in ({**dead, **now["nodes"]}, {**now["nodes"], **dead}):
        assert stored({**now, "nodes": nodes}) == "all saved, 4.0 MB"


def test_a_copy_that_takes_the_saving_over_has_the_state_that_others_saved() -> None:
    newcomer = saver(saved_through=None, saved_at_s=0.0, saved_bytes=0)
    now = status({"a/0:1": newcomer}, saved=saved_by_gateway(NOW_S - 7))
    assert stored(now) == "saved 7 s ago, 4.0 MB"
    assert (
        stored(status({"a/0:1": {**newcomer, "handed_through": 5}}, saved=now["saved"]))
        == "all saved, 4.0 MB"
    )


def test_what_the_copy_that_saves_has_saved_counts_whatever_its_clock_shows() -> None:
    newer = saver(saved_through=7, saved_at_s=NOW_S - 1, saved_bytes=2**20)
    assert stored(status({"a/0:1": newer}, saved=saved_by_gateway(NOW_S - 7))) == "saved 1 s ago, 1.0 MB"
    restored = status({"a/0:1": saver(saved_bytes=0)}, saved=saved_by_gateway(NOW_S - 7))
    assert stored(restored) == "saved 7 s ago, 4.0 MB", "how large it is the gateway knows"
    stepped_back = status({"a/0:1": saver(saved_through=9)}, saved=saved_by_gateway(NOW_S + 600))
    assert unsaved_in(stepped_back) == []


def test_a_copy_that_went_on_from_an_older_snapshot_has_no_more_than_that() -> None:
    """The newest one was damaged. What came since is not saved, although it was once."""
    restored = saver(saved_through=2, saved_at_s=NOW_S - 20, handed_through=5)
    now = status({"a/0:0": restored}, saved=saved_by_gateway(NOW_S - 7))
    assert unsaved_in(now) == ["a/0"]
    assert stored(now) == "saved 20 s ago, 4.0 MB"


def test_between_two_savers_the_last_save_is_told() -> None:
    now = status({"a/0:1": {"begun": True}}, saved=saved_by_gateway(NOW_S - 7))
    assert stored(now) == "saved 7 s ago, 4.0 MB"


def test_a_run_that_goes_on_has_a_state_whatever_is_known_of_it_yet() -> None:
    waits = saver(begun=False, handed_through=NOTHING, saved_through=None, saved_at_s=0.0, saved_bytes=0)
    going_on = {"down": ["a/0"], "awaiting_rows": ["a/0:0"]}
    assert stored(status({"a/0:0": waits}, **going_on)) == "RESTORING a/0"
    assert stored(status({"a/0:0": waits}, awaiting_rows=["a/0:0"])) == ""
    assert unsaved_in(status({"a/0:0": waits}, awaiting_rows=["a/0:0"])) == ["a/0"]


def test_before_the_first_save_that_is_said() -> None:
    assert stored(status({"a/0:0": saver(), "b/0:0": saver(saved_through=None)})) == "not saved yet"


def test_since_when_nothing_is_saved_and_why() -> None:
    failing = saver(not_saved_since_s=NOON_S, saving_trouble="the disk is full")
    longer = saver(not_saved_since_s=NOON_S + 60, saving_trouble="no answer")
    said = stored(status({"a/0:0": saver(), "b/0:0": longer, "c/0:0": failing}))
    assert said == "NOT SAVED since 12:03:05: the disk is full"


def test_a_copy_that_waits_for_its_saved_state_says_so() -> None:
    waits = saver(begun=False, saving_trouble="a/0:0 waits for its saved state: no answer")
    assert stored(status({"a/0:0": waits})) == "a/0:0 waits for its saved state: no answer"


def test_partitions_that_are_being_restored_are_named_until_a_copy_works() -> None:
    lost = status({"a/0:0": {"begun": False}}, down=["b/0"], restored={"a/0": 7})
    assert restoring_in(lost) == ["a/0", "b/0"]
    assert stored(lost) == "RESTORING a/0, b/0"
    back = status({"a/0:0": saver()}, down=["b/0"], restored={"a/0": 7})
    assert stored(back) == "RESTORING b/0; saved 3 s ago, 4.0 MB"


@pytest.mark.parametrize("nothing", [{}, status({}), status({"a/0:0": {"begun": True}})])
def test_of_a_run_that_saves_nothing_nothing_is_said(nothing: dict[str, Any]) -> None:
    assert stored(nothing) == ""
    assert "state" not in "".join(_figure_lines(figures({}, nothing)))


def test_status_and_views_show_it() -> None:
    shown = figures({}, status({"a/0:0": saver()}, waiting_for_room=["rows"]))
    assert shown.sentence.endswith("; saved 3 s ago, 4.0 MB; back pressure on rows")
    assert _figure_lines(shown)[-1] == "state saved 3 s ago, 4.0 MB"
