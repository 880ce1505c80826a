"""What a gateway must know of a flow whose code it does not load, on its way through a file."""

from __future__ import annotations

import json
from dataclasses import replace
from types import FunctionType
from typing import Any

import pytest

import understudy as us
from understudy.core.errors import BrokenInvariant
from understudy.flow.policy import policy_named
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.settings import RunSettings

CLICKS, RULES = "user string, page string, ts timestamp", "page string, weight double, ts timestamp"


def settings(policy: str, **changes: Any) -> RunSettings:
    return RunSettings("run", "flow.py", "/nowhere", "", policy=policy_named(policy), **changes)


def same(*inputs: Any) -> Any:
    return inputs[0]


def flow_of(*fragments: tuple[str, tuple[str, ...], dict[str, Any]], sinks: tuple[str, ...]) -> us.Flow:
    """A flow over two sources; each fragment has a name, what it reads, and options."""
    flow = us.Flow("small", bucket="100 ms")
    flow.source("clicks", us.Push(CLICKS), time="ts")
    flow.source("rules", us.Push(RULES), time="ts")
    for name, read, options in fragments:
        flow.fragment(*read, time="ts", **options)(FunctionType(same.__code__, globals(), name))
    for number, fragment in enumerate(sinks):
        flow.sink(fragment, us.Console(), name=f"out-{number}")
    return flow


FLOWS = {
    "one fragment": flow_of(("counts", ("clicks",), {}), sinks=("counts",)),
    "a fragment by two keys": flow_of(
        ("counts", ("clicks",), {"partition_by": ["user", "page"]}), sinks=("counts", "counts")
    ),
    "two sources joined": flow_of(
        ("rated", ("clicks", "rules"), {"partition_by": ["page"], "partitions": 3}), sinks=("rated",)
    ),
    "a chain with a sink in its middle": flow_of(
        ("counts", ("clicks",), {"partition_by": ["user"]}),
        ("rated", ("counts", "rules"), {"partition_by": ["page"], "partitions": 2}),
        ("total", ("rated",), {}),
        sinks=("counts", "total"),
    ),
    "fragments that know nothing of each other": flow_of(
        ("counts", ("clicks",), {"partition_by": ["user"]}), ("weights", ("rules",), {}), sinks=("weights",)
    ),
    "more fragments than a segment's name has": flow_of(
        *((f"f{at}", ("clicks",) if at == 0 else (f"f{at - 1}",), {}) for at in range(6)), sinks=("f5",)
    ),
}


@pytest.mark.parametrize("policy", ["none", "pair", "flux", "passive", "cluster"])
@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_what_was_written_is_what_is_read(flow: us.Flow, policy: str) -> None:
    dataflow = Dataflow.of(flow, settings(policy, nodes=4))
    again = Dataflow.from_json(json.loads(json.dumps(dataflow.to_json())))
    assert again == dataflow
    assert list(again.topology.inputs) == list(dataflow.topology.inputs), "each segment after what it reads"
    assert again.topology.partitions == dataflow.topology.partitions
    assert again.topology.ends == dataflow.topology.ends


def test_rows_are_dealt_out_by_the_keys_of_the_fragment_that_takes_them() -> None:
    chain = FLOWS["a chain with a sink in its middle"]
    split = Dataflow.of(chain, settings("flux", nodes=4))
    assert split.keys == {"counts": ("user",), "rated": ("page",), "total": ()}
    assert split.topology.counts == {"counts": 4, "rated": 2, "total": 1}
    whole = Dataflow.of(chain, settings("pair"))
    assert (whole.keys, list(whole.topology.counts.values())) == ({}, [1])


def test_the_ends_are_the_sources_that_are_read_and_the_sinks() -> None:
    flow = FLOWS["fragments that know nothing of each other"]
    assert Dataflow.of(flow, settings("flux")).ends == {"clicks", "rules", "sink:out-0"}
    only = flow_of(("counts", ("clicks",), {}), sinks=("counts",))
    assert Dataflow.of(only, settings("flux")).ends == {"clicks", "sink:out-0"}


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": [["b", ["a"]], ["a", ["clicks"]]], "counts": {"a": 1, "b": 1}},
        {"counts": {}},
        {"counts": {"counts": 0}},
        {"sinks": {"sink:out-0": "nothing"}},
    ],
    ids=["a segment before what it reads", "no numbers", "no partition", "a sink of nothing"],
)
def test_a_shape_that_is_none_is_not_read(changes: dict[str, Any]) -> None:
    values = Dataflow.of(FLOWS["one fragment"], settings("flux")).to_json()
    with pytest.raises(BrokenInvariant):
        Dataflow.from_json({**values, **changes})


def test_another_flow_has_another_shape() -> None:
    one = Dataflow.of(FLOWS["a fragment by two keys"], settings("flux", nodes=4))
    assert one != Dataflow.of(FLOWS["a fragment by two keys"], settings("flux", nodes=5))
    assert one != replace(one, keys={"counts": ("page", "user")})
