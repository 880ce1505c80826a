"""Whether the state of a flow goes on under the flow as it is now: what is refused, and what it takes.

Two shapes are compared (see `state_shape`): the flow when its state was made, and the flow now. A fragment's
state goes on if each of its operators with a state is what it was. The rest may change: filters, projections,
functions, output columns, sinks. The old code took in the rows that the state holds by then, so windows and
joins that were open then are of both. The new code comes after a stop, or by an upgrade while rows flow: the
sentences here are read in both cases.

What Spark would refuse is refused, and so is what Spark would take and answer wrongly: it compares the types
in a state by position and nothing else. Fragments are matched by name. One by another name is new, and may
begin only if it keeps no state, since its first windows would lack the rows before it, and only if it
reads what others put out, since a source's log does not go back to its beginning.

Nothing here needs Spark, and shapes may come from a file: `Fit` is an answer before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy.engine.state_shape import Shape
from understudy.flow.durations import duration_text
from understudy.flow.errors import FlowError

#: Of a flow's shape. Another one means other facts: the shapes cannot be compared.
FORMAT = 1

_NEW_RUN = "start a new run in a new folder"
_UNDO = f"Undo that change, or {_NEW_RUN}"

#: The parts of an operator, what a message calls them, and why a state does not survive their change.
_PARTS = {
    "keys": ("keys", "the state is kept by its keys, and would mix what the old and the new ones mean"),
    "sums": ("aggregates", "windows that are open hold the values of the old ones, by position"),
    "type": ("type", "the state does not tell which rows would have to come out without a match"),
    "bounds": ("bounds on time", "the state has kept and given up rows by the old ones"),
    "left": ("left columns", "the state holds whole rows of the old ones, by position"),
    "right": ("right columns", "the state holds whole rows of the old ones, by position"),
    "condition": ("condition", "the state remembers which rows had a match by the old one"),
    "schema": ("state schema", "the state holds values of the old one"),
    "timeout": ("timeout", "the state has the timers of the old one"),
    "rows": ("number of rows", "rows after the old one were dropped and do not come again"),
}


@dataclass(frozen=True)
class Remark:
    """A sentence on a fragment, or on the flow as a whole."""

    fragment: str | None
    sentence: str


@dataclass(frozen=True)
class Fit:
    """What became of a flow. Without refusals the state goes on."""

    refusals: tuple[Remark, ...]
    accepted: tuple[Remark, ...]
    snapshots: Mapping[str, str | None]
    """Of every segment now: the segment then whose snapshot it goes on from, None if it begins anew."""

    def require(self) -> None:
        """Raise a FlowError with all refusals, if there are any."""
        if self.refusals:
            raise FlowError("\n".join(refusal.sentence for refusal in self.refusals))


def fit(before: Mapping[str, Any], after: Mapping[str, Any]) -> Fit:
    """Compare the shapes of a whole flow, as `FlowEngines.shape` gives them."""
    whole = [Remark(None, sentence) for sentence in _flow_refusals(before, after)]
    if whole:
        return Fit(tuple(whole), (), {})
    refused: list[Remark] = []
    accepted: list[Remark] = []
    then, now = before["fragments"], after["fragments"]
    for name, shape in now.items():
        if name in then:
            refused += [Remark(name, sentence) for sentence in refusals(name, then[name], shape)]
            refused += [Remark(name, sentence) for sentence in _placed_otherwise(name, then[name], shape)]
            accepted += [Remark(name, sentence) for sentence in changes(name, then[name], shape)]
        elif (sentence := refused_newcomer(name, shape)) is not None:
            refused.append(Remark(name, sentence))
        else:
            said = "is new and keeps no state: it begins with the first bucket after the saved state"
            accepted.append(Remark(name, f"fragment {name!r} {said}"))
    accepted += [Remark(name, _gone(name, then[name])) for name in then if name not in now]
    refused += [*_never_null(then, now)]
    _compare_sinks(before["sinks"], after["sinks"], refused, accepted)
    snapshots = _snapshots(before["segments"], after["segments"], refused)
    refused += _without_a_beginning(after, snapshots)
    touched = {remark.fragment for remark in refused}
    kept = [remark for remark in accepted if remark.fragment is None or remark.fragment not in touched]
    return Fit(tuple(refused), tuple(kept), snapshots)


def refusals(name: str, before: Shape, after: Shape) -> list[str]:
    """Why the state of a fragment does not go on, each reason by itself. Empty: it does."""
    if before == after:
        return []
    found = [*_frame_refusals(before, after)]
    found += [*_state_refusals(before, after)]
    types = dict(_by_name(after["output"]))
    for column, kind in _by_name(before["output"]):
        if types.get(column, kind) != kind:
            found.append(
                f"its output column {column[0]!r} is {types[column]}, and was {kind}. Rows that wait between "
                "fragments or for their bucket to be complete have the old type. Give the column another "
                f"name, or {_NEW_RUN}"
            )
    return [f"fragment {name!r}: {each}" for each in found]


def changes(name: str, before: Shape, after: Shape) -> list[str]:
    """What has changed in a fragment whose state goes on."""
    found = []
    if before["plan"] != after["plan"]:
        said = "its filters, projections or functions have changed"
        if after["operators"]:
            said += ". What its saved state holds was taken in by the code before, so windows, joins and "
            said += "keys that are open in it are of both"
        found.append(said)
    then, now = dict(_by_name(before["output"])), dict(_by_name(after["output"]))
    if gone := [column for column, _ in then if (column, _) not in now]:
        found.append(f"its output no longer has {_columns(gone)}")
    if new := [column for column, _ in now if (column, _) not in then]:
        found.append(
            f"its output has the new {_columns(new)}, null in rows that the code before computed and "
            "that come out later"
        )
    if before["stepwise"] != after["stepwise"]:
        found.append(f"it {'now' if after['stepwise'] else 'no longer'} takes one bucket at a time")
    return [f"fragment {name!r} goes on: {each}" for each in found]


def refused_newcomer(name: str, shape: Shape) -> str | None:
    """Why a fragment cannot begin in the middle of a run, if it cannot."""
    if not shape["operators"]:
        return None
    return (
        f"fragment {name!r} is new and keeps a state ({_kinds(shape)}). It would begin in the middle of the "
        "run, with windows, joins or keys that lack all earlier rows. Leave it out, or " + _NEW_RUN
    )


def _flow_refusals(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """What concerns every fragment at once."""
    if before.get("format") != FORMAT:
        yield (
            "The shape of the state was written by another version of Understudy. Finish the run with that "
            f"version, or {_NEW_RUN}"
        )
        return
    if before["flow"] != after["flow"]:
        yield f"The state is of flow {before['flow']!r}, not of {after['flow']!r}. {_UNDO}"
    if before["unit"] != after["unit"]:
        yield (
            f"The run was replicated by {before['unit']}s and would now be by {after['unit']}s, so its "
            f"snapshots are of other parts. Keep the policy, or {_NEW_RUN}"
        )
    if before["width_us"] != after["width_us"]:
        then, now = duration_text(before["width_us"]), duration_text(after["width_us"])
        yield f"The flow's buckets were {then} wide and are {now} now, so numbers mean other times. {_UNDO}"
    if before["sources"] != after["sources"]:
        then, now = ", ".join(before["sources"]), ", ".join(after["sources"])
        yield f"The flow had the sources {then}, and has {now} now. {_UNDO}"


def _frame_refusals(before: Shape, after: Shape) -> Iterator[str]:
    """What the fragment reads, and by which time its output is sealed."""
    then, now = [name for name, _ in before["inputs"]], [name for name, _ in after["inputs"]]
    if then != now:
        yield (
            f"it reads {', '.join(now)} and read {', '.join(then)} before. Its state and its queues are of "
            f"those inputs, in that order. {_UNDO}"
        )
    elif before["inputs"] != after["inputs"]:
        name = next(
            n for (n, was), (_, is_) in zip(before["inputs"], after["inputs"], strict=True) if was != is_
        )
        yield f"the time column of its input {name!r} has changed, by which its state is closed. {_UNDO}"
    elif before["reads"] != after["reads"]:
        yield (
            f"it reads its inputs in {after['reads']} places and did so in {before['reads']} before. Spark "
            f"goes on only with as many readers as it had. {_UNDO}"
        )
    if before["width_us"] != after["width_us"]:
        yield f"the width of a bucket has changed. {_UNDO}"
    if before["time"] != after["time"]:
        yield (
            f"its time is {after['time']!r} and was {before['time']!r}. Its output is sealed by that column "
            f"so far, and rows by another one would come twice or never. {_UNDO}"
        )
    elif after["lag_us"] > before["lag_us"]:
        then_us, now_us = duration_text(before["lag_us"]), duration_text(after["lag_us"])
        yield (
            f"its output may lag {now_us} behind its input and lagged {then_us} at most before, so rows "
            f"would come out for buckets that are sealed. {_UNDO}"
        )


def _state_refusals(before: Shape, after: Shape) -> Iterator[str]:
    then, now = before["operators"], after["operators"]
    if then and not now:
        yield (
            f"it no longer keeps a state and had {_kinds(before)}. What is open in its state would never "
            f"come out. {_UNDO}"
        )
    elif now and not then:
        yield (
            f"it keeps a state now ({_kinds(after)}) and had none. Its first windows, joins or keys would "
            f"lack all earlier rows. {_UNDO}"
        )
    elif [each["kind"] for each in then] != [each["kind"] for each in now]:
        yield (
            f"it has {_kinds(after)} and had {_kinds(before)}. Every operator has a state of its own, and "
            f"there is none for others. {_UNDO}"
        )
    else:
        parts = [part for pair in zip(then, now, strict=True) for part in _part_refusals(*pair)]
        yield from parts
        if not parts and before["extent_us"] != after["extent_us"]:
            yield (
                f"its state reaches back {_extent(after)} and reached back {_extent(before)}, so it may lack "
                f"rows. {_UNDO}"
            )


def _part_refusals(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """One refusal for an operator, with all of its parts that have changed."""
    changed = [part for part in _PARTS if _exact(before.get(part, ())) != _exact(after.get(part, ()))]
    if not changed:
        return
    said = [f"the {_PARTS[part][0]} {_shown(after[part])} and had {_shown(before[part])}" for part in changed]
    hint = ""
    if set(changed) <= {"sums", "left", "right"}:
        hint = (
            " Spark keeps what the output needs, and in its order: leave the output's columns as they were."
        )
    why = _PARTS[changed[0]][1]
    yield f"its {before['kind']} has {'; '.join(said)}. That does not fit: {why}.{hint} {_UNDO}"


def _placed_otherwise(name: str, before: Shape, after: Shape) -> Iterator[str]:
    """What an engine checks by a snapshot's identity: partitions, and tables that do not stream."""
    if before["partitions"] != after["partitions"]:
        yield (
            f"fragment {name!r} has {_split(after)} and had {_split(before)}. Each partition's state holds "
            f"the keys of that split. {_UNDO}"
        )
    for file in sorted({*before["tables"], *after["tables"]}):
        then, now = before["tables"].get(file, "missing"), after["tables"].get(file, "missing")
        if then != now:
            yield (
                f"fragment {name!r} reads the table {file.partition('/')[0]}, and its file {file} is {now} "
                f"and was {then}. Its state was made with that table. Put the file back, or {_NEW_RUN}"
            )


