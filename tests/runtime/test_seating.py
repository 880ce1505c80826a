"""Which node plays which role, from the seats of the copies and from which copies send."""

from __future__ import annotations

import pytest

from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seat, Status
from understudy.runtime.seating import in_one_piece, place_of, players

WHOLE, OTHER = Partition("sessions+stats"), Partition("counts")


def seats(partition: Partition, *nodes: str) -> dict[Copy, Seat]:
    """The copies of a partition; a node in capitals is dead, one with a question mark is catching up, one
    with an equals sign is a backup.
    """
    made = {}
    for replica, node in enumerate(nodes):
        marked = {"?": Status.STDBY, "=": Status.BACKUP}.get(node[-1])
        status = marked or (Status.DEAD if node.isupper() else Status.ACTIVE)
        made[Copy(partition, replica)] = Seat(node.rstrip("?=").lower(), 1, status)
    return made


@pytest.mark.parametrize(
    ("role", "nodes", "sender", "who"),
    [
        ("primary", ("a", "b", "c"), 1, ["a"]),
        ("secondary", ("a", "b", "c"), 1, ["b"]),
        ("sender", ("a", "b", "c"), 1, ["b"]),
        ("holder", ("a", "b", "c"), 1, ["a"]),
        ("holder", ("a", "b", "c"), 0, ["b"]),
        ("holder", ("a", "b?", "c"), 0, ["c"]),
        ("holder", ("a", "b=", "c="), 0, ["b"]),
        ("sender", ("a=", "b"), 1, ["b"]),
        ("standby", ("a", "b", "c"), 1, ["d"]),
        ("standby", ("a", "b?", "c"), 0, ["b"]),
        ("primary", ("A", "b"), 1, []),
        ("holder", ("A", "b"), 1, []),
        ("sender", ("a", "b"), None, []),
        ("secondary", ("a",), 0, []),
    ],
)
def test_in_a_flow_in_one_piece_a_role_is_one_nodes(
    role: str, nodes: tuple[str, ...], sender: int | None, who: list[str]
) -> None:
    assert players(role, seats(WHOLE, *nodes), {WHOLE: sender}, ["a", "b", "c", "d"]) == who


def test_of_many_partitions_a_role_is_as_many_nodes_as_play_it() -> None:
    apart = {**seats(WHOLE, "a", "b"), **seats(OTHER, "b", "a")}
    together = {**seats(WHOLE, "a", "b"), **seats(OTHER, "a", "b")}
    senders = {WHOLE: 0, OTHER: 0}
    assert players("primary", apart, senders) == ["a", "b"]
    assert players("sender", together, senders) == ["a"]
    assert in_one_piece(seats(WHOLE, "a", "b"))
    assert not in_one_piece(together)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="no role 'king'"):
        players("king", {}, {})


def test_replicas_beyond_the_second_go_by_their_number() -> None:
    assert [place_of(replica) for replica in range(3)] == ["primary", "secondary", "replica 2"]
