"""What must hold once nothing fails any more and the world has come to rest."""

from __future__ import annotations

from understudy.core.buffer import Acks
from understudy.core.view import Status
from understudy.sim.checkers import Violation
from understudy.sim.world import World


def check_converged(world: World) -> None:
    """All that is sealed is delivered, every slot is active, nothing is kept that nobody needs."""
    reference, gateway, view = world.reference, world.gateway, world.controller.view
    require(gateway.up and view is not None, "the gateway never came back")
    assert view is not None
    require(gateway.disk.sealed_count == len(reference.inputs), "the source was never let go on")
    delivered = gateway.disk.delivered
    require(
        delivered == reference.output_through or not reference.inputs,
        f"delivered through {delivered}, though output is complete through {reference.output_through}",
    )
    for slot, seat in view.seats.items():
        free = [name for name in world.nodes if view.slot_of(name) is None]
        if seat.status is Status.ACTIVE:
            require(seat.node in world.nodes, f"{slot.value} is called active, but {seat.node} is gone")
        else:
            require(
                seat.status is Status.DEAD and not free,
                f"{slot.value} is {seat.status.value} on {seat.node} though {len(world.nodes)} nodes live",
            )
    _check_drained(world)


def _check_drained(world: World) -> None:
    gateway = world.gateway
    require(len(gateway.ingress.buffer) == 0, f"ingress still keeps {list(gateway.ingress.buffer)}")
    require(not gateway.disk.log, "the log still keeps what every replica has")
    for name, node in world.nodes.items():
        if node.replica is None:
            continue
        require(not node.replica.s_cons.queue, f"{name} still has input waiting")
        require(node.engine.position == world.reference.inputs[-1].number, f"{name} never got all input")
        buffer = node.replica.s_prod.buffer
        require(len(buffer) == 0, f"s-prod of {name} still keeps {list(buffer)}")
        if buffer.acks is Acks.EACH:
            require(not buffer.dangling, f"s-prod of {name} still has dangling {buffer.dangling}")


def require(condition: bool, what: str) -> None:
    if not condition:
        raise Violation("converged", what)
