"""Policies: how a flow is protected. A policy is data; its protocol is in `core`.

Everything in which policies differ is a field here, and a run stores its policy with all parameters.
A new policy is a new entry in `POLICIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from understudy.flow.errors import FlowError

#: Below this a garbage collection looks like a death.
SILENCE_MS_MIN = 500
REPLICAS_MAX = 9
#: An engine stands still for every snapshot; more often it would do little else.
SHIP_MS_MIN = 50

#: What runs in one engine: every group of connected fragments, or each fragment, split by its keys.
FLOW, FRAGMENT = "flow", "fragment"


@dataclass(frozen=True)
class Policy:
    """How a flow is protected.

    `silence_ms`: after this long without a sign a connection counts as broken, and a replica behind it as
    dead. It decides how soon a process that hangs is noticed; one that dies breaks its connections and is
    noticed at once. ZooKeeper gives up a process that hangs after 2 s in any case.
    """

    name: str
    #: In one sentence, for people.
    summary: str
    #: How many copies of everything run.
    replicas: int
    #: What a segment is, FLOW or FRAGMENT; only fragments are split into partitions.
    unit: str = FLOW
    #: Whether each replica of the flow keeps to itself, so that one loss costs all of it, for good.
    isolated: bool = False
    #: How many nodes a run has unless it says otherwise; never fewer than one for each replica.
    nodes: int = 0
    #: How many nodes wait to take the place of one.
    standby: int = 1
    silence_ms: int = 2_000
    #: How often the copy that works ships its snapshot to the others, which only hold it; 0: all work.
    ship_ms: int = 0
    #: The fields that a user may choose.
    parameters: tuple[str, ...] = ("silence_ms",)

    def __post_init__(self) -> None:
        if self.silence_ms < SILENCE_MS_MIN:
            raise FlowError(
                f"policy {self.name!r}: silence_ms must be at least {SILENCE_MS_MIN}, "
                f"not {self.silence_ms!r}."
            )
        if self.ship_ms and self.ship_ms < SHIP_MS_MIN:
            raise FlowError(
                f"policy {self.name!r}: ship_ms must be at least {SHIP_MS_MIN}, not {self.ship_ms!r}."
            )
        least = 2 if "replicas" in self.parameters else 1
        if not least <= self.replicas <= REPLICAS_MAX:
            raise FlowError(
                f"policy {self.name!r}: replicas must lie between {least} and {REPLICAS_MAX}, "
                f"not {self.replicas!r}."
            )

    @property
    def partitioned(self) -> bool:
        """Whether fragments are split into partitions."""
        return self.unit == FRAGMENT

    @property
    def nodes_least(self) -> int:
        """The nodes that it takes to give every copy of a partition a node of its own."""
        return self.replicas

    @property
    def nodes_usual(self) -> int:
        return max(self.nodes, self.replicas)

    def partitions_for(self, nodes: int) -> int:
        """Into how many partitions a fragment is split on so many nodes, unless a run says otherwise."""
        if not self.partitioned:
            return 1
        return nodes // self.replicas if self.isolated else nodes

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "parameters": list(self.parameters)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Policy:
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in values.items() if name in known}
        return cls(**{**given, "parameters": tuple(given.get("parameters", ()))})


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(
            "none",
            "One node runs everything. Its loss stops the output for good.",
            replicas=1,
            standby=0,
        ),
        Policy(
            "pair",
            "Every node runs the whole flow; one sends its results, the others can take over at once.",
            replicas=2,
            parameters=("silence_ms", "replicas"),
        ),
        Policy(
            "flux",
            "Fragments are split by their keys; each partition runs on two nodes and moves when one dies.",
            replicas=2,
            unit=FRAGMENT,
            nodes=4,
            parameters=("silence_ms", "replicas"),
        ),
        Policy(
            "passive",
            "One copy of each partition works; the others hold its snapshots and go on from the last one.",
            replicas=2,
            unit=FRAGMENT,
            nodes=2,
            ship_ms=500,
            parameters=("silence_ms", "replicas", "ship_ms"),
        ),
        Policy(
            "cluster",
            "Half of the nodes run the split flow, the other half run it again; one loss costs a whole half.",
            replicas=2,
            unit=FRAGMENT,
            isolated=True,
            nodes=4,
            standby=0,
        ),
    )
}


def policy_named(name: str, **parameters: int) -> Policy:
    """The policy of that name. An unknown name or parameter is a FlowError that lists the known ones."""
    policy = POLICIES.get(name)
    if policy is None:
        raise FlowError(f"There is no policy {name!r}. Known policies: {', '.join(POLICIES)}.")
    for parameter in parameters:
        if parameter not in policy.parameters:
            raise FlowError(
                f"policy {name!r} has no parameter {parameter!r}. It has: {', '.join(policy.parameters)}."
            )
    return replace(policy, **parameters)  # type: ignore[arg-type]
