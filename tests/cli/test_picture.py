"""The lines and figures that show a run, from its gateway's status, ZooKeeper and the machine."""

from __future__ import annotations

from typing import Any

from understudy.cli.picture import figures, legend, node_lines

STATUS: dict[str, Any] = {
    "at_us": 10_000_000,
    "epoch": 4,
    "seats": {
        "sessions+stats/0:0": {"node": "node-1.1", "status": "DEAD", "epoch": 1},
        "sessions+stats/0:1": {"node": "node-2.1", "status": "ACTIVE", "epoch": 1},
    },
    "members": ["node-3.1", "node-2.1"],
    "senders": {"sessions+stats/0": 1},
    "nodes": {
        "node-1.1": {"rows_in": 5, "last_group_ms": 9.0, "last_group_buckets": 1, "queued_buckets": 3},
        "node-2.1": {"rows_in": 900, "last_group_ms": 120.4, "last_group_buckets": 3, "queued_buckets": 0},
    },
    "rows_out": 50,
    "latency_ms": 340.0,
    "last_output_s": 0.4,
    "late": {"a": 1, "b": 2},
    "buffered_buckets": 7,
    "buffered_bytes": 2**20,
}


def test_seats_come_first_then_standbys_then_what_is_still_starting() -> None:
    lines = node_lines(STATUS, {"node-1": True, "node-2": True, "node-3": True})
    drawn = [(line.node, line.place, line.state, line.sends) for line in lines]
    assert drawn == [
        ("node-1.1", "primary", "DEAD", False),
        ("node-2.1", "secondary", "ACTIVE", True),
        ("node-3.1", "-", "STDBY (ready)", False),
        ("node-1", "-", "starting Spark", False),
    ]


def test_further_replicas_of_a_whole_flow_go_by_their_number() -> None:
    third = {"node": "node-3.1", "status": "STDBY", "epoch": 4}
    status = {**STATUS, "seats": {**STATUS["seats"], "sessions+stats/0:2": third}, "drained": ["node-2.1"]}
    drawn = [(line.node, line.place, line.state) for line in node_lines(status, {})]
    assert drawn == [
        ("node-1.1", "primary", "DEAD"),
        ("node-2.1", "secondary", "draining"),
        ("node-3.1", "replica 2", "STDBY"),
    ]
    assert not any(line.holds_copies for line in node_lines(status, {}))


def test_before_the_first_view_every_node_is_starting_or_not_running() -> None:
    lines = node_lines({}, {"node-1": True, "node-2": False})
    assert [(line.node, line.state) for line in lines] == [
        ("node-1", "starting Spark"),
        ("node-2", "not running"),
    ]


def test_a_dead_node_shows_none_of_its_last_figures() -> None:
    dead, alive, _standby = node_lines(STATUS, {})
    assert dead.group == ""
    assert alive.group == "3 buckets in 120 ms"


def test_rates_are_counted_between_two_moments() -> None:
    earlier = {**STATUS, "at_us": 8_000_000, "rows_out": 30, "nodes": {"node-2.1": {"rows_in": 500}}}
    now = figures(earlier, STATUS)
    assert now.rows_out_per_s == 10
    assert now.rows_in_per_s == 200
    assert now.late == 3


def test_a_gateway_that_began_again_has_no_rate_yet() -> None:
    earlier = {**STATUS, "at_us": 8_000_000, "rows_out": 500}
    assert figures(earlier, STATUS).rows_out_per_s is None


def test_without_output_there_is_no_latency() -> None:
    assert "no output yet" in figures({}, {**STATUS, "last_output_s": None}).sentence


def test_output_from_long_ago_has_no_latency_and_is_output_all_the_same() -> None:
    shown = figures({}, {**STATUS, "latency_ms": None, "last_output_s": 200.0})
    assert shown.latency == "-"
    assert "latency -; last output 200.0 s ago" in shown.sentence


def seat(node: str, status: str = "ACTIVE") -> dict[str, Any]:
    return {"node": node, "status": status, "epoch": 1}


