"""Breaks of a process: of its host, and of the log from which a gateway starts again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from understudy.core.host import host as host_module
from understudy.core.host.connections import Connections
from understudy.core.host.edges import Edges
from understudy.core.host.host import Host
from understudy.core.host.parcels import Attach, Dispatch, Relay
from understudy.core.host.places import Places
from understudy.core.shape.partition import Copy
from understudy.core.view.changes import Fail, changes
from understudy.sim.disk import Disk

Patch = pytest.MonkeyPatch


def failures_first(patch: Patch) -> None:
    """Of two views, the deaths are handled before the arrivals."""

    def sorted_changes(old: Any, new: Any) -> list[Any]:
        return sorted(changes(old, new), key=lambda change: not isinstance(change, Fail))

    patch.setattr(host_module, "changes", sorted_changes)


def do_not_try_again(patch: Patch) -> None:
    """A new view is no reason to try edges again."""
    turn = Host._turn_to

    def lazy(host: Host, view: Any) -> None:
        host.edges.__dict__["_try"] = lambda *_: []
        try:
            turn(host, view)
        finally:
            del host.edges.__dict__["_try"]

    patch.setattr(Host, "_turn_to", lazy)


def views_do_not_travel(patch: Patch) -> None:
    def bare(connections: Connections, node: str, parcel: Any) -> list[Dispatch]:
        return [Dispatch(node, parcel)] if node in connections.up else []

    patch.setattr(Connections, "dispatch", bare)


def views_travel_once(patch: Patch) -> None:
    """The newest view is not sent over a connection that is made anew."""
    peer_up = Host._peer_up

    def forgetful(host: Host, node: str, serial: int) -> None:
        views = dict(host.connections._told_view)
        peer_up(host, node, serial)
        host.connections._told_view.update(views)
        host._out[:] = [
            each for each in host._out if not (isinstance(each, Dispatch) and isinstance(each.parcel, Relay))
        ]

    patch.setattr(Host, "_peer_up", forgetful)


def forget_views_that_came_early(patch: Patch) -> None:
    relayed = Host._relayed

    def deaf(host: Host, node: str, view: Any) -> None:
        relayed(host, node, view)
        host._ahead = None

    patch.setattr(Host, "_relayed", deaf)


def no_fencing(patch: Patch) -> None:
    """Edges are opened by and to whichever epoch."""
    arrived = Host._arrived

    def let_in(host: Host, node: str, parcel: Any) -> None:
        resident = host.residents.get(parcel.to) if isinstance(parcel, Attach) else None
        if resident is not None:
            parcel = replace(parcel, to_epoch=resident.epoch)

        def sits(copy: Copy, of: str, epoch: int) -> bool:
            known = host.view is not None and copy.partition in host.view.partitions
            return Places.sits(host.places, copy, of, epoch) or (of != host.name and known)

        host.places.__dict__["sits"] = sits
        try:
            arrived(host, node, parcel)
        finally:
            del host.places.__dict__["sits"]

    patch.setattr(Host, "_arrived", let_in)


def edges_outlive_their_connection(patch: Patch) -> None:
    """A connection that is replaced leaves its edges open."""
    patch.setattr(Edges, "lose", lambda *_: [])
    patch.setattr(Host, "check", lambda _: None)


def forget_the_log(patch: Patch) -> None:
    patch.setattr(Disk, "unread", lambda disk, source, _: disk.sealed[source])
