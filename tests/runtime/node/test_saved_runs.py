"""Complete runs that save their state: all copies of a partition are lost, and no row is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_engine import failing
from small_run import Run

from understudy.cli.stored import saved_states, savers_in
from understudy.core.shape.partition import Copy
from understudy.flow.policy import policy_named
from understudy.runtime.transport.wire import Frame

Make = Callable[..., Run]
NEVER_MS = 3_600_000


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    runs: list[Run] = []

    def made(policy: str, nodes: int, snapshot_every_ms: int) -> Run:
        chosen = policy_named(policy)
        runs.append(Run(tmp_path, chosen, nodes, partitions=2, snapshot_every_ms=snapshot_every_ms))
        return runs[-1]

    yield made
    for run in runs:
        for node in run.nodes.values():
            node.end(in_order=False)
        run.gateway.end()


def told(run: Run) -> dict[str, dict[str, Any]]:
    """What the copies that save told the gateway of it."""
    return savers_in(status(run))


def status(run: Run) -> dict[str, Any]:
    """What the gateway knows once its nodes have told how they are doing."""
    for node in run.nodes.values():
        node.copies.tell_stats()
    return {"nodes": dict(run.gateway.stats_of), **run.gateway.boundary.status()}


def savers_of(run: Run) -> list[Copy]:
    """The copies that say that they save."""
    copies = [each for facts in status(run)["nodes"].values() for each in facts["copies"].items()]
    return [Copy.of(name) for name, stats in copies if "saved_through" in stats]


def await_saved(run: Run) -> None:
    def saved() -> bool:
        states = saved_states(status(run)).values()
        return bool(states) and all(state.is_all and state.through is not None for state in states)

    run.until(saved)


def assert_all_rows_are_out_once_and_in_order(run: Run, through: int) -> None:
    run.await_delivered(through)
    keys = [key for number in range(1, through + 1) if number % 3 for key in (2 * number, 2 * number + 1)]
    assert run.output("sums")["k"] == keys
    assert run.output("sums")["seen"] == list(range(len(keys))), "its state was never lost or used twice"
    assert run.output("pairs")["k"] == keys


@pytest.mark.parametrize(("policy", "nodes"), [("none", 1), ("pair", 2), ("flux", 2)])
def test_a_run_that_loses_all_of_its_nodes_goes_on_from_its_saved_state_and_its_log(
    make: Make, policy: str, nodes: int
) -> None:
    run = make(policy, nodes, 100)
    run.push(range(1, 20))
    run.await_delivered(19)
    await_saved(run)
    run.push(range(20, 30))
    run.await_delivered(29)
    for number in range(1, nodes + 1):
        run.lose(f"node-{number}")
    run.push(range(30, 35))
    for number in range(1, nodes + 1):
        run.add(f"node-{nodes + number}")
    run.push(range(35, 50))
    assert_all_rows_are_out_once_and_in_order(run, 49)
    assert all(seats.restored for seats in run.view.partitions.values())


def test_the_log_lets_go_of_what_every_saved_state_holds(make: Make) -> None:
    run = make("none", 1, 50)
    for number in range(1, 30):
        run.push([number])
        run.await_delivered(number)
    run.until(lambda: run.log.forgotten >= 20)
    assert run.log.forgotten <= run.log.trimmed


def test_a_node_that_is_told_to_saves_at_once_what_its_copies_hold(make: Make) -> None:
    run = make("pair", 2, NEVER_MS)
    run.push(range(1, 20))
    run.await_delivered(19)
    run.until(lambda: bool(told(run)))
    assert all(stats["saved_through"] is None for stats in told(run).values())
    run.gateway.boundary.have_all_saved()
    await_saved(run)


def test_of_a_node_that_is_lost_the_gateway_remembers_what_it_saved(make: Make) -> None:
    run = make("none", 1, NEVER_MS)
    run.push(range(1, 20))
    run.await_delivered(19)
    run.gateway.boundary.have_all_saved()
    await_saved(run)
    before = {partition: state.through for partition, state in saved_states(status(run)).items()}
    run.lose("node-1")
    run.push(range(20, 25))
    run.until(lambda: bool(status(run)["down"]))
    states = saved_states(status(run))
    assert {partition: state.through for partition, state in states.items()} == before
    assert not any(state.is_all for state in states.values())


def test_a_copy_that_leaves_the_saving_to_another_one_has_no_save_of_its_own(make: Make) -> None:
    """It may take the saving over again, an hour later."""
    run = make("pair", 2, NEVER_MS)
    run.push(range(1, 20))
    run.await_delivered(19)
    run.lose("node-1")
    run.until(lambda: {copy.replica for copy in savers_of(run)} == {1})
    run.gateway.boundary.have_all_saved()
    await_saved(run)
    partitions = [copy.partition for copy in savers_of(run)]
    saving = run.nodes["node-2"].copies._saving
    assert saving is not None
    assert all(saving.stats(each).through is not None for each in partitions)
    run.add("node-3")
    run.until(lambda: {copy.replica for copy in savers_of(run)} == {0})
    run.until(lambda: all(saving.stats(each).through is None for each in partitions))


def test_only_the_gateway_has_a_node_save(make: Make) -> None:
    run = make("none", 1, NEVER_MS)
    run.push([1])
    run.await_delivered(1)
    copies = run.nodes["node-1"].copies
    asked: list[str] = []
    copies._save_now = lambda: asked.append("asked")  # type: ignore[method-assign]
    copies.frame_arrived("node-2", Frame({"kind": "save"}))
    copies.frame_arrived("gateway", Frame({"kind": "other"}))
    assert asked == []
    copies.frame_arrived("gateway", Frame({"kind": "save"}))
    assert asked == ["asked"]


def test_a_copy_that_cannot_take_a_snapshot_works_on_and_saves_the_next_time(make: Make) -> None:
    run = make("none", 1, NEVER_MS)
    run.push(range(1, 10))
    run.await_delivered(9)
    engines = [engine for _, engine in run.nodes["node-1"].engines.made]
    for engine in engines:
        engine.trouble["snapshot"] = failing(OSError("No space left on device"))
    run.gateway.boundary.have_all_saved()
    run.push(range(10, 20))
    run.await_delivered(19)
    assert all(stats["saved_through"] is None for stats in told(run).values())
    for engine in engines:
        engine.trouble.clear()
    run.gateway.boundary.have_all_saved()
    await_saved(run)


def test_a_run_that_saves_nothing_tells_nothing_of_it(make: Make) -> None:
    run = make("none", 1, 0)
    run.push([1])
    run.await_delivered(1)
    run.until(lambda: bool(run.gateway.stats_of) or bool(told(run)))
    assert told(run) == {}
