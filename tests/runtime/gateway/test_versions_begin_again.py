"""A gateway that is killed while its flow is upgraded begins again from what is on disk: the log, how far the
sinks are delivered, and which versions are wanted.
"""

from __future__ import annotations

import pytest
from versions_kit import Bench, Gateways, Node


@pytest.fixture
def killed(gateways: Gateways) -> Gateways:
    """Both versions have taken buckets 1 to 4. Those through 2 are delivered, by the base."""
    gateway = gateways.start()
    one = gateway.opens(1)
    gateway.wants(candidate=gateways.disk.candidate())
    two = gateway.opens(2)
    gateway.seal(1, 2, 3, 4)
    for node in (one, two):
        node.attaches()
        node.takes("fast", 4)
        node.takes("slow", 4)
    one.puts_out("first", 1, 2)
    assert gateways.disk.output["first"] == [(1, 1), (2, 1)]
    assert gateways.disk.trimmed == {"fast": 4, "slow": 4}
    gateways.kill()
    return gateways


def come_back(gateway: Bench) -> tuple[Node, Node]:
    """The nodes of both versions reach the gateway again, and have put out everything since."""
    nodes = gateway.opens(1), gateway.opens(2)
    for node in nodes:
        node.attaches(4)
        node.puts_out("first", 3, 4, 5)
    return nodes


def test_it_goes_on_with_the_base_beside_a_candidate_that_is_not_live(killed: Gateways) -> None:
    gateway = killed.start(candidate=killed.disk.candidate())
    one, two = come_back(gateway)
    assert killed.disk.output["first"][2:] == [(3, 1), (4, 1), (5, 1)]
    assert one.acknowledged("first") == two.acknowledged("first") == 5
    gateway.seal(5)
    assert one.given("fast") == two.given("fast") == [5]


def test_it_goes_on_with_a_candidate_that_is_live_and_the_base_rests(killed: Gateways) -> None:
    gateway = killed.start(candidate=killed.disk.candidate(live=True))
    one = gateway.opens(1)
    one.attaches(4)
    one.puts_out("first", 3, 4, 5)
    assert killed.disk.output["first"][2:] == [], "the output of the candidate is wanted"
    two = gateway.opens(2)
    two.attaches(4)
    two.puts_out("first", 3, 4)
    assert killed.disk.output["first"][2:] == [(3, 2), (4, 2)]
    assert one.acknowledged("first") == 4
    gateway.wants()
    assert killed.disk.output["first"][4:] == [(5, 1)], "it can still be taken back"


def test_a_group_that_no_sink_held_when_the_gateway_was_killed_is_delivered_by_the_version_that_is_wanted(
    gateways: Gateways,
) -> None:
    gateway = gateways.start()
    one = gateway.opens(1)
    gateway.wants(candidate=gateways.disk.candidate())
    two = gateway.opens(2)
    for node in (one, two):
        node.attaches()
    gateway.slow.add("first")
    for node in (one, two):
        node.puts_out("first", 1, 2, 3)
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    assert gateway.in_hand["first"], "the sink was about to turn"
    gateway = gateways.start(candidate=gateways.disk.candidate(live=True))
    for node in (gateway.opens(1), gateway.opens(2)):
        node.attaches()
        node.puts_out("first", 1, 2, 3)
    assert gateways.disk.output["first"] == [(1, 2), (2, 2), (3, 2)]


def test_it_goes_on_with_the_candidate_alone_once_the_run_does(killed: Gateways) -> None:
    gateway = killed.start(base=2)
    two = gateway.opens(2)
    two.attaches(4)
    two.puts_out("first", 3, 4)
    assert killed.disk.output["first"][2:] == [(3, 2), (4, 2)]
    status = gateway.status()
    assert (status["version"], status["candidate"]) == (2, None)


def test_it_begins_with_a_candidate_again_that_has_not_come_to_its_first_view(gateways: Gateways) -> None:
    gateway = gateways.start()
    gateway.opens(1).attaches()
    gateway.seal(1, 2)
    gateway.wants(candidate=gateways.disk.candidate())
    gateway = gateways.start(candidate=gateways.disk.candidate())
    gateway.opens(1).attaches()
    gateway.until(lambda: 2 in gateway.begun.editions)
    assert gateway.begun.before == {2: 1}
    two = gateway.opens(2)
    two.attaches(1)
    gateway.until(lambda: two.given("fast") == [2])


def test_rows_that_were_sealed_and_not_put_in_when_it_was_killed_reach_both_versions(
    killed: Gateways,
) -> None:
    gateway = killed.start(candidate=killed.disk.candidate())
    nodes = gateway.opens(1), gateway.opens(2)
    with gateway.held():
        gateway.seals(5)
        killed.disk.log = list(killed.disk.log)
    assert [bucket.number for bucket in killed.disk.log if bucket.source == "fast"] == [1, 2, 3, 4, 5]
    gateway = killed.start(candidate=killed.disk.candidate())
    nodes = gateway.opens(1), gateway.opens(2)
    for node in nodes:
        node.attaches(4)
        gateway.until(lambda node=node: node.given("fast") == node.given("slow") == [5])


def test_a_gateway_with_a_live_candidate_lets_readers_begin_although_the_base_is_gone(
    killed: Gateways,
) -> None:
    gateway = killed.start(candidate=killed.disk.candidate(live=True))
    gateway.opens(1)
    assert not gateway.versions.running
    gateway.opens(2).attaches(4)
    assert gateway.versions.running


def test_a_run_is_delivered_as_far_as_its_sinks_say_whichever_version_was_live(killed: Gateways) -> None:
    gateway = killed.start(candidate=killed.disk.candidate(live=True))
    assert gateway.versions.delivered_through is None
    _, two = come_back(gateway)
    two.puts_out("second", 1)
    assert gateway.versions.delivered_through == {"first": 5, "second": 1}
