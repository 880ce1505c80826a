"""What a gateway's status says of a candidate, from its beginning to its end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from boundary_kit import WAIT_S
from versions_kit import Bench, Gateways, Node

from understudy.core.view.view import Seat, Seats, Status, View
from understudy.runtime.gateway.boundary import Boundary
from understudy.runtime.mesh import STATS
from understudy.runtime.transport.wire import Frame
from upgrade_kit import facts as small_facts


def beside(gateways: Gateways) -> tuple[Bench, Node]:
    gateway = gateways.start()
    one = gateway.opens(1)
    one.attaches()
    gateway.wants(candidate=gateways.disk.candidate())
    gateway.until(lambda: 2 in gateway.begun.editions)
    return gateway, one


def facts(gateway: Bench, *names: str) -> tuple[Any, ...]:
    found = gateway.beside
    return tuple(found[name] for name in names)


def seen_with(gateway: Bench, node: Node, status: Status, lost: str | None = None) -> None:
    """A later view of the candidate, in which the copies of one partition have this status."""
    changed = Seats(2, (Seat(node.name, 1, status),), lost)
    partitions = dict(node.view.partitions)
    first = min(partitions)
    gateway.shows(2, View(2, {**partitions, first: changed}))
    gateway.settle()


def test_a_candidate_that_has_no_view_yet_is_not_open(gateways: Gateways) -> None:
    gateway, _ = beside(gateways)
    gateway.candidate.members = ["n2"]
    assert gateway.beside == {
        "version": 2,
        "members": ["n2"],
        "failure": "",
        "trouble": "",
        "live": False,
        "takes": False,
        "open": False,
    }


def test_upgrades_without_a_gateway_are_tested_with_what_a_gateway_says(gateways: Gateways) -> None:
    gateway, _ = beside(gateways)
    assert gateway.beside.keys() == small_facts(open=False).keys()
    gateway.opens(2)
    assert gateway.beside.keys() == small_facts().keys()


def test_what_keeps_a_candidate_from_its_first_view_is_told(gateways: Gateways) -> None:
    gateway, _ = beside(gateways)
    gateway.candidate.failure = "the data of ZooKeeper is lost"
    assert facts(gateway, "trouble") == ("the data of ZooKeeper is lost",)
    gateway.begun.editions[2].trouble = "the store does not answer"
    assert facts(gateway, "trouble") == ("the store does not answer",)


def test_why_a_candidate_cannot_restore_its_states_is_told_until_it_has_them(gateways: Gateways) -> None:
    gateway, one = beside(gateways)
    waits = "both/0:0 waits for its saved state: the store does not answer"
    one.reports(copies={"both/0:0": {"begun": False, "saving_trouble": "the base's own trouble"}})
    two = gateway.opens(2)
    two.reports(copies={"one/0:0": {"begun": True, "saving_trouble": "the disk is full"}, "new/0:0": {}})
    assert facts(gateway, "trouble") == ("",), "it works, and what is not saved now is saved later"
    two.reports(copies={"both/0:0": {"begun": False, "saving_trouble": waits}})
    assert facts(gateway, "trouble") == (waits,)
    two.reports(copies={"both/0:0": {"begun": True, "saving_trouble": ""}})
    assert facts(gateway, "trouble") == ("",)


def test_an_open_candidate_tells_who_sits_where_and_whether_it_is_whole(gateways: Gateways) -> None:
    gateway, _ = beside(gateways)
    two = gateway.opens(2)
    assert facts(gateway, "open", "whole", "down") == (True, True, [])
    assert {seat["node"] for seat in gateway.beside["seats"].values()} == {"n2"}
    seen_with(gateway, two, Status.DEAD, "No copy is left.")
    assert facts(gateway, "open", "whole", "down") == (True, False, [str(min(two.view.partitions))])
    assert gateway.status()["down"] == [], "it is not the base's"


def test_a_candidate_that_restores_its_states_and_reads_the_log_is_behind_all_the_time(
    gateways: Gateways,
) -> None:
    """Its sinks begin where they are delivered, so nothing that it makes of earlier input shows there."""
    gateway, one = beside(gateways)
    gateway.seal(1, 2, 3, 4)
    for sink in ("first", "second"):
        one.puts_out(sink, 1, 2, 3, 4)
    two = gateway.opens(2)
    assert facts(gateway, "whole") == (True,)
    assert min(facts(gateway, "behind")[0].values()) > 4, "nothing was heard of its copies yet"
    two.attaches(1)
    assert facts(gateway, "behind") == ({"first": 3, "second": 3},)
    two.takes("fast", 4)
    assert facts(gateway, "behind") == ({"first": 0, "second": 3},), "one of them reads the other source, too"
    two.takes("slow", 3)
    assert facts(gateway, "behind") == ({"first": 0, "second": 1},)
    two.takes("slow", 4)
    assert facts(gateway, "behind") == ({"first": 0, "second": 0},)
    assert facts(gateway, "arrived") == facts(gateway, "arrived_beside")


def test_a_candidate_is_behind_by_what_was_delivered_and_has_not_come_from_it(gateways: Gateways) -> None:
    gateway, one = beside(gateways)
    two = gateway.opens(2)
    two.attaches()
    one.puts_out("first", 1, 2, 9)
    two.puts_out("first", 7)
    assert facts(gateway, "behind") == ({"first": 2, "second": 0},)
    two.puts_out("first", 12)
    assert facts(gateway, "behind") == ({"first": 0, "second": 0},)


def test_on_trial_it_is_told_how_far_the_output_of_both_has_come_although_nothing_was_delivered(
    gateways: Gateways,
) -> None:
    gateway, one = beside(gateways)
    two = gateway.opens(2)
    two.attaches()
    for node in (one, two):
        node.puts_out("first", 1)
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    assert facts(gateway, "live", "takes") == (True, True)
    one.puts_out("first", 8)
    two.puts_out("first", 5)
    assert facts(gateway, "behind") == ({"first": 0, "second": 0},)
    arrived, beside_it = facts(gateway, "arrived", "arrived_beside")
    assert (arrived["first"], beside_it["first"]) == (5, 8)


def test_a_candidate_is_live_when_every_sink_takes_it_and_takes_is_said_of_any(gateways: Gateways) -> None:
    gateway, one = beside(gateways)
    two = gateway.opens(2)
    two.attaches()
    assert facts(gateway, "live", "takes") == (False, False)
    gateway.slow.add("second")
    one.puts_out("second", 1)
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    assert facts(gateway, "live", "takes") == (False, True)
    gateway.ask(lambda: gateway.holds("second"))
    assert facts(gateway, "live", "takes") == (True, True)
    gateway.wants(candidate=gateways.disk.candidate())
    assert facts(gateway, "live", "takes") == (False, False)


@pytest.mark.parametrize("stays", [1, 2])
def test_what_the_nodes_of_a_version_have_told_goes_with_it(gateways: Gateways, stays: int) -> None:
    """Else every upgrade leaves something in each later status."""
    gateway, one = beside(gateways)
    two = gateway.opens(2)
    two.attaches()
    for node in (one, two):
        node.reports(groups=7)
    assert gateway.status()["nodes"] == {"n1": {"groups": 7}, "n2": {"groups": 7}}
    over = (two, one)[stays - 1].boundary
    gateway.wants(candidate=gateways.disk.candidate(live=stays == 2))
    gateway.wants(base=stays)
    assert gateway.status()["candidate"] is None
    gateway.ask(lambda: over.frame_arrived("late", Frame({"kind": STATS, "groups": 8})))
    assert gateway.status()["nodes"] == {f"n{stays}": {"groups": 7}}


def test_a_status_is_of_one_moment_also_when_the_run_goes_on_with_another_version_meanwhile(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = beside(gateways)
    gateway.opens(2).attaches()
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    honest = Boundary.status
    interrupted: list[Boundary] = []

    def interrupt(boundary: Boundary) -> dict[str, Any]:
        found = honest(boundary)
        if not interrupted:
            interrupted.append(boundary)
            gateway.wants(base=2)
        return found

    monkeypatch.setattr(Boundary, "status", interrupt)
    found: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: found.append(gateway.versions.status()))
    asking.start()
    asking.join(WAIT_S)
    (status,) = found
    assert status["version"] == 1
    assert {seat["node"] for seat in status["seats"].values()} == {"n1"}
    assert gateway.status()["version"] == 2
