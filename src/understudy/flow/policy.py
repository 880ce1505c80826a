"""Policies: how a flow is protected. Here is a policy's name and parameters; its protocol is in `core`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from understudy.flow.errors import FlowError


@dataclass(frozen=True)
class Policy:
    """What every policy has."""

    name: ClassVar[str]
    #: How many nodes run each fragment.
    replicas: ClassVar[int]

    #: A node that is silent for this long is declared dead.
    silence_ms: int = 1_000

    def __post_init__(self) -> None:
        # Below this a garbage collection looks like a death.
        if self.silence_ms < 100:
            raise FlowError(
                f"policy {self.name!r}: silence_ms must be at least 100, not {self.silence_ms!r}."
            )


@dataclass(frozen=True)
class Unprotected(Policy):
    """One node runs everything. Its loss stops the output until it is started again."""

    name: ClassVar[str] = "none"
    replicas: ClassVar[int] = 1


@dataclass(frozen=True)
class Pair(Policy):
    """Two nodes run everything; the secondary holds its output until egress acknowledged the primary's."""

    name: ClassVar[str] = "pair"
    replicas: ClassVar[int] = 2


POLICIES: dict[str, type[Policy]] = {kind.name: kind for kind in (Unprotected, Pair)}


def policy_named(name: str, **parameters: int) -> Policy:
    """The policy of that name. An unknown name or parameter is a FlowError that lists the known ones."""
    kind = POLICIES.get(name)
    if kind is None:
        raise FlowError(f"There is no policy {name!r}. Known policies: {', '.join(POLICIES)}.")
    known = [field.name for field in fields(kind)]
    for parameter in parameters:
        if parameter not in known:
            raise FlowError(f"policy {name!r} has no parameter {parameter!r}. It has: {', '.join(known)}.")
    return kind(**parameters)
