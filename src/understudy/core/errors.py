"""Whose fault it is, as far as the protocols can tell."""

from __future__ import annotations


class BrokenInvariant(Exception):
    """Our bug: a machine is in a state its protocol rules out. Stop; never guess on."""


class PeerError(Exception):
    """The peer broke the protocol. The event that showed it has changed nothing."""


class Fenced(PeerError):
    """A message from a seat that the current view no longer holds: its sender was declared dead."""


def require(condition: bool, what: str) -> None:
    """Raise `BrokenInvariant` unless `condition` holds. Unlike `assert`, `-O` does not strip it."""
    if not condition:
        raise BrokenInvariant(what)