def _never_null(then: Mapping[str, Shape], now: Mapping[str, Shape]) -> Iterator[Remark]:
    """Rows that the code before computed may lack a value that the fragments that read them rely on."""
    for name, shape in now.items():
        readers = [reader for reader, its in now.items() if name in (given for given, _ in its["inputs"])]
        if name not in then or not readers:
            continue
        before = {(column, kind): nullable for column, kind, nullable in then[name]["output"]}
        for column, kind, nullable in shape["output"]:
            if not nullable and before.get((column, kind), True):
                yield Remark(
                    name,
                    f"fragment {name!r}: its output column {column!r} is never null now, but rows that the "
                    f"code before computed and that wait for {', '.join(readers)} may have no value in it. "
                    f'Let it be nullable, as F.when(F.lit(True), F.col("{column}")) is, or {_NEW_RUN}',
                )


def _compare_sinks(
    before: Mapping[str, str], after: Mapping[str, str], refused: list[Remark], accepted: list[Remark]
) -> None:
    for sink, fragment in after.items():
        if sink not in before:
            accepted.append(
                Remark(
                    None,
                    f"sink {sink!r} is new: it gets what fragment {fragment!r} completes from now on",
                )
            )
        elif before[sink] != fragment:
            refused.append(
                Remark(
                    fragment,
                    f"sink {sink!r} takes the output of fragment {fragment!r} and took that of "
                    f"{before[sink]!r}. What it has delivered so far is of that one. Give the sink another "
                    f"name and folder, or {_NEW_RUN}",
                )
            )
    accepted += [Remark(None, f"sink {sink!r} is gone") for sink in before if sink not in after]


