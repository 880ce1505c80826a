"""Whether a fragment may be split into partitions: rows that an operator needs together must stay together.

A row's partition follows from its values in the fragment's partition columns. An operator that looks at all
rows with equal keys therefore gives what it would give unsplit if the partition columns are among its keys:
then equal keys mean equal partition columns, and those mean one partition. Otherwise results would be wrong:
groupBy("dst") split by "src" would count every dst once in each partition, without any error.

So the plan is followed from its inputs upwards, with the columns at each place that *carry* a column of the
input: in every row they hold the value of the input rows that the row was made from. Columns are followed by
expression id, so a column may be renamed or passed through any number of operators. A computed column carries
nothing, even where the computation could be inverted. The one exception is an integer made wider, because
Spark does that by itself where two inputs meet, and the hash of an integer does not depend on its width. An
outer join fills one side up with nulls, so that side carries nothing any more. Neither does the result of a
user's function: it may put any value into a column.

- groupBy, windows, sessions, dropDuplicates, applyInPandas: the partition columns are among the keys.
- A join of two streams: its equalities pair every partition column of one side with the same of the other.
  Every partition reads all rows of a table that does not stream, so joining one needs nothing.
- limit counts all rows, so it has no place in a split fragment.
- mapInPandas and mapInArrow see rows in frames. Most functions look at one row at a time, but they need not,
  a plan does not tell, and which rows share a frame would depend on the split. They are refused, since
  another result in silence is worse than a pandas_udf in its place, which is row by row by its very form.
- An operator that is not known here is refused too, for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from understudy.engine.event_time import conjuncts
from understudy.engine.extent import join_kind
from understudy.engine.grouping import SENSITIVE_OPERATORS, function_name
from understudy.engine.plan import PlanNode, ids_of, inlined
from understudy.flow.errors import FlowError

#: Operators that hand on their rows, or some of them, one by one and as they are.
_ROW_BY_ROW = {
    "CollectMetrics",
    "EventTimeWatermark",
    "Filter",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "Sort",
    "SubqueryAlias",
    "View",
}

#: Operators with keys: where the keys are.
_KEYS = {
    "Aggregate": "groupingExpressions",
    "Deduplicate": "keys",
    "FlatMapGroupsInPandas": "groupingAttributes",
    "FlatMapGroupsInArrow": "groupingAttributes",
    "FlatMapGroupsInPandasWithState": "groupingAttributes",
    "Window": "partitionSpec",
}

#: What users call an operator.
_NAMES = SENSITIVE_OPERATORS | {
    "Aggregate": "groupBy",
    "Deduplicate": "dropDuplicates",
    "Distinct": "distinct",
    "Except": "except",
    "Intersect": "intersect",
    "Join": "join",
    "Window": "window function",
}

_INTEGERS = ("byte", "short", "integer", "long")
_LEFT_IS_KEPT = {"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"}
_RIGHT_IS_KEPT = {"Inner", "Cross", "RightOuter"}


@dataclass(frozen=True)
class _Rows:
    """The rows at one place of the plan. `output` are the ids of their columns, None where not known."""

    streaming: bool
    output: tuple[int, ...] | None
    #: Columns by id, and the input's column that each carries.
    carried: dict[int, str] = field(default_factory=dict)


def require_splittable(fragment: str, plan: PlanNode, partition_by: Sequence[str], count: int) -> None:
    """Raise a FlowError if `count` partitions by these columns would not give what one gives."""
    _Check(fragment, tuple(partition_by), count).follow(inlined(plan))


class _Check:
    """One walk over a plan."""

    def __init__(self, fragment: str, partition_by: tuple[str, ...], count: int) -> None:
        self._partition_by = partition_by
        self._split = f"fragment {fragment!r} is split into {count} partitions by {', '.join(partition_by)}"

    def follow(self, node: PlanNode) -> _Rows:
        children = [self.follow(child) for child in node.children]
        if not children:
            return _leaf(node)
        if not any(child.streaming for child in children):
            return _not_streaming(node, children)
        if node.kind in _KEYS:
            return self._keyed(node, children[0])
        match node.kind:
            case "Project":
                return _columns(node, "projectList", children[0])
            case "Generate":
                return self._generate(node, children[0])
            case "Expand":
                return _expand(node, children[0])
            case "Union":
                return _side_by_side(children)
            case "Join":
                return self._join(node, children[0], children[1])
            case "Distinct" | "Intersect" | "Except":
                rows = _side_by_side([child for child in children if child.streaming])
                self._require(node, ["all its columns"], rows.carried.values())
                return rows
            case "FlatMapCoGroupsInPandas" | "FlatMapCoGroupsInArrow":
                return self._cogroup(node, children[0], children[1])
            case "CTERelationRef":
                return _named(node, children[0])
            case kind if kind in _ROW_BY_ROW:
                return children[0]
        raise self._keyless(_name(node))

    def _keyed(self, node: PlanNode, child: _Rows) -> _Rows:
        keys = node.tree(_KEYS[node.kind])
        self._require(node, [_shown(key) for key in keys], (_carried(key, child) for key in keys))
        if node.kind == "Aggregate":
            return _columns(node, "aggregateExpressions", child)
        if node.kind == "Window":
            return _and(child, ids_of(node.tree("windowExpressions")))
        if node.kind == "Deduplicate":
            return child
        return _made_by_user(node)

    def _generate(self, node: PlanNode, child: _Rows) -> _Rows:
        if any("UDTF" in part.kind for part in node.tree("generator")):
            raise self._keyless("table function")
        return _and(child, ids_of(node.tree("generatorOutput")))

    def _join(self, node: PlanNode, left: _Rows, right: _Rows) -> _Rows:
        if left.streaming and right.streaming:
            shown, paired = [], []
            for part in (part for root in node.tree("condition") for part in conjuncts(root)):
                if part.kind in {"EqualTo", "EqualNullSafe"}:
                    one, two = part.children
                    shown.append(f"{_shown(one)} = {_shown(two)}")
                    paired.append(_paired(one, two, left, right) or _paired(two, one, left, right))
            self._require(node, shown, paired, of_both_sides=True)
        kind = join_kind(node)
        carried = {
            **(left.carried if kind in _LEFT_IS_KEPT else {}),
            **(right.carried if kind in _RIGHT_IS_KEPT else {}),
        }
        if kind in {"LeftSemi", "LeftAnti"}:
            return _Rows(True, left.output, carried)
        known = left.output is not None and right.output is not None
        return _Rows(True, (left.output or ()) + (right.output or ()) if known else None, carried)

    def _cogroup(self, node: PlanNode, left: _Rows, right: _Rows) -> _Rows:
        """The keys of each side are its first columns. What does not stream would be everywhere."""
        mine = (left.output or ())[: node.fields["leftGroupingLen"]]
        others = (right.output or ())[: node.fields["rightGroupingLen"]]
        both = [(left.carried.get(a), right.carried.get(b)) for a, b in zip(mine, others, strict=False)]
        columns = [child.tree("projectList")[: len(mine)] for child in node.children]
        shown = [f"{_shown(a)} = {_shown(b)}" for a, b in zip(*columns, strict=False)]
        self._require(node, shown, (a for a, b in both if a == b), of_both_sides=True)
        return _made_by_user(node)

    def _require(
        self,
        node: PlanNode,
        keys: Sequence[str],
        carried: Iterable[str | None],
        *,
        of_both_sides: bool = False,
    ) -> None:
        """Raise a FlowError unless every partition column is among those that the keys carry."""
        usable = list(dict.fromkeys(name for name in carried if name is not None))
        missing = [repr(name) for name in self._partition_by if name not in usable]
        if not missing:
            return
        name = _name(node)
        if not keys:
            raise self._keyless(name)
        said = "pairs the column {} of both sides" if of_both_sides else "is the input's column {}"
        remedy = (
            f"Partition by columns among {', '.join(usable)}, give the {name} a fragment of its own that is "
            "partitioned so, or leave partition_by out to have one partition"
            if usable
            else f"Leave partition_by out to have one partition, or give the {name} a fragment of its own "
            "without it"
        )
        raise FlowError(
            f"{self._split}, but its {name} has the keys {', '.join(keys)}, none of which "
            f"{said.format(' or '.join(missing))}. Rows that belong together would be in different "
            f"partitions. {remedy}. A key may be a column of the input under another name, but not one that "
            "was computed"
        )

    def _keyless(self, name: str) -> FlowError:
        remedy = f"Leave partition_by out to have one partition, or give the {name} a fragment of its own "
        remedy += "without it"
        if name in {"mapInPandas", "mapInArrow"}:
            remedy += ". If it looks at one row at a time, make it a pandas_udf: that can be split"
        return FlowError(
            f"{self._split}, but its {name} has no keys: its result depends on all the rows that it sees, "
            f"and every partition sees others. {remedy}"
        )


def _leaf(node: PlanNode) -> _Rows:
    columns = node.tree("output")
    streaming = node.kind.startswith("Streaming") or node.fields.get("isStreaming") is True
    carried = {c.id: c.name for c in columns if c.id is not None} if streaming else {}
    return _Rows(streaming, ids_of(columns) if columns else None, carried)


def _named(node: PlanNode, rows: _Rows) -> _Rows:
    """Rows under the new ids that their columns have where their name is used."""
    output = ids_of(node.tree("output"))
    if rows.output is None or len(rows.output) != len(output):
        return _Rows(rows.streaming, output or None)
    again = zip(output, rows.output, strict=True)
    return _Rows(
        rows.streaming, output, {new: rows.carried[old] for new, old in again if old in rows.carried}
    )


def _not_streaming(node: PlanNode, children: list[_Rows]) -> _Rows:
    """Every partition has all of these rows, so nothing needs to be checked but where columns are."""
    for name in ("projectList", "aggregateExpressions", "output"):
        if node.tree(name):
            return _Rows(False, ids_of(node.tree(name)))
    if node.kind in _ROW_BY_ROW:
        return _Rows(False, children[0].output)
    return _Rows(False, None)


def _columns(node: PlanNode, name: str, child: _Rows) -> _Rows:
    columns = node.tree(name)
    carried = {c.id: found for c in columns if c.id is not None and (found := _carried(c, child))}
    return _Rows(True, ids_of(columns) if columns else None, carried)


def _expand(node: PlanNode, child: _Rows) -> _Rows:
    """Each row becomes several, as for sliding windows and cubes: a column must carry the same in all."""
    output, columns = ids_of(node.tree("output")), node.tree("projections")
    carried = {}
    for position, number in enumerate(output):
        # Where Spark leaves the projections out, a column that kept its id is still the same.
        ways = columns[position :: len(output)]
        found = {_carried(way, child) for way in ways} if ways else {child.carried.get(number)}
        name = found.pop() if len(found) == 1 else None
        if name is not None:
            carried[number] = name
    return _Rows(True, output, carried)


def _side_by_side(children: Sequence[_Rows]) -> _Rows:
    """Rows of several streams by position: a column carries what it carries in all of them."""
    first, outputs = children[0], [child.output for child in children]
    if first.output is None or any(o is None or len(o) != len(first.output) for o in outputs):
        return _Rows(True, first.output)
    carried = {}
    for position, number in enumerate(first.output):
        found = {child.carried.get(child.output[position]) for child in children if child.output is not None}
        name = found.pop() if len(found) == 1 else None
        if name is not None:
            carried[number] = name
    return _Rows(True, first.output, carried)


def _and(child: _Rows, more: tuple[int, ...]) -> _Rows:
    return _Rows(True, None if child.output is None else child.output + more, child.carried)


def _made_by_user(node: PlanNode) -> _Rows:
    return _Rows(True, ids_of(node.tree("output") or node.tree("outputAttrs")) or None)


def _carried(expression: PlanNode, rows: _Rows) -> str | None:
    """The input's column that an expression has the value of, if it is one."""
    if expression.kind == "AttributeReference":
        return rows.carried.get(expression.id) if expression.id is not None else None
    if expression.kind == "Alias" or (expression.kind == "Cast" and _is_widened_integer(expression)):
        return _carried(expression.children[0], rows)
    return None


def _is_widened_integer(cast: PlanNode) -> bool:
    # Not so strings: a plan does not tell a collation, under which different ones are equal.
    kinds = (cast.children[0].type, cast.type)
    return all(k in _INTEGERS for k in kinds) and _INTEGERS.index(kinds[0]) <= _INTEGERS.index(kinds[1])


def _paired(one: PlanNode, two: PlanNode, left: _Rows, right: _Rows) -> str | None:
    name = _carried(one, left)
    return name if name is not None and name == _carried(two, right) else None


def _name(node: PlanNode) -> str:
    return _NAMES.get(node.kind, node.kind)


def _shown(expression: PlanNode) -> str:
    """An expression as a user may have written it."""
    if expression.id is not None:
        return expression.name
    if expression.kind == "Literal":
        return str(expression.fields.get("value"))
    if expression.kind == "Cast" and _is_widened_integer(expression):
        return _shown(expression.children[0])
    return f"{function_name(expression.kind)}({', '.join(map(_shown, expression.children))})"
