"""A flow is cut into segments by what reads what, and every process can tell how without Spark."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import understudy as us
from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Partition
from understudy.engine.segments import fragments_of, topology_of


def flow_of(**inputs: tuple[str, ...]) -> us.Flow:
    """A flow of these fragments; names that are no fragments are sources. Each fragment has a sink."""
    flow = us.Flow("f")
    for name in dict.fromkeys(name for read in inputs.values() for name in read if name not in inputs):
        flow.source(name, us.Push("k string, ts timestamp"), time="ts")
    for name, read in inputs.items():

        def function(*rows: Any) -> Any:
            return rows[0]

        function.__name__ = name
        flow.fragment(*read, time="ts", partition_by=["k"])(function)
        flow.sink(name, us.Console())
    return flow


def test_fragments_that_only_share_a_source_are_segments_of_their_own() -> None:
    flow = flow_of(a=("s",), b=("s",), c=("s", "t"))
    assert fragments_of(flow, "flow") == {"a": ("a",), "b": ("b",), "c": ("c",)}
    topology = topology_of(flow, "flow", 4)
    assert topology.inputs == {"a": ("s",), "b": ("s",), "c": ("s", "t")}
    assert topology.counts == {"a": 1, "b": 1, "c": 1}
    assert topology.sinks == {"sink:a": "a", "sink:b": "b", "sink:c": "c"}


def test_fragments_that_read_one_another_are_one_segment_with_its_sources_and_sinks() -> None:
    flow = flow_of(a=("s",), x=("t",), b=("a", "t"), y=("s",))
    assert fragments_of(flow, "flow") == {"a+b": ("a", "b"), "x": ("x",), "y": ("y",)}
    topology = topology_of(flow, "flow", 4)
    assert topology.inputs == {"a+b": ("s", "t"), "x": ("t",), "y": ("s",)}
    assert topology.sinks == {"sink:a": "a+b", "sink:x": "x", "sink:b": "a+b", "sink:y": "y"}
    assert topology.producers(Partition("sink:b")) == (Partition("a+b"),)


def test_two_groups_that_a_later_fragment_reads_are_one() -> None:
    flow = flow_of(a=("s",), b=("s",), both=("a", "b"))
    assert fragments_of(flow, "flow") == {"a+b+both": ("a", "b", "both")}


def test_a_segment_of_many_fragments_is_named_by_its_first_and_the_number_of_the_others() -> None:
    flow = flow_of(a=("s",), x=("s",), b=("a",), y=("x",), c=("b",), d=("c",), z=("y",), w=("z",))
    assert fragments_of(flow, "flow") == {"a+3": ("a", "b", "c", "d"), "x+3": ("x", "y", "z", "w")}


def test_by_fragments_each_is_a_segment_in_partitions_of_its_own() -> None:
    flow = flow_of(a=("s",), b=("a", "s"))
    assert fragments_of(flow, "fragment") == {"a": ("a",), "b": ("b",)}
    topology = topology_of(flow, "fragment", 2)
    assert topology.inputs == {"a": ("s",), "b": ("a", "s")}
    assert topology.counts == {"a": 2, "b": 2}
    assert topology.consumers(Partition("a", 1)) == (
        Partition("b", 0),
        Partition("b", 1),
        Partition("sink:a"),
    )


def test_an_unknown_unit_is_a_mistake_of_ours() -> None:
    with pytest.raises(BrokenInvariant, match="by flow or fragment, not by 'node'"):
        fragments_of(flow_of(a=("s",)), "node")


def test_segments_are_known_without_spark() -> None:
    code = (
        "import sys, understudy.engine.segments, understudy.engine.interface; "
        "sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
