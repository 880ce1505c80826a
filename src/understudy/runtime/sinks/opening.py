"""The writer for each sink of a flow."""

from __future__ import annotations

from pathlib import Path

from understudy.flow.model import Sink
from understudy.flow.writers import Callback, Console, JsonLines, Parquet
from understudy.runtime.sinks.callback import CallbackWriter
from understudy.runtime.sinks.console import ConsoleWriter
from understudy.runtime.sinks.files import JsonLinesWriter, ParquetWriter
from understudy.runtime.sinks.writer import SinkWriter


def open_writer(sink: Sink, folder: Path) -> SinkWriter:
    """The writer for `sink`. `folder` is the run's own: for positions that the output itself cannot hold."""
    match sink.writer:
        case Parquet(path=path):
            return ParquetWriter(Path(path))
        case JsonLines(path=path):
            return JsonLinesWriter(Path(path))
        case Console(rows_max=rows_max):
            return ConsoleWriter(sink.name, rows_max)
        case Callback(function=function):
            return CallbackWriter(function, folder / f"{sink.name}.position")
