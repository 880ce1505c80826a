"""Refuses what would make two replicas differ, and what cannot run here.

A fragment's output must be a function of its input alone. An expression that depends on chance, on the clock,
or on where Spark happens to process a row is found in the analysed plan and refused by name. So is a
watermark of the user's own: the flow itself seals time, and a second watermark would drop rows by a rule that
the replicas do not share.

`dropDuplicatesWithinWatermark` is refused because a flow's watermark has no delay: it is the boundary of what
is sealed, so the operator would forget every key at once.

`transformWithState` is refused because its state server speaks protobuf: the Python package of that name is
not among ours, and without it Spark's workers end without a word.
"""

from __future__ import annotations

from collections.abc import Collection

from understudy.engine.plan import PlanNode
from understudy.flow.errors import FlowError

_CHANCE = (
    "gives another value on every replica. Compute it before rows enter the flow, or derive it from a row's "
    "columns"
)
_CLOCK = (
    "reads the clock, which differs between replicas and between a run and its repetition. Use the row's "
    "own time"
)
_PLACE = "depends on where Spark happens to process a row. Use a column of the row"
_SAMPLE = (
    "keeps rows that it chooses by chance, others on every replica. Use percentile_approx, which gives the "
    "same on all"
)
_PROTOBUF = (
    "does not run here: Spark's workers would need the protobuf package for it, which Understudy does not "
    "install. Use applyInPandasWithState: it keeps state for each key as well, with event-time timeouts"
)

_NO_DELAY = (
    "removes duplicates for as long as the watermark is delayed, and a flow's watermark has no delay: nearly "
    'all of them would stay. For rows sent twice use dropDuplicates(["key", "ts"]), with the time column '
    "among the keys; for one row of a key in ten minutes, "
    'withColumn("w", F.window("ts", "10 minutes")).drop("ts").dropDuplicates(["key", "w"]), with "w.end" as '
    "the time of the fragment"
)

REFUSED: dict[str, tuple[str, str]] = {
    "Rand": ("rand", _CHANCE),
    "Randn": ("randn", _CHANCE),
    "RandStr": ("randstr", _CHANCE),
    "Uniform": ("uniform", _CHANCE),
    "Uuid": ("uuid", _CHANCE),
    "Shuffle": ("shuffle", _CHANCE),
    "Sample": ("sample", _CHANCE),
    "CurrentTimestamp": ("current_timestamp", _CLOCK),
    "CurrentTimestampLike": ("current_timestamp", _CLOCK),
    "CurrentBatchTimestamp": ("current_timestamp", _CLOCK),
    "Now": ("now", _CLOCK),
    "CurrentDate": ("current_date", _CLOCK),
    "CurDateExpressionBuilder": ("curdate", _CLOCK),
    "CurrentTime": ("current_time", _CLOCK),
    "LocalTimestamp": ("localtimestamp", _CLOCK),
    "MonotonicallyIncreasingID": ("monotonically_increasing_id", _PLACE),
    "SparkPartitionID": ("spark_partition_id", _PLACE),
    "InputFileName": ("input_file_name", _PLACE),
    "InputFileBlockStart": ("input_file_block_start", _PLACE),
    "InputFileBlockLength": ("input_file_block_length", _PLACE),
    "KllSketchAggBigint": ("kll_sketch_agg_bigint", _SAMPLE),
    "KllSketchAggDouble": ("kll_sketch_agg_double", _SAMPLE),
    "KllSketchAggFloat": ("kll_sketch_agg_float", _SAMPLE),
    "KllMergeAggBigint": ("kll_merge_agg_bigint", _SAMPLE),
    "KllMergeAggDouble": ("kll_merge_agg_double", _SAMPLE),
    "KllMergeAggFloat": ("kll_merge_agg_float", _SAMPLE),
    "DeduplicateWithinWatermark": ("dropDuplicatesWithinWatermark", _NO_DELAY),
    "TransformWithStateInPySpark": ("transformWithState", _PROTOBUF),
}


def require_deterministic(fragment: str, plan: PlanNode, own_watermarks: Collection[str]) -> None:
    """Raise a FlowError if the plan holds something that is to be refused.

    `own_watermarks` are the ids of the watermarks that the engine itself put on the inputs.
    """
    for node in plan.walk():
        if node.kind == "EventTimeWatermark" and node.fields.get("nodeId") not in own_watermarks:
            raise FlowError(
                f"fragment {fragment!r} calls withWatermark. A flow seals time itself, from the time column "
                "of its sources: remove the call; windows, joins and deduplication work without it"
            )
        if node.kind in REFUSED:
            raise _refusal(fragment, node.kind, "")
        _require_no_wall_clock_timers(fragment, node)
        for trees in node.trees.values():
            for tree in trees:
                column = f" (in column {tree.name!r})" if tree.kind == "Alias" else ""
                for part in _deep(tree):
                    if part.kind in REFUSED:
                        raise _refusal(fragment, part.kind, column)
                    if part.fields.get("udfDeterministic") is False:
                        raise FlowError(
                            f"fragment {fragment!r} uses the function {part.name!r}{column}, which is "
                            "declared nondeterministic. Replicas would differ: make its result depend on "
                            "its arguments alone"
                        )


def _deep(tree: PlanNode) -> list[PlanNode]:
    """Expressions of a tree, with those that hang in an expression's fields (such as subqueries)."""
    found = list(tree.walk())
    for part in tuple(found):
        for trees in part.trees.values():
            for inner in trees:
                found.extend(_deep(inner))
    return found


def _refusal(fragment: str, kind: str, column: str) -> FlowError:
    name, why = REFUSED[kind]
    return FlowError(f"fragment {fragment!r} uses {name}(){column}, which {why}")


def _require_no_wall_clock_timers(fragment: str, node: PlanNode) -> None:
    if "ProcessingTimeTimeout" in str(node.fields.get("timeout")):
        raise FlowError(
            f"fragment {fragment!r} sets timers by the wall clock (ProcessingTimeTimeout). Replicas would "
            "fire them at different rows: use GroupStateTimeout.EventTimeTimeout"
        )
