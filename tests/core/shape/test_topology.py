"""The topology of a flow: levels, neighbours, and its ends."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from understudy.core.errors import BrokenInvariant
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import Topology, chain_of

#: Two sources are joined; clicks are counted as well; two sinks.
SHOP = Topology(
    {"sessions": ("clicks",), "joined": ("sessions", "orders"), "counts": ("sessions",)},
    {"sessions": 2, "joined": 2, "counts": 1},
    {"sales": "joined", "numbers": "counts"},
)


def named(*texts: str) -> tuple[Partition, ...]:
    return tuple(Partition.of(text) for text in texts)


def test_every_name_that_is_read_and_is_no_segment_is_a_source() -> None:
    assert SHOP.sources == ("clicks", "orders")
    assert SHOP.ends == set(named("clicks/0", "orders/0", "sales/0", "numbers/0"))


def test_a_segment_is_one_level_above_the_highest_segment_it_reads() -> None:
    assert SHOP.levels == (
        named("sessions/0", "sessions/1"),
        named("joined/0", "joined/1", "counts/0"),
    )
    assert SHOP.partitions == (*SHOP.levels[0], *SHOP.levels[1])


def test_between_two_segments_all_partitions_are_neighbours() -> None:
    assert SHOP.producers(Partition("joined", 1)) == named("orders/0", "sessions/0", "sessions/1")
    assert SHOP.consumers(Partition("sessions", 1)) == named("counts/0", "joined/0", "joined/1")


def test_a_source_feeds_its_readers_and_a_sink_takes_one_segment() -> None:
    assert SHOP.consumers(Partition("clicks")) == named("sessions/0", "sessions/1")
    assert SHOP.producers(Partition("sales")) == named("joined/0", "joined/1")
    assert SHOP.producers(Partition("clicks")) == SHOP.consumers(Partition("sales")) == ()


def test_each_neighbour_knows_the_other() -> None:
    everything = {*SHOP.partitions, *SHOP.ends}
    below = {(producer, each) for each in everything for producer in SHOP.producers(each)}
    above = {(each, consumer) for each in everything for consumer in SHOP.consumers(each)}
    assert below == above


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_every_partition_of_a_segment_has_a_copy_for_each_replica_and_ends_have_none(replicas: int) -> None:
    assert chain_of(f=2).copies(replicas) == tuple(
        Copy(Partition("f", index), replica) for index in range(2) for replica in range(replicas)
    )


def test_a_chain_reads_one_source_and_ends_in_one_sink() -> None:
    chain = chain_of(low=2, high=1)
    assert (chain.sources, dict(chain.sinks)) == (("source",), {"sink": "high"})
    assert chain.producers(Partition("high")) == named("low/0", "low/1")


@pytest.mark.parametrize(
    ("inputs", "counts", "sinks", "why"),
    [
        ({}, {}, {}, "at least one segment"),
        ({"f": ("s",)}, {}, {}, "a number of partitions"),
        ({"f": ("s",)}, {"f": 0}, {}, "at least one partition"),
        ({"f": ()}, {"f": 1}, {}, "comes before what it reads"),
        ({"f": ("g",), "g": ("s",)}, {"f": 1, "g": 1}, {}, "comes before what it reads"),
        ({"f": ("s",)}, {"f": 1}, {"out": "s"}, "a sink reads a segment"),
        ({"f": ("s",)}, {"f": 1}, {"s": "f"}, "the name of a stream"),
        ({"f": ("s",)}, {"f": 1}, {"f": "f"}, "the name of a stream"),
    ],
)
def test_a_flow_that_makes_no_sense_cannot_be_built(
    inputs: Mapping[str, tuple[str, ...]], counts: Mapping[str, int], sinks: Mapping[str, str], why: str
) -> None:
    with pytest.raises(BrokenInvariant, match=why):
        Topology(inputs, counts, sinks)
