"""Understudy keeps Spark streaming queries running while machines, processes and networks fail.

A flow file needs only the names listed here. They are looked up on first use: the protocols and the
simulator import this package too, thousands of times, and should not pay for Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.flow.errors import ContractViolation, EnvironmentFailed, FlowError, RowError, UserError
    from understudy.flow.flow import Flow
    from understudy.flow.kinds import Batch, Push, Reader, SourceKind
    from understudy.flow.writers import SinkKind, Writer
    from understudy.runtime.client import Client
    from understudy.runtime.ingest.files import Files
    from understudy.runtime.ingest.generator import Generator
    from understudy.runtime.sinks.callback import Callback
    from understudy.runtime.sinks.console import Console
    from understudy.runtime.sinks.json_lines import JsonLines
    from understudy.runtime.sinks.parquet import Parquet
    from understudy.runtime.sinks.reading import read_output

__version__ = "0.1.0"

__all__ = [
    # a flow
    "Flow",
    # kinds of sources
    "Push",
    "Generator",
    "Files",
    # kinds of sinks
    "Parquet",
    "JsonLines",
    "Console",
    "Callback",
    # kinds of your own
    "SourceKind",
    "Reader",
    "Batch",
    "SinkKind",
    "Writer",
    # pushing to a run, and reading what it wrote
    "Client",
    "read_output",
    # what can go wrong
    "UserError",
    "FlowError",
    "RowError",
    "ContractViolation",
    "EnvironmentFailed",
]

_HOMES = {
    "Flow": "understudy.flow.flow",
    "Push": "understudy.flow.kinds",
    "Generator": "understudy.runtime.ingest.generator",
    "Files": "understudy.runtime.ingest.files",
    "Parquet": "understudy.runtime.sinks.parquet",
    "JsonLines": "understudy.runtime.sinks.json_lines",
    "Console": "understudy.runtime.sinks.console",
    "Callback": "understudy.runtime.sinks.callback",
    "SourceKind": "understudy.flow.kinds",
    "Reader": "understudy.flow.kinds",
    "Batch": "understudy.flow.kinds",
    "SinkKind": "understudy.flow.writers",
    "Writer": "understudy.flow.writers",
    "read_output": "understudy.runtime.sinks.reading",
    "Client": "understudy.runtime.client",
    "UserError": "understudy.flow.errors",
    "FlowError": "understudy.flow.errors",
    "RowError": "understudy.flow.errors",
    "ContractViolation": "understudy.flow.errors",
    "EnvironmentFailed": "understudy.flow.errors",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'understudy' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
