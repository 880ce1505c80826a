"""Where the copies of partitions sit at the start."""

from __future__ import annotations

import pytest

from understudy.core.layout import LayoutError, chained, check_layout, mirrored
from understudy.core.partition import Copy, Partition
from understudy.core.topology import chain_of
from understudy.core.view import Slot

PRIM, SEC = Slot.PRIM, Slot.SEC
SHAPE = chain_of(sessions=4, stats=4)
NODES = ["a", "b", "c", "d"]


def test_each_secondary_sits_one_node_further_than_its_primary() -> None:
    layout = chained(SHAPE, NODES)
    assert [layout[Copy(Partition("stats", i), PRIM)] for i in range(4)] == NODES
    assert [layout[Copy(Partition("stats", i), SEC)] for i in range(4)] == ["b", "c", "d", "a"]
    check_layout(layout, SHAPE, NODES)


def test_a_layout_that_one_loss_could_destroy_is_refused() -> None:
    layout = chained(SHAPE, NODES)
    copy = Copy(Partition("stats", 2), SEC)
    with pytest.raises(LayoutError, match="both copies of stats/2 are to sit on 'c'"):
        check_layout({**layout, copy: "c"}, SHAPE, NODES)
    with pytest.raises(LayoutError, match="'z', which is not there"):
        check_layout({**layout, copy: "z"}, SHAPE, NODES)
    with pytest.raises(LayoutError, match="stats/2:SEC has no node"):
        check_layout({c: n for c, n in layout.items() if c != copy}, SHAPE, NODES)
    with pytest.raises(LayoutError, match="at least 2 nodes"):
        chained(SHAPE, ["a"])


def test_mirrored_halves_run_the_whole_flow_each() -> None:
    layout = mirrored(SHAPE, NODES)
    assert [layout[Copy(Partition("stats", i), PRIM)] for i in range(4)] == ["a", "b", "a", "b"]
    assert [layout[Copy(Partition("stats", i), SEC)] for i in range(4)] == ["c", "d", "c", "d"]
    check_layout(layout, SHAPE, NODES)
    for nodes in ([], ["a"], ["a", "b", "c"]):
        with pytest.raises(LayoutError, match="an even number of nodes"):
            mirrored(SHAPE, nodes)
