"""The order in which fragments can run: each after its inputs, otherwise as they were written."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from understudy.flow.errors import FlowError
from understudy.flow.model import Fragment, Source


def topological(
    flow: str, sources: Mapping[str, Source], fragments: Mapping[str, Fragment]
) -> Mapping[str, Fragment]:
    """The fragments in an order that can run. A FlowError names an unknown input, or the whole cycle."""
    for fragment in fragments.values():
        for name in fragment.inputs:
            if name not in sources and name not in fragments:
                known = ", ".join([*sources, *fragments])
                raise FlowError(
                    f"fragment {fragment.name!r} reads {name!r}, which flow {flow!r} does not have. "
                    f"It has {known}."
                )
    waiting = dict(fragments)
    ordered: dict[str, Fragment] = {}
    while waiting:
        ready = next((f for f in waiting.values() if not any(name in waiting for name in f.inputs)), None)
        if ready is None:
            raise FlowError(
                f"flow {flow!r} has a cycle: {' -> '.join(_cycle(waiting))}. "
                "A fragment cannot read what is made from its own output."
            )
        ordered[ready.name] = waiting.pop(ready.name)
    return MappingProxyType(ordered)


def _cycle(waiting: Mapping[str, Fragment]) -> list[str]:
    """A cycle in the direction the rows would flow. Every waiting fragment waits for another waiting one."""
    path = [next(iter(waiting))]
    while True:
        upstream = next(name for name in waiting[path[-1]].inputs if name in waiting)
        path.append(upstream)
        if upstream in path[:-1]:
            return path[path.index(upstream) :][::-1]
