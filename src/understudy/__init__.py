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
    from understudy.flow.kinds import Files, Generator, Push
    from understudy.flow.writers import Callback, Console, JsonLines, Parquet
    from understudy.runtime.client import Client
    from understudy.runtime.sinks.reading import read_output

__version__ = "0.1.0"

__all__ = [
    # a flow
    "Flow",
    # kinds of sources
    "Push",
    "Generator",
    "Files",
    # writers of sinks
    "Parquet",
    "JsonLines",
    "Console",
    "Callback",
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
    "Generator": "understudy.flow.kinds",
    "Files": "understudy.flow.kinds",
    "Parquet": "understudy.flow.writers",
    "JsonLines": "understudy.flow.writers",
    "Console": "understudy.flow.writers",
    "Callback": "understudy.flow.writers",
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
