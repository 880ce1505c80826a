"""Controllers of a flow of two levels on four nodes and of one partition, and what their views show."""

from __future__ import annotations

from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.controller import Controller
from understudy.core.view.events import CopyCaughtUp, Decision, MemberJoined, Publish
from understudy.core.view.view import Seats, Status, View

SHAPE = chain_of(low=4, high=4)
NODES = ["a", "b", "c", "d"]
#: The one partition of a `single` controller.
F = Partition("f")


def controller(*more: str, replicas: int = 2, isolated: bool = False, grace_ms: int = 10_000) -> Controller:
    """Four nodes hold everything; the others have come after them."""
    made = Controller(SHAPE, replicas, nodes_wanted=4, isolated=isolated, grace_ms=grace_ms)
    join(made, *NODES, *more)
    return made


def single(replicas: int, *more: str) -> Controller:
    """One partition on as many nodes as it has replicas: a, b, c."""
    made = Controller(chain_of(f=1), replicas, nodes_wanted=replicas)
    join(made, *"abc"[:replicas], *more)
    return made


def join(made: Controller, *nodes: str) -> None:
    for order, node in enumerate(nodes):
        made.handle(MemberJoined(node, order))


def low(index: int, replica: int) -> Copy:
    return Copy(Partition("low", index), replica)


def high(index: int, replica: int) -> Copy:
    return Copy(Partition("high", index), replica)


def now(made: Controller) -> View:
    assert made.view is not None
    return made.view


def seat_of(made: Controller, copy: Copy) -> tuple[str, Status]:
    seat = now(made).seat(copy)
    return seat.node, seat.status


def with_status(made: Controller, status: Status) -> list[Copy]:
    return [copy for copy, seat in now(made).seats.items() if seat.status is status]


def other_active(of: Seats, replica: int) -> bool:
    return any(seat.status is Status.ACTIVE for r, seat in enumerate(of.seats) if r != replica)


def views(done: list[Decision]) -> list[View]:
    return [each.view for each in done if isinstance(each, Publish)]


def catch_up(made: Controller) -> None:
    """All standbys of this moment catch up."""
    for copy in with_status(made, Status.STDBY):
        made.handle(CopyCaughtUp(copy, now(made).seat(copy).epoch))


def all_catch_up(made: Controller) -> None:
    """Standbys catch up until no further one is seated; meanwhile every partition has an active copy."""
    for _ in range(60):
        for seats in now(made).partitions.values():
            assert any(seat.status is Status.ACTIVE for seat in seats.seats)
        if not with_status(made, Status.STDBY):
            return
        catch_up(made)
    raise AssertionError("there is no end to it")


def successor(of: Controller) -> Controller:
    """A new leader, with nothing but the stored view and the members."""
    made = Controller(of.topology, of.replicas, of.nodes_wanted, View.from_json(now(of).to_json()))
    for node in of.members_in_order:
        made.handle(MemberJoined(node, of.members[node]))
    return made
