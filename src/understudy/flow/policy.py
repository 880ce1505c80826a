"""Policies: how a flow is protected. Here is a policy's name and parameters; its protocol is in `core`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from understudy.flow.errors import FlowError

#: Below this a garbage collection looks like a death.
SILENCE_MS_MIN = 500


@dataclass(frozen=True)
class Policy:
    """What every policy has.

    `silence_ms`: after this long without a sign a connection counts as broken, and a replica behind it as
    dead. It decides how soon a process that hangs is noticed; one that dies breaks its connections and is
    noticed at once. ZooKeeper gives up a process that hangs after 2 s in any case.
    """

    name: ClassVar[str]
    #: How many nodes run each fragment, or each partition of it.
    replicas: ClassVar[int]
    #: Whether fragments are split into partitions.
    partitioned: ClassVar[bool] = False
    #: How many nodes a run has if nobody says, and how many wait to take the place of one.
    nodes: ClassVar[int]
    standby: ClassVar[int]

    silence_ms: int = 2_000

    def __post_init__(self) -> None:
        if self.silence_ms < SILENCE_MS_MIN:
            raise FlowError(
                f"policy {self.name!r}: silence_ms must be at least {SILENCE_MS_MIN}, "
                f"not {self.silence_ms!r}."
            )


@dataclass(frozen=True)
class Unprotected(Policy):
    """One node runs everything. Its loss stops the output until it is started again."""

    name: ClassVar[str] = "none"
    replicas: ClassVar[int] = 1
    nodes: ClassVar[int] = 1
    standby: ClassVar[int] = 0


@dataclass(frozen=True)
class Pair(Policy):
    """Two nodes run everything; the secondary holds its output until egress acknowledged the primary's."""

    name: ClassVar[str] = "pair"
    replicas: ClassVar[int] = 2
    nodes: ClassVar[int] = 2
    standby: ClassVar[int] = 1


@dataclass(frozen=True)
class Flux(Policy):
    """Fragments are split into partitions; each runs on two nodes, and moves by itself when one dies."""

    name: ClassVar[str] = "flux"
    replicas: ClassVar[int] = 2
    partitioned: ClassVar[bool] = True
    nodes: ClassVar[int] = 4
    standby: ClassVar[int] = 1


@dataclass(frozen=True)
class ClusterPairs(Policy):
    """Half of the nodes run the partitioned flow, the other half run it again; one loss costs a whole half.

    The simple way to protect a partitioned flow, to compare `flux` with. Nobody is replaced.
    """

    name: ClassVar[str] = "cluster"
    replicas: ClassVar[int] = 2
    partitioned: ClassVar[bool] = True
    nodes: ClassVar[int] = 4
    standby: ClassVar[int] = 0


POLICIES: dict[str, type[Policy]] = {kind.name: kind for kind in (Unprotected, Pair, Flux, ClusterPairs)}


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
