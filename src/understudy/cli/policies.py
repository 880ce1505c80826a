"""A policy as the command line names it, and as status and titles show it."""

from __future__ import annotations

from understudy.flow.errors import UserError
from understudy.flow.policy import POLICIES, Policy, policy_named


def chosen_policy(name: str, replicas: int | None, **parameters: int) -> Policy:
    """The policy of that name, with as many replicas; None: as many as it has by itself."""
    if replicas is None:
        return policy_named(name, **parameters)
    if "replicas" not in policy_named(name).parameters:
        others = sorted(each.name for each in POLICIES.values() if "replicas" in each.parameters)
        raise UserError(
            f"policy {name!r} always runs {times(POLICIES[name].replicas)}. "
            f"Leave --replicas out, or choose --policy {' or '.join(others)}."
        )
    return policy_named(name, replicas=replicas, **parameters)


def titled(name: str, replicas: int) -> str:
    """A policy in a few words: its replicas only if they are not as many as usual."""
    known = POLICIES.get(name)
    usual = known is not None and known.replicas == replicas
    return name if usual else f"{name} with {replicas} replicas"


def times(replicas: int) -> str:
    """How often the flow runs, in words."""
    return {1: "everything once", 2: "everything twice"}.get(replicas, f"everything {replicas} times")
