"""What a flow says about its partitions, and what is refused of it before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

import understudy as us
from understudy.engine.segments import topology_of
from understudy.flow.errors import FlowError

EVENTS = "src string, n int, price double, ts timestamp"


def pair(left: Any, right: Any) -> Any:
    return left, right


def same(rows: Any) -> Any:
    return rows


def flow_of(partition_by: list[str], *schemas: str, partitions: int | None = None) -> us.Flow:
    flow = us.Flow("f")
    sources = [
        flow.source(f"s{at}", us.Push(schema), time="ts") for at, schema in enumerate(schemas or (EVENTS,))
    ]
    function = pair if len(sources) == 2 else same
    made = flow.fragment(*sources, time="ts", partition_by=partition_by, partitions=partitions)(function)
    flow.sink(made, us.Console())
    return flow


@pytest.mark.parametrize("partitions", [0, -1, 1.5, True])
def test_a_number_of_partitions_is_a_whole_number_from_one_on(partitions: Any) -> None:
    with pytest.raises(FlowError, match=r"'same': partitions must be a whole number from 1 on"):
        flow_of(["src"], partitions=partitions)


def test_partitions_need_columns_to_deal_rows_out_by() -> None:
    with pytest.raises(FlowError, match=r"'same': 3 partitions need partition_by"):
        flow_of([], partitions=3)
    flow_of([], partitions=1).validate()


def test_explain_tells_columns_and_number() -> None:
    assert "  partition src, n into 3\n" in flow_of(["src", "n"], partitions=3).explain()
    assert "  partition src\n" in flow_of(["src"]).explain()


def test_a_fragments_own_number_goes_before_the_runs() -> None:
    flow = us.Flow("f")
    source = flow.source("s", us.Push(EVENTS), time="ts")
    counts = {"own": ("src", 3), "one": ("src", 1), "runs": ("src", None), "whole": ("", None)}
    for name, (key, partitions) in counts.items():

        def function(rows: Any) -> Any:
            return rows

        function.__name__ = name
        flow.fragment(source, time="ts", partition_by=[key] if key else [], partitions=partitions)(function)
    flow.sink("own", us.Console())
    assert topology_of(flow, "fragment", 5).counts == {"own": 3, "one": 1, "runs": 5, "whole": 1}


def test_a_key_that_a_source_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(
        FlowError, match=r"'same' is partitioned by 'dst', .* 's0' does not have.*src, n, price"
    ):
        flow_of(["src", "dst"]).validate()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("price double", "double"),
        ("price decimal(9, 2)", "decimal128"),
        ("price array<int>", "list"),
        ("price timestamp_ntz", "timestamp"),
    ],
)
def test_a_key_that_rows_cannot_be_dealt_out_by_is_refused(column: str, kind: str) -> None:
    with pytest.raises(
        FlowError, match=rf"'same' is partitioned by 'price', which is {kind}.*'s0'.*string, bin"
    ):
        flow_of(["price"], f"{column}, ts timestamp").validate()


def test_inputs_are_partitioned_alike_or_refused() -> None:
    with pytest.raises(FlowError, match=r"'pair'.*'k', which is string in its input 's0' but integer .*'s1'"):
        flow_of(["k"], "k string, ts timestamp", "k bigint, ts timestamp").validate()
    # Integers of different widths hash alike.
    flow_of(["k"], "k smallint, ts timestamp", "k bigint, ts timestamp").validate()
