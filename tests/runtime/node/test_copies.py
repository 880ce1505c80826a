"""The copies of a node in complete runs: seats are taken, states move, nodes are lost, and no row is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_engine import SmallEngine, failing
from small_run import Run

from understudy.core.errors import Fenced
from understudy.core.replica.events import Progress
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.events import CopyMoveFailed, Drain, MoveCopy
from understudy.flow.policy import policy_named
from understudy.runtime.node import copies as module
from understudy.runtime.node.mover import PURPOSE
from understudy.runtime.node.pace import BUCKETS, Pace
from understudy.runtime.transport.endpoint import Refused, connect

Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    runs: list[Run] = []

    def made(policy: str = "flux", nodes: int = 2, **parameters: int) -> Run:
        runs.append(Run(tmp_path, policy_named(policy, **parameters), nodes, partitions=2))
        return runs[-1]

    yield made
    for run in runs:
        for node in run.nodes.values():
            node.end(in_order=False)
        run.gateway.end()


def assert_sound(run: Run, through: int) -> None:
    """All rows of the buckets from 1 on are out once and in order, and the history says so too."""
    run.await_delivered(through)
    keys = [key for number in range(1, through + 1) if number % 3 for key in (2 * number, 2 * number + 1)]
    assert run.output("sums")["k"] == keys
    assert run.output("sums")["seen"] == list(range(len(keys))), "its state was never lost or used twice"
    assert run.output("pairs")["k"] == keys
    verdict = run.end()
    assert verdict.findings == []
    assert verdict.clean
    assert (verdict.sealed, verdict.delivered) == (len(keys) // 2, len(keys))
    run.nodes.clear()


@pytest.mark.parametrize(
    ("policy", "nodes", "parameters"),
    [
        *(
            ("none", 1, {}),
            ("pair", 2, {}),
            ("pair", 3, {"replicas": 3}),
            ("flux", 2, {}),
            ("cluster", 2, {}),
        ),
        ("passive", 2, {"ship_ms": 50}),
    ],
    ids=["none", "pair", "three", "flux", "cluster", "passive"],
)
def test_every_row_comes_out_once_and_in_order_under_every_policy(
    make: Make, policy: str, nodes: int, parameters: dict[str, int]
) -> None:
    run = make(policy, nodes, **parameters)
    run.push(range(1, 40))
    assert_sound(run, 39)


@pytest.mark.parametrize(("policy", "nodes"), [("pair", 2), ("flux", 2), ("flux", 3)])
def test_one_node_after_the_other_is_lost_and_newcomers_go_on_with_what_they_were_given(
    make: Make, policy: str, nodes: int
) -> None:
    run = make(policy, nodes)
    through = 0
    for lost in range(1, nodes + 1):
        run.push(range(through + 1, through + 21))
        run.add(f"node-{nodes + lost}")
        run.lose(f"node-{lost}")
        run.push(range(through + 21, through + 31))
        run.await_whole()
        through += 30
    run.push(range(through + 1, through + 11))
    assert {seat.node for seat in run.view.seats.values()} == {f"node-{nodes + n + 1}" for n in range(nodes)}
    assert_sound(run, through + 10)


def test_a_copy_that_is_moved_leaves_nothing_on_its_node_and_the_others_there_go_on(make: Make) -> None:
    run = make()
    run.push(range(1, 10))
    run.add("node-3")
    moved = Copy(Partition("pairs", 0), 0)
    before, home = run.engine_of(moved), run.nodes[run.view.seat(moved).node]
    run.decide(MoveCopy(moved, "node-3"))
    run.until(lambda: run.view.seat(moved).node == "node-3")
    run.await_whole()
    run.until(lambda: not list(home.folder.glob("pairs-0-0-*")))
    assert before.closed.is_set()
    assert len(run.view.copies_on(home.name)) == 2
    run.push(range(10, 20))
    assert_sound(run, 19)


def test_a_node_is_drained_while_rows_come(make: Make) -> None:
    run = make()
    run.push(range(1, 10))
    run.add("node-3")
    run.decide(Drain("node-1"))
    for number in range(10, 40):
        run.push([number])
    run.until(lambda: not run.view.copies_on("node-1"))
    run.await_whole()
    assert run.declined == []
    assert_sound(run, 39)


def test_a_standby_whose_engine_does_not_start_costs_its_seat_and_nothing_else(make: Make) -> None:
    """It is tried three times; then another node is given the seat."""
    run = make("pair")
    run.push(range(1, 10))
    third = run.add("node-3")
    third.engines.prepare = lambda engine: engine.trouble.update(start=failing(RuntimeError("no memory")))
    run.lose("node-1")
    run.until(lambda: len(third.engines.made) == 3)
    run.add("node-4")
    run.await_whole()
    assert {seat.node for seat in run.view.seats.values()} == {"node-2", "node-4"}
    assert third.failures == []
    run.push(range(10, 20))
    assert_sound(run, 19)


def test_a_lender_that_cannot_take_a_snapshot_goes_on_and_is_asked_again(make: Make) -> None:
    run = make("pair")
    run.push(range(1, 10))
    (segment,) = {copy.partition for copy in run.view.seats}
    engine = run.engine_of(Copy(segment, 1))
    refused = threading.Event()

    def full() -> None:
        if not refused.is_set():
            refused.set()
            raise OSError("No space left on device")

    engine.trouble["snapshot"] = full
    run.add("node-3")
    run.lose("node-1")
    run.until(refused.is_set)
    run.await_whole()
    run.push(range(10, 20))
    assert_sound(run, 19)


class Sleeper(Pace):
    """Rests for an hour after every group but the first."""

    def rest_s(self, began_s: float, took_s: float, through: int) -> float:
        return 3_600.0 if super().rest_s(began_s, took_s, through) >= 0 and through > 3 else 0.0


def test_a_resting_engine_is_woken_for_a_standby(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Pace", Sleeper)
    run = make("pair")
    run.push([1, 2])
    run.await_delivered(2)
    run.push([4])
    run.await_delivered(4)
    run.add("node-3")
    run.lose("node-1")
    run.await_whole()


class RestsUntilALoss(Pace):
    """Rests for an hour after every group but the first, until a process is lost."""

    lost = False

    def hurry(self, now_s: float) -> None:
        self.lost = True

    def rest_s(self, began_s: float, took_s: float, through: int) -> float:
        return 3_600.0 if through > 3 and not self.lost else 0.0


def test_no_engine_rests_after_a_node_was_lost(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Pace", RestsUntilALoss)
    run = make("flux")
    for number in (1, 4, 5):
        run.push([number])
        run.await_delivered(min(number, 4))
    run.lose("node-1")
    run.await_delivered(5)


def test_a_standby_that_does_not_know_where_its_lender_is_says_so_and_gives_up(make: Make) -> None:
    run = make("pair")
    third = run.add("node-3")
    reports: list[object] = []
    third.copies._address_of = lambda _node: None
    third.copies._tell = reports.append
    run.lose("node-1")
    run.until(lambda: bool(reports))
    (failed,) = reports
    assert isinstance(failed, CopyMoveFailed)
    assert failed.why == "the address of node-2 is not known"


def test_a_node_of_a_flow_in_one_piece_builds_its_queries_before_it_is_needed(make: Make) -> None:
    run = make("pair")
    third = run.add("node-3")
    third.copies.prepare()
    ((_, spare),) = third.engines.made
    run.lose("node-1")
    run.await_whole()
    assert [engine for _, engine in third.engines.made] == [spare], "it was used, and no other was built"
    assert spare.started_from is not None


# --- who may have a state -----------------------------------------------------------------------------------


def asks_for_a_state(run: Run, **facts: Any) -> None:
    address = run.nodes["node-2"].endpoint.address
    (segment,) = {copy.partition for copy in run.view.seats}
    hello = {"node": "node-1", "standby": f"{segment}:0", "epoch": 1, "lender": f"{segment}:1", "version": 1}

    def ignore(_: object) -> None:
        pass

    connect(address, PURPOSE, {**hello, **facts}, on_open=ignore, on_frame=ignore, on_closed=ignore)


@pytest.mark.parametrize(
    ("facts", "raised", "why"),
    [
        ({"node": "node-9"}, Fenced, "node-9 does not hold"),
        ({"epoch": 0}, Fenced, "since epoch 0"),
        ({"epoch": 99}, ConnectionError, "the view that seats this standby has not arrived here"),
        ({"version": 77}, ConnectionError, "snapshot 77 of .* is not kept here"),
        ({"lender": "elsewhere/0:1"}, ConnectionError, "is not kept here"),
        ({"standby": "nonsense"}, Refused, "must name itself and the snapshot it wants"),
    ],
)
def test_a_state_is_given_only_to_the_standby_it_is_kept_for(
    make: Make, facts: dict[str, Any], raised: type[Exception], why: str
) -> None:
    run = make("pair")
    with pytest.raises(raised, match=why):
        asks_for_a_state(run, **facts)


# --- how a node is doing ------------------------------------------------------------------------------------


def test_a_node_tells_the_gateway_how_its_copies_are_doing(make: Make) -> None:
    run = make()
    run.push(range(1, 10))
    run.await_delivered(9)
    stats = run.gateway.stats_of

    def reported() -> bool:
        for node in run.nodes.values():
            node.copies.tell_stats()
        return all(facts["rows_in"] >= 18 for facts in stats.values()) and stats.keys() == run.nodes.keys()

    run.until(reported)
    assert sorted(stats["node-1"]["copies"]) == sorted(map(str, run.view.copies_on("node-1")))
    assert stats["node-1"]["rows_out"] == sum(c["rows_out"] for c in stats["node-1"]["copies"].values())
    assert stats["node-1"]["queued_buckets"] == 0


def test_a_newcomer_that_works_on_a_long_group_says_so(make: Make) -> None:
    run = make("pair")
    copies = run.nodes["node-1"].copies
    (copy,) = run.view.copies_on("node-1")
    signs: list[object] = []
    run.until(lambda: copy in copies._copies and copies._copies[copy]._engine is not None)
    machine, hosted = copies.host.residents[copy].machine, copies._copies[copy]
    handle = machine.handle

    def heard(event: object) -> object:
        if isinstance(event, Progress):
            signs.append(event)
        return handle(event)

    machine.handle = heard  # type: ignore[assignment, method-assign]

    def look() -> None:
        # In one step of the actor: any event that the machine takes ends its catching up.
        machine.catching_up = True
        copies._tell_stats()
        machine.catching_up = False

    def signs_after_a_look() -> int:
        copies._actor.ask(look)
        copies._actor.ask(lambda: None)
        return len(signs)

    assert hosted._engine is not None
    signs_after_a_look()
    signs.clear()
    hosted._engine.steps += 1  # type: ignore[misc]
    assert signs_after_a_look() == 1
    assert signs_after_a_look() == 1


def test_an_engine_that_takes_buckets_one_by_one_gets_short_groups(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    init, advance = SmallEngine.__init__, SmallEngine.advance

    def stepwise(engine: SmallEngine, *args: Any) -> None:
        init(engine, *args)
        engine.stepwise = True

    def slow(engine: SmallEngine, inputs: Any, *args: Any) -> None:
        time.sleep(BUCKETS.group_s / 20 * sum(table.num_rows for table in inputs.values()))
        advance(engine, inputs, *args)

    monkeypatch.setattr(SmallEngine, "__init__", stepwise)
    monkeypatch.setattr(SmallEngine, "advance", slow)
    run = make("none")
    run.push(range(1, 30))
    run.await_delivered(29)
    limits = {
        resident.machine.below.manages.buckets_max
        for node in run.nodes.values()
        for resident in node.copies.host.residents.values()
        if resident.machine.below is not None
    }
    assert all(limit is not None and 1 <= limit <= 20 for limit in limits)
