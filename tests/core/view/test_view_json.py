"""A view as text, in full or as the changes since an earlier one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from core_kit import seats, view
from hypothesis import given, settings
from hypothesis import strategies as st
from view_histories import view_histories

from understudy.core.errors import PeerError
from understudy.core.shape.topology import chain_of
from understudy.core.view.view import View

FULL = view(3, f=seats(3, "a", "b@3 STDBY"), g=seats(1, "ä", "b"))


@settings(max_examples=100, deadline=None)
@given(view_histories(chain_of(low=2, high=1)), st.data())
def test_every_view_survives_its_journey_in_full_and_as_changes_since_any_earlier_one(
    history: list[View], data: st.DataObject
) -> None:
    later = data.draw(st.sampled_from(history))
    earlier = data.draw(st.sampled_from([each for each in history if each.epoch <= later.epoch]))
    assert View.from_json(later.to_json()) == later
    assert View.from_json(later.to_json().encode()) == later
    changes = later.to_json(since=earlier)
    assert View.from_json(changes, {each.epoch: each for each in history}) == later


def test_the_changes_since_a_view_name_only_the_partitions_that_changed() -> None:
    later = view(4, f=seats(4, "a", "b@3"), g=seats(1, "ä", "b"))
    parsed = json.loads(later.to_json(since=FULL))
    assert [name for name, *_ in parsed["partitions"]] == ["f"]
    assert parsed["since"] == 3


def test_changes_since_a_view_that_is_not_known_are_refused() -> None:
    later = view(4, f=seats(4, "a", "b@3"), g=seats(1, "ä", "b"))
    with pytest.raises(PeerError, match="since 3, which is not known here"):
        View.from_json(later.to_json(since=FULL), {4: later})


def test_a_view_tells_with_which_epoch_a_partition_was_restored() -> None:
    restored = view(4, f=replace(seats(4, "c@4", "b@3 DEAD"), restored=4), g=seats(1, "ä", "b"))
    assert View.from_json(restored.to_json()) == restored
    assert View.from_json(restored.to_json(since=FULL), {3: FULL}) == restored


def part(**change: object) -> dict[str, object]:
    """The first partition of the view, with one field of its six changed."""
    names = ("name", "index", "epoch", "seats", "lost", "restored")
    fields = dict(zip(names, json.loads(FULL.to_json())["partitions"][0], strict=True))
    return {"partitions": [list({**fields, **change}.values())]}


@pytest.mark.parametrize(
    "damage",
    [
        {"epoch": "3"},
        {"epoch": True},
        {"epoch": 2},
        {"epoch": None},
        {"partitions": {}},
        {"partitions": [[]]},
        part(name=3),
        part(name=""),
        part(index=-1),
        part(index="0"),
        part(epoch=9),
        part(seats=[]),
        part(seats=[["a", 1]]),
        part(seats=[["a", 1, "WELL"]]),
        part(seats=[["a", 0, "ACTIVE"]]),
        part(seats=[[None, 1, "ACTIVE"]]),
        part(seats=[["a", 1, "ACTIVE"], ["a", 1, "ACTIVE"]]),
        part(lost="although all is well"),
        part(lost=3),
        part(restored=None),
        part(restored="3"),
        {"drained": "b"},
        {"drained": [3]},
        {"wanted": [["f/0:1"]]},
        {"wanted": [["f/0", "a"]]},
        {"wanted": [["h/0:1", "a"]]},
        {"since": 1},
        {"since": []},
        {"more": 1},
    ],
)
def test_a_damaged_view_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(PeerError, match="not a view"):
        View.from_json(json.dumps(json.loads(FULL.to_json()) | damage))


@pytest.mark.parametrize("gone", ["epoch", "partitions", "drained", "wanted"])
def test_a_view_without_one_of_its_fields_is_refused(gone: str) -> None:
    parsed = json.loads(FULL.to_json())
    del parsed[gone]
    with pytest.raises(PeerError, match="not a view"):
        View.from_json(json.dumps(parsed))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", b"\xff", "[" * 100_000], ids=lambda text: text[:4])
def test_what_is_no_view_at_all_is_refused_and_only_its_beginning_is_shown(text: str | bytes) -> None:
    with pytest.raises(PeerError, match="not a view") as raised:
        View.from_json(text)
    assert len(str(raised.value)) < 500
