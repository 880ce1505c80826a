"""Copying a process and turning its state into something hashable, fast enough for millions of states.

Both walk an object's fields. Whatever is immutable (messages, buckets, views, tuples) is shared, not copied.
What only tells stories, not what will happen, is left out of both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

from understudy.core.buffer import MarkedBuffer, _Entry
from understudy.core.controller import Controller
from understudy.core.f_cons import FCons
from understudy.core.flux_controller import FluxController
from understudy.core.host import Host
from understudy.core.machine import Machine
from understudy.core.merge import Merge
from understudy.core.resident import Resident
from understudy.core.s_cons import SCons
from understudy.sim.control import ControllerProcess
from understudy.sim.engine import SimEngine
from understudy.sim.exchange_flow import Sums
from understudy.sim.exchange_process import Process, Worker
from understudy.sim.gateway import Disk, Gateway
from understudy.sim.node import Node

T = TypeVar("T")

#: Types whose values are their own copy and their own frozen form.
_PLAIN = frozenset({int, str, bool, float, type(None), tuple, frozenset})

_PAIR = (Controller, ControllerProcess, SimEngine, Disk, Gateway, Node)
_EXCHANGE = (Host, Resident, Merge, FluxController, Process, Worker, Sums)
_MUTABLE = (Machine, MarkedBuffer, _Entry, *_PAIR, *_EXCHANGE)
_known: dict[type, bool] = {}
#: What never changes, and what only tells of the past.
_STORY = frozenset(
    {"_story", "_events_handled", "caught_up", "setup", "name", "topology", "limits", "layout", "_out"}
)


def clone(value: T) -> T:
    """A copy that shares nothing mutable with the original."""
    return _clone(value, {})  # type: ignore[no-any-return]


def _walked(kind: type) -> bool:
    """Whether values of this type are copied and frozen field by field. Asked too often to look twice."""
    if kind not in _known:
        _known[kind] = issubclass(kind, _MUTABLE)
    return _known[kind]


def _clone(value: Any, seen: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {key: _clone(each, seen) for key, each in value.items()}
    if kind is set:
        return set(value)
    if kind is list:
        return [_clone(each, seen) for each in value]
    if kind is deque:
        return deque(value, value.maxlen)
    if not _walked(kind):
        return value
    if id(value) in seen:
        return seen[id(value)]
    copy = object.__new__(kind)
    seen[id(value)] = copy
    for name, each in _fields(value):
        setattr(copy, name, deque(maxlen=0) if name == "_story" else _clone(each, seen))
    return copy


def freeze(value: Any) -> Hashable:
    """Something hashable that is equal exactly if the state is."""
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[no-any-return]
    if kind is dict:
        return frozenset((key, freeze(each)) for key, each in value.items())
    if kind is set:
        return frozenset(value)
    if kind is list or kind is deque:
        return tuple(value)
    if _walked(kind):
        # What is above a consumer belongs to its replica, where it is looked at.
        left_out = _STORY | {"above"} if isinstance(value, SCons | FCons) else _STORY
        return tuple(freeze(each) for name, each in _fields(value) if name not in left_out)
    if isinstance(value, Enum):
        return value.value  # type: ignore[no-any-return]
    return value  # type: ignore[no-any-return]


def _fields(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, _Entry | FluxController):
        return [(each.name, getattr(value, each.name)) for each in fields(value)]
    return list(vars(value).items())
