"""Where the copies of partitions sit at the start."""

from __future__ import annotations

import pytest

from understudy.core.errors import BrokenInvariant
from understudy.core.shape.layout import LayoutError, chained, check_layout, mirrored
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of

SHAPE = chain_of(sessions=4, stats=4)
NODES = ["a", "b", "c", "d"]


def nodes_of(layout: dict[Copy, str], replica: int) -> str:
    return "".join(layout[Copy(Partition("stats", index), replica)] for index in range(4))


@pytest.mark.parametrize(
    ("replicas", "expected"), [(1, ["abcd"]), (2, ["abcd", "bcda"]), (3, ["abcd", "bcda", "cdab"])]
)
def test_in_a_chain_each_replica_sits_one_node_further_than_the_last(
    replicas: int, expected: list[str]
) -> None:
    layout = chained(SHAPE, NODES, replicas)
    assert [nodes_of(layout, replica) for replica in range(replicas)] == expected
    check_layout(layout, SHAPE, NODES, replicas)


@pytest.mark.parametrize(
    ("replicas", "nodes", "expected"),
    [(1, "abcd", ["abcd"]), (2, "abcd", ["abab", "cdcd"]), (3, "abcdef", ["abab", "cdcd", "efef"])],
)
def test_each_group_of_mirrored_nodes_runs_the_whole_flow(
    replicas: int, nodes: str, expected: list[str]
) -> None:
    layout = mirrored(SHAPE, list(nodes), replicas)
    assert [nodes_of(layout, replica) for replica in range(replicas)] == expected
    check_layout(layout, SHAPE, list(nodes), replicas)


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_layout_needs_as_many_nodes_as_replicas(replicas: int) -> None:
    with pytest.raises(LayoutError, match=f"at least {replicas} nodes, there are {replicas - 1}"):
        chained(SHAPE, NODES[: replicas - 1], replicas)


@pytest.mark.parametrize(("replicas", "nodes"), [(2, ""), (2, "a"), (2, "abc"), (3, "abcd")])
def test_mirrored_groups_are_of_equal_size(replicas: int, nodes: str) -> None:
    with pytest.raises(LayoutError, match=f"a multiple of {replicas} nodes, there are {len(nodes)}"):
        mirrored(SHAPE, list(nodes), replicas)


def test_a_node_that_is_named_twice_is_our_bug() -> None:
    for arrange in (chained, mirrored):
        with pytest.raises(BrokenInvariant, match="named twice"):
            arrange(SHAPE, ["a", "a"], 2)


STATS_2 = Copy(Partition("stats", 2), 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({STATS_2: "c"}, "two copies of stats/2 are assigned to 'c'"),
        ({STATS_2: "z"}, "stats/2:1 is assigned to 'z', which is not a member"),
        ({STATS_2: None}, "stats/2:1 has no node"),
        ({Copy(Partition("stats", 9)): "a"}, "stats/9:0 is no copy of any partition"),
        ({Copy(Partition("stats"), 2): "a"}, "stats/0:2 is no copy of any partition"),
    ],
)
def test_a_layout_of_ones_own_must_fit_the_flow_and_survive_one_loss(
    change: dict[Copy, str | None], why: str
) -> None:
    changed = {**chained(SHAPE, NODES, 2), **change}
    layout = {copy: node for copy, node in changed.items() if node is not None}
    with pytest.raises(LayoutError, match=why):
        check_layout(layout, SHAPE, NODES, 2)