def _snapshots(
    before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]], refused: list[Remark]
) -> dict[str, str | None]:
    """Where each segment's state comes from. Snapshots of two segments are of two moments."""
    segment_of = {member: segment for segment, members in before.items() for member in members}
    found: dict[str, str | None] = {}
    for segment, members in after.items():
        origins = list(dict.fromkeys(segment_of[member] for member in members if member in segment_of))
        found[segment] = origins[0] if origins else None
        if len(origins) > 1:
            linking = [member for member in members if member not in segment_of] or members
            refused.append(
                Remark(
                    linking[-1],
                    f"fragment {linking[-1]!r} makes one segment of {' and '.join(origins)}, which ran "
                    "apart. Their snapshots are of different buckets, so they do not go on as one. "
                    f"{_UNDO}",
                )
            )
    return found


def _without_a_beginning(after: Mapping[str, Any], snapshots: Mapping[str, str | None]) -> Iterator[Remark]:
    """A segment without a snapshot begins with the first bucket of what it reads: a log lets go of that."""
    for segment, origin in snapshots.items():
        for member in after["segments"][segment] if origin is None else ():
            read = [name for name, _ in after["fragments"][member]["inputs"] if name in after["sources"]]
            if read:
                yield Remark(
                    member,
                    f"fragment {member!r} is new and reads the source {', '.join(read)}. It would begin in "
                    "the middle of the run: the log does not go back to the first bucket. Leave it out, or "
                    f"{_NEW_RUN}",
                )


