"""Building a flow: what it holds, and what is refused at once or as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import understudy as us
from understudy.flow.durations import duration_text, duration_us
from understudy.flow.policy import POLICIES, Policy, policy_named

PACKETS = us.Push("src string, ts timestamp")


def same(rows: Any) -> Any:
    return rows


def small_flow() -> us.Flow:
    flow = us.Flow("small", bucket="50 ms")
    packets = flow.source("packets", PACKETS, time="ts", lateness="1 s", idle="2 s", late="drop")

    @flow.fragment(packets, partition_by=["src"], time="ts")
    def first(packets: Any) -> Any:
        return ("first", packets)

    @flow.fragment(first, packets, time="window.end")
    def second(first: Any, packets: Any) -> Any:
        return (first, packets)

    flow.sink(second, us.Parquet("out"))
    return flow


def test_a_flow_holds_what_was_written() -> None:
    flow = small_flow()
    flow.validate()
    assert flow.bucket_us == 50_000
    source = flow.sources["packets"]
    assert (source.schema, source.time, source.late) == ("src string, ts timestamp", "ts", "drop")
    assert (source.lateness_us, source.idle_us) == (1_000_000, 2_000_000)
    assert flow.fragments["second"].inputs == ("first", "packets")
    assert flow.fragments["first"].partition_by == ("src",)
    assert flow.sinks["second"].input == "second"


def test_a_fragment_can_be_called_like_its_function() -> None:
    assert small_flow().fragments["first"]("rows") == ("first", "rows")


def test_fragments_come_after_their_inputs_even_if_written_before_them() -> None:
    flow = us.Flow("f")
    flow.source("s", PACKETS, time="ts")
    flow.fragment("b", "a", time="ts")(_named("c", 2))
    flow.fragment("a", time="ts")(_named("b", 1))
    flow.fragment("s", time="ts")(_named("a", 1))
    assert list(flow.fragments) == ["a", "b", "c"]


def test_a_cycle_is_printed_in_the_direction_of_the_rows() -> None:
    flow = us.Flow("f")
    flow.source("s", PACKETS, time="ts")
    flow.fragment("c", "s", time="ts")(_named("a", 2))
    flow.fragment("a", time="ts")(_named("b", 1))
    flow.fragment("b", time="ts")(_named("c", 1))
    with pytest.raises(us.FlowError, match="cycle: a -> b -> c -> a"):
        flow.validate()


def _named(name: str, arguments: int) -> Any:
    function: Any = (lambda one: None) if arguments == 1 else (lambda one, two: None)
    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"kind": us.Push("src string"), "time": "ts"}, "time column 'ts' is not in the schema (src)"),
        ({"kind": us.Push("ts string"), "time": "ts"}, "must be of type timestamp, not string"),
        ({"kind": us.Push("ts timestamp_ntz"), "time": "ts"}, "must be of type timestamp"),
        (
            {"kind": PACKETS, "time": "ts", "late": "forget"},
            "late='forget' is not one of restamp, drop, refuse",
        ),
        ({"kind": PACKETS, "time": "ts", "lateness": "5"}, "'5' is not a duration"),
        ({"kind": PACKETS, "time": "ts", "idle": "soon"}, "idle: 'soon' is not a duration"),
        ({"kind": "kafka", "time": "ts"}, "expected a kind of source, such as Push, Generator or Files"),
    ],
)
def test_a_source_that_cannot_work_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(us.FlowError) as raised:
        us.Flow("f").source("packets", **arguments)
    assert says in str(raised.value)
    assert "'packets'" in str(raised.value)


def test_names_are_given_once() -> None:
    flow = small_flow()
    with pytest.raises(us.FlowError, match="the source 'first' has the name of a fragment"):
        flow.source("first", PACKETS, time="ts")
    with pytest.raises(us.FlowError, match="the fragment 'first' has the name of a fragment"):
        flow.fragment("packets", time="ts")(_named("first", 1))
    with pytest.raises(us.FlowError, match="two sinks named 'second'"):
        flow.sink("second", us.Console(), name="second")
    assert flow.sink("second", us.Console()).name == "second_2"


def test_a_refused_part_leaves_no_trace() -> None:
    flow = us.Flow("f")
    with pytest.raises(us.FlowError):
        flow.source("s", us.Push("src string"), time="ts")
    assert not flow.sources
    flow.source("s", PACKETS, time="ts")


def test_a_function_must_take_its_inputs() -> None:
    flow = us.Flow("f")
    source = flow.source("s", PACKETS, time="ts")
    with pytest.raises(us.FlowError, match=r"fragment 'a' reads 1 inputs \(s\)"):
        flow.fragment(source, time="ts")(_named("a", 2))


def test_an_input_of_another_flow_is_refused() -> None:
    stranger = us.Flow("other").source("s", PACKETS, time="ts")
    with pytest.raises(us.FlowError, match="'s' belongs to another flow"):
        us.Flow("f").fragment(stranger, time="ts")(same)


def test_a_part_that_a_flow_lacks_is_named() -> None:
    flow = us.Flow("f")
    with pytest.raises(us.FlowError, match="no source"):
        flow.validate()
    flow.source("s", PACKETS, time="ts")
    flow.fragment("t", time="ts")(same)
    with pytest.raises(us.FlowError, match="fragment 'same' reads 't', which flow 'f' does not have"):
        flow.validate()
    flow.source("t", PACKETS, time="ts")
    with pytest.raises(us.FlowError, match="no sink"):
        flow.validate()
    flow.sink("same", us.Console())
    with pytest.raises(us.FlowError, match="source 's' is read by no fragment"):
        flow.validate()


def test_a_sink_needs_a_fragment_that_exists() -> None:
    flow = us.Flow("f")
    source = flow.source("s", PACKETS, time="ts")
    flow.fragment(source, time="ts")(same)
    flow.sink("nowhere", us.Console())
    with pytest.raises(us.FlowError, match="reads 'nowhere', which is no fragment"):
        flow.validate()


@pytest.mark.parametrize("bucket", ["0 ms", "1500 us", "2 h", "-5 ms", "1", "x ms", "0.0001 ms"])
def test_a_bucket_is_a_whole_number_of_milliseconds(bucket: str) -> None:
    with pytest.raises(us.FlowError, match="flow 'f'"):
        us.Flow("f", bucket=bucket)


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("100 ms", 100_000),
        ("1.5s", 1_500_000),
        ("2 minutes", 120_000_000),
        ("7 us", 7),
        ("1 Day", 86_400_000_000),
    ],
)
def test_durations_are_read_and_written(text: str, time_us: int) -> None:
    assert duration_us(text, "here") == time_us
    assert duration_us(duration_text(time_us), "here") == time_us


def flow_with_sinks(*kinds: us.SinkKind) -> us.Flow:
    flow = us.Flow("f")
    source = flow.source("s", PACKETS, time="ts")
    fragment = flow.fragment(source, time="ts")(same)
    for kind in kinds:
        flow.sink(fragment, kind)
    return flow


@pytest.mark.parametrize(
    "second", ["out", "out/", "./out", "deep/../out", "link", "link/deeper", "out/deeper", "."]
)
@pytest.mark.parametrize("kind", [us.Parquet, us.JsonLines])
def test_two_sinks_cannot_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, kind: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to("out")
    flow = flow_with_sinks(us.Parquet("out"))
    with pytest.raises(
        us.FlowError, match=r"sink 'same_2' writes to .*, and sink 'same' to out: .*side by side"
    ):
        flow.sink("same", kind(second))
    assert list(flow.sinks) == ["same"]


def test_sinks_side_by_side_and_without_folders_are_no_trouble() -> None:
    flow = flow_with_sinks(
        us.Parquet("out"), us.Parquet("out2"), us.Console(), us.Console(), us.JsonLines("a/out")
    )
    assert len(flow.sinks) == 5


def test_kinds_of_ones_own_are_checked_too() -> None:
    class Nothing(us.SourceKind):
        def open(self, source: Any, position: Any) -> None:
            return None

    with pytest.raises(us.FlowError, match="Nothing has no `schema`"):
        us.Flow("f").source("s", Nothing(), time="ts")
    with pytest.raises(us.FlowError, match="expected a kind of sink, such as Parquet"):
        flow_with_sinks("out")  # type: ignore[arg-type]


def test_explain_names_every_part() -> None:
    text = small_flow().explain()
    parts = [
        "flow small",
        "50 ms",
        "source packets",
        "src string, ts timestamp",
        "late rows dropped",
        "fragment second  <- first, packets",
        "window.end",
        "partition src",
        "sink second",
        "Parquet files in out",
    ]
    for part in parts:
        assert part in text


def test_policies_are_found_by_name() -> None:
    assert policy_named("none").replicas == 1
    assert policy_named("pair", silence_ms=500).silence_ms == 500
    assert policy_named("pair").replicas == 2
    assert policy_named("pair", replicas=3).replicas == 3
    with pytest.raises(us.FlowError, match=r"no policy 'magic'\. Known policies: none, pair"):
        policy_named("magic")
    with pytest.raises(us.FlowError, match=r"no parameter 'speed'\. It has: silence_ms"):
        policy_named("pair", speed=3)
    with pytest.raises(us.FlowError, match="at least 500"):
        policy_named("pair", silence_ms=1)
    with pytest.raises(us.FlowError, match="between 2 and 9"):
        policy_named("pair", replicas=1)
    with pytest.raises(us.FlowError, match="'none' has no parameter 'replicas'"):
        policy_named("none", replicas=2)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_policy_is_stored_with_all_its_parameters(name: str) -> None:
    policy = policy_named(name, silence_ms=700)
    assert Policy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


def test_kinds_and_writers_check_their_parameters() -> None:
    with pytest.raises(us.FlowError, match="rows_per_s"):
        us.Generator("ts timestamp", lambda seed, first, count: {}, rows_per_s=0)
    with pytest.raises(us.FlowError, match="format 'xml' is not one of jsonl, csv, parquet"):
        us.Files("in", "ts timestamp", format="xml")
    with pytest.raises(us.FlowError, match="csv file cannot hold field 'a'"):
        us.Files("in", "ts timestamp, a array<int>", format="csv")
    with pytest.raises(us.FlowError, match="Callback"):
        us.Callback("print")  # type: ignore[arg-type]
