"""A flow as text: what runs, on which rows, by which time, and where the output goes."""

from __future__ import annotations

from collections.abc import Mapping

from understudy.flow.durations import duration_text
from understudy.flow.kinds import Files, Generator, Push
from understudy.flow.model import Fragment, Sink, Source
from understudy.flow.writers import Callback, Console, Writer


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
        lines += ["", f"source {source.name}  <- {_kind(source)}", f"  time      {_time(source)}"]
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
        lines += [f"  read by   {', '.join(readers) if readers else 'nobody'}"]
    for sink in sinks.values():
        lines += ["", f"sink {sink.name}  <- {sink.input}", f"  writes    {_writer(sink.writer)}"]
    return "\n".join(lines)


def _kind(source: Source) -> str:
    match source.kind:
        case Push():
            return "pushed by clients"
        case Generator(rows_per_s=rate, seed=seed, rows=rows):
            extent = "without end" if rows is None else f"{rows} rows"
            return f"generated at {rate:g} rows/s, seed {seed}, {extent}"
        case Files(path=path, format=format_, follow=follow):
            return f"{format_} files at {path}{', followed' if follow else ''}"


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


def _writer(writer: Writer) -> str:
    match writer:
        case Callback(function=function):
            return f"calls {getattr(function, '__qualname__', repr(function))}"
        case Console():
            return "standard output"
        case _:
            return f"{type(writer).__name__} files in {writer.path}"
