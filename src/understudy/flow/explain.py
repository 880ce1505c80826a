"""A flow as text: what runs, on which rows, by which time, and where the output goes."""

from __future__ import annotations

from collections.abc import Mapping

from understudy.flow.durations import duration_text
from understudy.flow.model import Fragment, Sink, Source


def explain(
    name: str,
    bucket_us: int,
    sources: Mapping[str, Source],
    fragments: Mapping[str, Fragment],
    sinks: Mapping[str, Sink],
) -> str:
    """The flow's parts in the order the rows pass them."""
    lines = [f"flow {name}  (buckets of {duration_text(bucket_us)})"]
    for source in sources.values():
        lines += ["", f"source {source.name}  <- {source.kind.describe()}", f"  time      {_time(source)}"]
        lines += [f"  schema    {source.schema}"]
    for fragment in fragments.values():
        lines += [
            "",
            f"fragment {fragment.name}  <- {', '.join(fragment.inputs)}",
            f"  time      {fragment.time}",
        ]
        if fragment.partition_by:
            count = "" if fragment.partitions is None else f" into {fragment.partitions}"
            lines += [f"  partition {', '.join(fragment.partition_by)}{count}"]
        readers = [f.name for f in fragments.values() if fragment.name in f.inputs]
        readers += [f"sink {sink.name}" for sink in sinks.values() if sink.input == fragment.name]
        lines += [f"  read by   {', '.join(readers) if readers else 'no fragment or sink'}"]
    for sink in sinks.values():
        lines += ["", f"sink {sink.name}  <- {sink.input}", f"  writes    {sink.kind.describe()}"]
    return "\n".join(lines)


def _time(source: Source) -> str:
    parts = [source.time]
    if source.lateness_us:
        parts.append(f"buckets stay open for {duration_text(source.lateness_us)}")
    parts.append(
        {"restamp": "late rows restamped", "drop": "late rows dropped"}.get(source.late, "late rows refused")
    )
    if source.idle_us is not None:
        parts.append(f"goes on alone after {duration_text(source.idle_us)} of silence")
    if source.ahead_us is not None:
        parts.append(f"at most {duration_text(source.ahead_us)} ahead")
    return ", ".join(parts)
