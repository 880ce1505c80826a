"""Which changes of a flow its state takes, by shapes written down here: no Spark decides any of this."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pyarrow as pa
import pytest

from understudy.core.errors import BrokenInvariant
from understudy.engine.conforming import conformed, together
from understudy.engine.fitting import FORMAT, fit
from understudy.engine.input_queue import InputQueue
from understudy.engine.query import Input
from understudy.flow.errors import FlowError


def part(text: str) -> dict[str, str]:
    return {"shown": text, "exact": text, "type": ""}


COUNTS = {"kind": "groupBy", "keys": [part("window(ts, 1 s)"), part("k")], "sums": [part("count(1)")]}


def fragment(*inputs: str, operators: tuple[Any, ...] = (), **facts: Any) -> dict[str, Any]:
    return {
        "inputs": [[name, "ts"] for name in inputs],
        "reads": len(inputs),
        "time": "ts",
        "width_us": 100_000,
        "lag_us": 0,
        "extent_us": 1_001_000 if operators else 0,
        "stepwise": False,
        "operators": list(operators),
        "output": [["k", "string", True], ["ts", "timestamp[us, tz=UTC]", True]],
        "plan": "p",
        "partitions": {"count": 1, "by": []},
        "tables": {},
        **facts,
    }


def flow(**changed: Any) -> dict[str, Any]:
    """Events are cleaned, and counted from that; the counts have a sink, and so has a fragment apart."""
    return {
        "format": FORMAT,
        "flow": "shop",
        "unit": "flow",
        "width_us": 100_000,
        "sources": ["events"],
        "segments": {"clean+counts": ["clean", "counts"], "apart": ["apart"]},
        "fragments": {
            "clean": fragment("events"),
            "counts": fragment("clean", operators=(COUNTS,)),
            "apart": fragment("events"),
        },
        "sinks": {"counts": "counts", "apart": "apart"},
        **changed,
    }


def changed(name: str, **facts: Any) -> dict[str, Any]:
    now = copy.deepcopy(flow())
    now["fragments"][name].update(facts)
    return now


def counts_with(**parts: Any) -> dict[str, Any]:
    return changed("counts", operators=[{**COUNTS, **parts}])


def require_true_of_upgrades(said: list[str]) -> None:
    """A run that is upgraded does not stop."""
    assert [sentence for sentence in said if re.search(r"\b(stop|restart)", sentence)] == []


def sentences(before: Any, after: Any) -> tuple[list[str], list[str]]:
    """Refusals and accepted changes, with the shape of before as a file brings it back."""
    found = fit(json.loads(json.dumps(before, sort_keys=True)), after)
    require_true_of_upgrades([each.sentence for each in (*found.refusals, *found.accepted)])
    return [each.sentence for each in found.refusals], [each.sentence for each in found.accepted]


def test_a_flow_that_has_not_changed_goes_on_without_a_word() -> None:
    assert sentences(flow(), flow()) == ([], [])
    assert fit(flow(), flow()).snapshots == {"clean+counts": "clean+counts", "apart": "apart"}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (flow(flow="store"), "of flow 'shop', not of 'store'"),
        (flow(unit="fragment"), "replicated by flows and would now be by fragments.*Keep the policy"),
        (flow(width_us=50_000), "buckets were 100 ms wide and are 50 ms now"),
        (flow(sources=["events", "more"]), "had the sources events, and has events, more now"),
        (
            counts_with(keys=[part("window(ts, 2 s)"), part("k")]),
            r"'counts': its groupBy has the keys window\(ts, 2 s\), k and had window\(ts, 1 s\), k\. .*would "
            r"mix.*\. Undo that change, or start a new run in a new folder$",
        ),
        (
            counts_with(sums=[part("count(1)"), part("max(v)")]),
            r"the aggregates count\(1\), max\(v\) and had count\(1\)\. .*leave the output's columns",
        ),
        (
            changed("counts", operators=[{"kind": "dropDuplicates", "keys": COUNTS["keys"]}]),
            "'counts': it has dropDuplicates and had groupBy",
        ),
        (
            changed("counts", operators=[COUNTS, COUNTS]),
            "'counts': it has groupBy, then groupBy and had groupBy",
        ),
        (
            changed("counts", operators=[]),
            "'counts': it no longer keeps a state and had groupBy.*would never come out",
        ),
        (changed("clean", operators=[COUNTS]), r"'clean': it keeps a state now \(groupBy\) and had none"),
        (changed("counts", extent_us=2_001_000), "'counts': its state reaches back 2001 ms and .*1001 ms"),
        (changed("counts", extent_us=None), "'counts': its state reaches back without bound"),
        (changed("counts", time="at"), "'counts': its time is 'at' and was 'ts'.*new run in a new folder$"),
        (
            changed("apart", time="at"),
            "'apart': its time is 'at' and was 'ts'.*new run in a new folder$",
        ),
        (changed("apart", lag_us=300_000), "'apart': its output may lag 300 ms .*lagged 0 ms at most"),
        (
            changed("counts", inputs=[["events", "ts"]]),
            "'counts': it reads events and read clean before.*new run in a new folder$",
        ),
        (
            changed("counts", inputs=[["clean", "at"]]),
            "'counts': the time column of its input 'clean' has ch",
        ),
        (changed("apart", reads=2), "'apart': it reads its inputs in 2 places and did so in 1 before"),
        (
            changed("apart", output=[["k", "int64", True], ["ts", "timestamp[us, tz=UTC]", True]]),
            "'apart': its output column 'k' is int64, and was string.*Give the column another name",
        ),
        (
            changed("counts", partitions={"count": 2, "by": ["k"]}),
            "'counts' has 2 partitions by k and had one partition",
        ),
        (
            changed("counts", tables={"hosts.csv": "7 bytes, ab"}),
            "'counts' reads the table hosts.csv, and its file hosts.csv is 7 bytes, ab and was missing",
        ),
        (
            flow(sinks={"counts": "clean", "apart": "apart"}),
            "sink 'counts' takes .* 'clean' and took .*'counts'",
        ),
    ],
)
def test_what_the_state_cannot_take_is_refused_once_and_with_what_to_do(after: Any, said: str) -> None:
    refused, _ = sentences(flow(), after)
    assert len(refused) == 1
    with pytest.raises(FlowError, match=said):
        fit(flow(), after).require()


def test_a_shape_of_another_format_is_not_compared() -> None:
    refused, accepted = sentences({"format": FORMAT + 1}, flow())
    assert "another version of Understudy" in refused[0]
    assert (len(refused), accepted) == (1, [])


def test_filters_columns_and_steps_may_change_and_are_told() -> None:
    output = [["ts", "timestamp[us, tz=UTC]", True], ["n", "int64", False]]
    refused, accepted = sentences(flow(), changed("counts", plan="q", output=output, stepwise=True))
    assert refused == []
    assert len(accepted) == 4
    assert all(sentence.startswith("fragment 'counts' goes on: ") for sentence in accepted)
    assert "filters, projections or functions have changed. What its saved state holds" in accepted[0]
    assert accepted[1].endswith("no longer has column 'k'")
    assert "the new column 'n', null in rows" in accepted[2]
    assert accepted[3].endswith("now takes one bucket at a time")
    # Without a state there is nothing that the code before took in.
    assert sentences(flow(), changed("apart", plan="q"))[1] == [
        "fragment 'apart' goes on: its filters, projections or functions have changed"
    ]


def test_an_output_that_lags_less_than_before_goes_on() -> None:
    before = changed("apart", lag_us=300_000)
    assert sentences(before, flow()) == ([], [])


def test_a_column_that_is_never_null_is_refused_where_a_fragment_reads_rows_from_before() -> None:
    output = [["k", "string", True], ["ts", "timestamp[us, tz=UTC]", True], ["n", "int64", False]]
    refused, _ = sentences(flow(), changed("clean", output=output))
    assert len(refused) == 1
    assert (
        "column 'n' is never null now, but rows that the code before computed and that wait for counts may"
        in refused[0]
    )
    # A sink takes nulls.
    assert sentences(flow(), changed("apart", output=output))[0] == []


def test_a_change_is_not_called_accepted_where_its_fragment_is_refused() -> None:
    refused, accepted = sentences(flow(), counts_with(keys=[part("k")]) | {"sinks": {"apart": "apart"}})
    assert (len(refused), accepted) == (1, ["sink 'counts' is gone"])


def test_sinks_come_and_go() -> None:
    refused, accepted = sentences(flow(), flow(sinks={"counts": "counts", "raw": "clean"}))
    assert refused == []
    assert accepted == [
        "sink 'raw' is new: it gets what fragment 'clean' completes from now on",
        "sink 'apart' is gone",
    ]


def test_a_fragment_that_keeps_no_state_may_come() -> None:
    after = flow(segments={"clean+counts+tail": ["clean", "counts", "tail"], "apart": ["apart"]})
    after["fragments"]["tail"] = fragment("clean")
    refused, accepted = sentences(flow(), after)
    assert refused == []
    assert accepted == [
        "fragment 'tail' is new and keeps no state: it begins with the first bucket after the saved state"
    ]
    assert fit(flow(), after).snapshots == {"clean+counts+tail": "clean+counts", "apart": "apart"}


def test_a_fragment_that_keeps_no_state_may_come_beside_what_it_reads() -> None:
    after = flow(segments={**flow()["segments"], "tail": ["tail"]})
    after["fragments"]["tail"] = fragment("apart")
    refused, _ = sentences(flow(), after)
    assert refused == []
    assert fit(flow(), after).snapshots["tail"] is None


def test_a_fragment_that_reads_a_source_may_not_come() -> None:
    """The log does not have what it would begin with."""
    after = flow(segments={**flow()["segments"], "tail": ["tail"]})
    after["fragments"]["tail"] = fragment("events")
    refused, accepted = sentences(flow(), after)
    assert accepted == []
    assert len(refused) == 1
    assert "fragment 'tail' is new and reads the source events. It would begin in the middle" in refused[0]


def test_a_fragment_that_keeps_a_state_may_not_come() -> None:
    after = flow()
    after["fragments"]["tail"] = fragment("clean", operators=(COUNTS,))
    refused, accepted = sentences(flow(), after)
    assert accepted == []
    assert "fragment 'tail' is new and keeps a state (groupBy)" in refused[0]


def test_a_fragment_may_go_with_its_sink_and_its_segment_may_break_apart() -> None:
    before = flow(segments={"all": ["clean", "counts", "apart"]})
    after = flow(segments={"clean": ["clean"], "apart": ["apart"]}, sinks={"apart": "apart"})
    del after["fragments"]["counts"]
    refused, accepted = sentences(before, after)
    assert refused == []
    assert accepted == [
        "fragment 'counts' is gone. What its state held is dropped, open windows too",
        "sink 'counts' is gone",
    ]
    assert fit(before, after).snapshots == {"clean": "all", "apart": "all"}


def test_a_fragment_that_makes_one_segment_of_two_is_refused() -> None:
    after = flow(segments={"clean+3": ["clean", "counts", "apart", "both"]})
    after["fragments"]["both"] = fragment("counts", "apart")
    refused, _ = sentences(flow(), after)
    assert len(refused) == 1
    assert refused[0].startswith(
        "fragment 'both' makes one segment of clean+counts and apart, which ran apart"
    )


def test_old_rows_get_the_columns_of_now_by_name() -> None:
    old = pa.table({"gone": [1, 2], "k": ["a", "b"], "n": [3, 4]})
    schema = pa.schema(
        [pa.field("n", pa.int64(), False), ("k", pa.string()), pa.field("new", pa.int32(), False)]
    )
    rows = conformed(old, schema)
    assert rows.to_pylist() == [{"n": 3, "k": "a", "new": None}, {"n": 4, "k": "b", "new": None}]
    assert rows.schema.field("new").nullable
    assert conformed(rows, rows.schema) is rows
    with pytest.raises(BrokenInvariant, match="column k is string, not int64"):
        conformed(old, pa.schema([("k", pa.int64())]))


def test_of_two_columns_by_one_name_each_keeps_its_place() -> None:
    old = pa.table([[1], [2]], names=["x", "x"])
    rows = conformed(old, pa.schema([("y", pa.int64()), ("x", pa.int64()), ("x", pa.int64())]))
    assert [column.to_pylist() for column in rows.columns] == [[None], [1], [2]]


def test_old_rows_and_new_ones_are_one_table_though_only_the_old_ones_have_nulls() -> None:
    never = pa.schema([pa.field("n", pa.int64(), False)])
    rows = together([pa.table({"n": pa.array([None], pa.int64())}), pa.table([[5]], schema=never)])
    assert rows.column("n").to_pylist() == [None, 5]
    same = pa.table([[5]], schema=never)
    assert together([same, same]).schema == never


def test_a_queue_that_begins_late_leaves_out_what_came_before() -> None:
    schema = pa.schema([("ts", pa.timestamp("us", tz="UTC"))])
    queue = InputQueue(Input(schema, "ts"), 10)
    queue.begin_after(3)
    queue.add([pa.table([[25, 39, 40, 57]], schema=schema)], 5)
    queue.add([pa.table([[61]], schema=schema)], 6)
    assert queue.rows.column("ts").cast(pa.int64()).to_pylist() == [40, 57, 61]
