"""A gateway process and the nodes of two versions, through an upgrade: no row is lost or comes twice, also if
the gateway is killed at any of its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_upgrade import UpgradedRun

from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.process import finished_file

pytestmark = pytest.mark.zookeeper

Make = Callable[[str], UpgradedRun]


@pytest.fixture
def make(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Make]:
    made: list[UpgradedRun] = []

    def run(policy: str) -> UpgradedRun:
        made.append(UpgradedRun(tmp_path / "run", zookeeper.address, policy))
        return made[-1]

    yield run
    for each in made:
        each.end()


def assert_it_ends_well(run: UpgradedRun, *, by: list[int]) -> None:
    """The source ends, and so does the gateway; these versions delivered, one after the other."""
    run.await_delivered()
    run.close_source()
    assert run.await_the_end() == 0
    assert finished_file(run.base.path).exists()
    run.end()
    run.assert_all_rows_are_out_once_and_in_order()
    assert run.delivered_by() == by
    run.assert_clean()


@pytest.mark.parametrize("policy", ["none", "flux"])
def test_a_candidate_takes_over_while_rows_flow(make: Make, policy: str) -> None:
    run = make(policy)
    run.push(range(1, 30))
    run.await_delivered()
    run.wants_candidate()
    run.push(range(30, 40))
    run.start_nodes(run.next)
    run.push(range(40, 50))
    run.until(run.has_caught_up)
    run.push(range(50, 60))
    run.wants_candidate(live=True)
    run.push(range(60, 70))
    run.until(run.is_live)
    run.push(range(70, 80))
    run.commits()
    run.takes_back()
    run.until(lambda: run.is_alone(2))
    run.end_nodes(1)
    run.push(range(80, 90))
    assert_it_ends_well(run, by=[1, 2])


def test_a_candidate_is_taken_back_and_the_next_one_takes_over(make: Make) -> None:
    run = make("none")
    run.push(range(1, 20))
    run.wants_candidate()
    run.start_nodes(run.next)
    run.until(run.has_caught_up)
    run.wants_candidate(live=True)
    run.until(run.is_live)
    run.push(range(20, 30))
    run.await_delivered()
    run.takes_back()
    run.until(lambda: run.is_alone(1))
    run.end_nodes(2)
    run.push(range(30, 40))
    run.await_delivered()
    assert run.delivered_by() == [1, 2, 1]
    run.tried += 1
    run.wants_candidate()
    run.start_nodes(run.next)
    run.until(run.has_caught_up)
    run.wants_candidate(live=True)
    run.until(run.is_live)
    run.push(range(40, 50))
    assert_it_ends_well(run, by=[1, 2, 1, 3])


PHASES = ("begun", "open", "turning", "live", "committed")


@pytest.mark.parametrize("phase", PHASES)
def test_a_gateway_that_is_killed_begins_again_where_the_upgrade_was(make: Make, phase: str) -> None:
    run = make("none")

    def killed_when(now: str) -> None:
        if now == phase:
            run.kill_gateway()
            run.start_gateway()

    run.push(range(1, 20))
    run.await_delivered()
    run.wants_candidate()
    killed_when("begun")
    run.start_nodes(run.next)
    run.push(range(20, 30))
    run.until(run.has_caught_up)
    killed_when("open")
    run.push(range(30, 40))
    run.until(run.has_caught_up)
    run.wants_candidate(live=True)
    killed_when("turning")
    run.push(range(40, 50))
    run.until(run.is_live)
    killed_when("live")
    run.push(range(50, 60))
    run.until(run.is_live)
    run.commits()
    killed_when("committed")
    run.takes_back()
    run.until(lambda: run.is_alone(2))
    run.end_nodes(1)
    run.push(range(60, 70))
    assert_it_ends_well(run, by=[1, 2])


@pytest.mark.parametrize("live", [False, True])
def test_a_gateway_that_is_killed_while_a_candidate_is_taken_back_goes_on_with_the_base(
    make: Make, live: bool
) -> None:
    run = make("none")
    run.push(range(1, 20))
    run.wants_candidate()
    run.start_nodes(run.next)
    run.until(run.has_caught_up)
    if live:
        run.wants_candidate(live=True)
        run.until(run.is_live)
    run.push(range(20, 30))
    run.await_delivered()
    run.takes_back()
    run.kill_gateway()
    run.start_gateway()
    run.until(lambda: run.is_alone(1))
    run.push(range(30, 40))
    assert_it_ends_well(run, by=[1, 2, 1] if live else [1])


@pytest.mark.parametrize("live", [False, True])
def test_a_run_that_is_finished_beside_a_candidate_is_finished_whichever_version_is_live(
    make: Make, live: bool
) -> None:
    run = make("none")
    run.push(range(1, 20))
    run.await_delivered()
    run.wants_candidate()
    run.start_nodes(run.next)
    run.until(run.has_caught_up)
    if live:
        run.wants_candidate(live=True)
        run.until(run.is_live)
    run.push(range(20, 30))
    assert_it_ends_well(run, by=[1, 2] if live else [1])


def test_a_gateway_goes_on_with_a_live_candidate_when_the_nodes_of_the_base_are_gone(make: Make) -> None:
    run = make("none")
    run.push(range(1, 20))
    run.await_delivered()
    run.wants_candidate()
    run.start_nodes(run.next)
    run.until(run.has_caught_up)
    run.wants_candidate(live=True)
    run.until(run.is_live)
    run.end_nodes(1)
    run.kill_gateway()
    run.start_gateway()
    run.push(range(20, 30))
    assert_it_ends_well(run, by=[1, 2])
