"""Refuses what would make two replicas differ.

A fragment's output must be a function of its input alone. Whatever asks for chance, for the clock, or for
where a row happens to be processed is found in the analysed plan and refused by name. So is a watermark of
the user's own: time in a flow is sealed by the flow, and a second watermark would drop rows by a rule that
the replicas do not share.
"""

from __future__ import annotations

from collections.abc import Collection

from understudy.engine.plan import Node
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
}

_PROCESSING_TIME = {"ProcessingTimeTimeout", "ProcessingTime"}


def require_deterministic(fragment: str, plan: Node, own_watermarks: Collection[str]) -> None:
    """Raise a FlowError if the plan holds something whose result is not a function of the input.

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


def _deep(tree: Node) -> list[Node]:
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


def _require_no_wall_clock_timers(fragment: str, node: Node) -> None:
    for name in ("timeout", "timeMode"):
        value = node.fields.get(name)
        text = str(value.get("object", value)) if isinstance(value, dict) else str(value)
        if text.rpartition(".")[2].rstrip("$") in _PROCESSING_TIME:
            raise FlowError(
                f"fragment {fragment!r} sets timers by the wall clock ({name} is processing time). Replicas "
                "would fire them at different rows: use event time"
            )


def uses_timers(plan: Node) -> bool:
    """Whether user code can be called because time passed, without a row of its own."""
    for node in plan.walk():
        for name in ("timeout", "timeMode"):
            if "EventTime" in str(node.fields.get(name)):
                return True
    return False