def _by_name(output: Sequence[Sequence[Any]]) -> list[tuple[tuple[str, int], str]]:
    """Columns by name; of several by one name, the first is told from the second."""
    seen: dict[str, int] = {}
    found = []
    for column, kind, *_ in output:
        found.append(((column, seen.get(column, 0)), kind))
        seen[column] = seen.get(column, 0) + 1
    return found


def _gone(name: str, shape: Shape) -> str:
    held = ". What its state held is dropped, open windows too" if shape["operators"] else ""
    return f"fragment {name!r} is gone{held}"


def _kinds(shape: Shape) -> str:
    return ", then ".join(each["kind"] for each in shape["operators"])


def _exact(parts: Sequence[Mapping[str, str]]) -> list[str]:
    return [part["exact"] for part in parts]


def _shown(parts: Sequence[Mapping[str, str]]) -> str:
    return ", ".join(part["shown"] for part in parts) or "none"


def _columns(names: Sequence[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


def _extent(shape: Shape) -> str:
    extent_us = shape["extent_us"]
    return "without bound" if extent_us is None else duration_text(extent_us)


def _split(shape: Shape) -> str:
    split = shape["partitions"]
    return (
        f"{split['count']} partitions by {', '.join(split['by'])}" if split["count"] > 1 else "one partition"
    )