PARTITIONED: dict[str, Any] = {
    **STATUS,
    "seats": {
        "sessions/0:0": seat("node-1.1"),
        "sessions/0:1": seat("node-2.1"),
        "sessions/1:0": seat("node-2.1"),
        "sessions/1:1": seat("node-3.1", "DEAD"),
        "stats/0:0": seat("node-1.1"),
        "stats/0:1": seat("node-2.1", "STDBY"),
    },
    "members": ["node-1.1", "node-2.1", "node-4.1", "node-5.1"],
    "drained": ["node-5.1"],
    "senders": {"stats/0": 0},
}


def test_of_a_partitioned_flow_each_node_shows_the_copies_that_it_holds() -> None:
    lines = node_lines(PARTITIONED, {f"node-{at}": True for at in range(1, 6)})
    assert [(line.node, line.place, line.state) for line in lines] == [
        ("node-1.1", "sessions 0, stats 0>", "ACTIVE"),
        ("node-2.1", "sessions 0* 1, stats 0*~", "1 of 3 STDBY"),
        ("node-3.1", "sessions 1*!", "DEAD"),
        ("node-4.1", "-", "STDBY (ready)"),
        ("node-5.1", "-", "drained"),
        ("node-3", "-", "starting Spark"),
    ]
    assert lines[1].group == "3 buckets in 120 ms"


def test_a_node_that_is_being_emptied_or_lost_a_seat_says_so() -> None:
    draining = {**PARTITIONED, "drained": ["node-1.1"], "members": ["node-1.1", "node-2.1", "node-3.1"]}
    states = {line.node: line.state for line in node_lines(draining, {})}
    assert states["node-1.1"] == "draining"
    assert states["node-3.1"] == "STDBY (ready)", "it is there, although its copy was declared dead"


def test_marks_tell_replicas_apart_and_are_explained() -> None:
    assert legend(STATUS) is None, "a role needs no marks"
    assert legend({}) is None
    assert legend(PARTITIONED) == "* secondary, > sends to a sink, ~ catching up, ! dead"
    more = {**PARTITIONED, "seats": {**PARTITIONED["seats"], "stats/0:2": seat("node-4.1", "STDBY")}}
    places = {line.node: line.place for line in node_lines(more, {})}
    assert places["node-4.1"] == "stats 0*2~"
    assert legend(more) == "* secondary, *2 replica 2, > sends to a sink, ~ catching up, ! dead"


def test_a_gateway_that_was_started_again_has_not_heard_of_the_nodes_and_counts_anew() -> None:
    again = {**STATUS, "began_again": True, "seats": {}, "members": []}
    assert [line.state for line in node_lines(again, {"node-1": True, "node-2": False})] == [
        "not heard of yet",
        "not running",
    ]
    seated = {**STATUS, "began_again": True}
    assert node_lines(seated, {"node-1": True})[-1].state == "starting Spark"
    assert figures({}, seated).sentence.endswith("MB; counted since the gateway was started again")


def test_sources_that_have_to_wait_are_named() -> None:
    assert "back pressure" not in figures({}, STATUS).sentence
    drawn = figures({}, {**STATUS, "waiting_for_room": ["packets", "rules"]}).sentence
    assert drawn.endswith("buffered 1.0 MB; back pressure on packets, rules")


def test_figures_of_a_gateway_that_is_away_say_how_old_they_are() -> None:
    earlier = {**STATUS, "at_us": STATUS["at_us"] - 1_000_000}
    old = figures(earlier, STATUS, 12.0)
    assert (old.rows_in_per_s, old.rows_out_per_s) == (None, None)
    assert old.last_output_s == STATUS["last_output_s"] + 12.0
    assert old.sentence.endswith("; the gateway has not answered for 12 s")


def test_a_process_that_was_ready_and_is_not_heard_of_does_not_start_spark() -> None:
    lines = node_lines({}, {"node-1": True, "node-2": True, "node-3": False}, {"node-1", "node-3"})
    assert [(line.node, line.state) for line in lines] == [
        ("node-1", "not heard of"),
        ("node-2", "starting Spark"),
        ("node-3", "not running"),
    ]
