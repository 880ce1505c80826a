"""Copying a process and turning its state into something hashable, fast enough for millions of states.

Both walk an object's fields. What is immutable (messages, buckets, views, tuples) is shared. A class that is
neither immutable nor listed here raises: to share it would let one explored world change another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from understudy.core.edge.buffer import Buffer
from understudy.core.edge.inlet import Inlet
from understudy.core.edge.merge import Merge
from understudy.core.edge.outlet import Outlet
from understudy.core.edge.refill import Refill
from understudy.core.host.connections import Connections
from understudy.core.host.edges import Edges
from understudy.core.host.host import Host
from understudy.core.host.interpreter import Interpreter
from understudy.core.host.places import Places
from understudy.core.host.resident import Resident
from understudy.core.replica.backing import Backing
from understudy.core.replica.consumer import Consumer
from understudy.core.replica.movement import Borrowing, Lending
from understudy.core.replica.producer import Producer
from understudy.core.replica.replica import Replica
from understudy.core.turning import Turning
from understudy.core.view.controller import Controller
from understudy.sim.disk import Disk
from understudy.sim.engine import SimEngine
from understudy.sim.process import Process
from understudy.sim.store import Leader, Store
from understudy.sim.versions import Floors, SharedDisk
from understudy.sim.worker import SimWorker

T = TypeVar("T")

#: Classes whose objects are copied and frozen field by field.
WALKED = frozenset(
    {
        *(
            Buffer,
            Inlet,
            Merge,
            Outlet,
            Refill,
            Connections,
            Edges,
            Host,
            Interpreter,
            Places,
            Resident,
            Consumer,
            Backing,
            Borrowing,
            Lending,
            Producer,
            Replica,
        ),
        *(Turning, Floors, Controller, SimEngine, Disk, Process, SimWorker, Leader, Store),
    }
)
#: What two processes share. Whoever copies both sees to it.
SHARED = frozenset({SharedDisk})
#: Types whose values are their own copy.
_PLAIN = frozenset({int, str, bool, float, type(None), tuple, frozenset})
#: What never changes in a process, or is a function given to it: shared, and no part of its state.
FIXED = frozenset(
    {
        *("name", "topology", "limits", "timing", "isolated", "flow", "observers", "dealing", "lag_buckets"),
        *("replicas", "nodes_wanted", "layout", "grace_ms", "make_controller", "copy", "buckets_max"),
        *("bytes_max", "group_buckets_max", "group_bytes_max", "acks_when_processed", "own"),
        *("stored", "backed", "saved", "save_bytes_max", "first_epoch", "paced"),
    }
)
#: What only records the past, or is derived from the rest: copied, and no part of its state.
DERIVED = frozenset(
    {
        *("_story", "events_handled", "_out", "dropped", "gaps", "number", "driver"),
        "fresh_timers",
    }
)


def clone(value: T) -> T:
    """A copy that shares nothing mutable with the original."""
    return _clone(value, {})  # type: ignore[no-any-return]


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
    if kind in SHARED:
        return value
    if kind not in WALKED:
        _expect_immutable(kind)
        return value
    if id(value) in seen:
        return seen[id(value)]
    copy = object.__new__(kind)
    seen[id(value)] = copy
    for name in _names(value):
        each = getattr(value, name)
        if name == "_story":
            each = deque(maxlen=each.maxlen)
        elif name == "driver":
            continue
        elif name not in FIXED:
            each = _clone(each, seen)
        object.__setattr__(copy, name, each)
    if kind is Process:
        copy.drive_again()
    return copy


def freeze(value: Any) -> Hashable:
    """Something hashable that is equal exactly if the state is."""
    return _freeze(value, set())


def _freeze(value: Any, seen: set[int]) -> Hashable:
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[no-any-return]
    if kind is dict:
        return frozenset((key, _freeze(each, seen)) for key, each in value.items())
    if kind is set:
        return frozenset(value)
    if kind is list or kind is deque:
        return tuple(_freeze(each, seen) for each in value)
    if kind in WALKED:
        if id(value) in seen:
            # Parts of a host share others; one look at each is enough.
            return ()
        seen.add(id(value))
        left_out = FIXED | DERIVED
        return tuple(_freeze(getattr(value, name), seen) for name in _names(value) if name not in left_out)
    if kind in SHARED:
        return ()
    _expect_immutable(kind)
    return value  # type: ignore[no-any-return]


def _names(value: Any) -> list[str]:
    return list(vars(value)) if hasattr(value, "__dict__") else _slots(type(value))  # type: ignore[arg-type]


@cache
def _slots(kind: type) -> list[str]:
    """A class names only the slots that it adds to those of its bases."""
    return [name for each in reversed(kind.__mro__) for name in getattr(each, "__slots__", ())]


_immutable: set[type] = set()


def _expect_immutable(kind: type) -> None:
    if kind in _immutable:
        return
    parameters = getattr(kind, "__dataclass_params__", None)
    frozen = parameters is not None and parameters.frozen
    if not frozen and not issubclass(kind, Enum):
        raise TypeError(f"{kind.__qualname__} is neither immutable nor known: list it in {__name__}.WALKED")
    _immutable.add(kind)
