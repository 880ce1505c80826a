"""Two versions of a flow at one gateway: what each is given, and which of them the sinks take."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from dataclasses import replace
from typing import cast

import pytest
from boundary_kit import WAIT_S
from versions_kit import BOTH, ONE, Bench, Coordinated, Gateways, Node

from understudy.core.bucket import NOTHING
from understudy.core.turning import Turning
from understudy.core.view.events import CopySuspected
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.gateway.boundary import Boundary


def side_by_side(gateways: Gateways) -> tuple[Bench, Node, Node]:
    """Both versions have taken buckets 1 and 2, which are delivered by the base."""
    gateway = gateways.start()
    one = gateway.opens(1)
    one.attaches()
    gateway.wants(candidate=gateways.disk.candidate())
    two = gateway.opens(2)
    two.attaches()
    gateway.seal(1, 2)
    for node in (one, two):
        node.puts_out("first", 1, 2)
        node.puts_out("second", 1, 2)
    assert gateways.disk.output["first"] == gateways.disk.output["second"] == [(1, 1), (2, 1)]
    return gateway, one, two


# --- what the sources give to each -----------------------------------------------------------------------


def test_a_candidate_begins_beside_the_base_and_opens_with_its_first_view(gateways: Gateways) -> None:
    gateway = gateways.start()
    gateway.opens(1)
    assert gateway.status()["candidate"] is None
    gateway.wants(candidate=gateways.disk.candidate())
    gateway.until(lambda: 2 in gateway.begun.editions)
    assert gateway.begun.before == {2: 1}, "it begins with the states of version 1"
    assert gateway.beside["open"] is False
    gateway.opens(2)
    assert gateway.beside["open"] is True
    gateway.wants(candidate=gateways.disk.candidate())
    assert list(gateway.begun.before) == [2], "once"


def test_a_candidate_gets_from_the_log_what_was_sealed_before_its_first_view(gateways: Gateways) -> None:
    gateway = gateways.start()
    one = gateway.opens(1)
    one.attaches()
    gateway.seal(1, 2, 3, 4)
    gateway.wants(candidate=gateways.disk.candidate())
    two = gateway.opens(2)
    gateway.seal(5)
    two.attaches(1)
    gateway.until(lambda: len(two.given("fast")) == 4)
    gateway.seal(6)
    assert two.given("fast") == two.given("slow") == [2, 3, 4, 5, 6]
    assert two.given("fast", ONE) == [2, 3, 4, 5, 6]
    assert one.given("fast") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("first", ["rows", "view"])
def test_a_bucket_that_is_sealed_while_a_version_opens_is_given_to_it_once(
    gateways: Gateways, first: str
) -> None:
    gateway = gateways.start()
    gateway.opens(1).attaches()
    gateway.seal(1)
    gateway.wants(candidate=gateways.disk.candidate())
    two = Node(gateway, 2)
    with gateway.held():
        # Nothing is dealt out for a version that is not open yet, whichever comes first.
        if first == "rows":
            gateway.seals(2)
            gateway.shows(2, two.view)
        else:
            gateway.shows(2, two.view)
            gateway.seals(2)
    gateway.seal(3)
    two.attaches(1)
    gateway.until(lambda: len(two.given("fast")) >= 2)
    assert two.given("fast") == two.given("slow") == [2, 3]


def test_buckets_are_dealt_out_by_the_thread_that_seals_them_and_put_in_by_the_actor(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _, two = side_by_side(gateways)
    threads: dict[str, set[str]] = {"deal": set(), "put": set()}
    for name, names in threads.items():
        honest = getattr(Boundary, name)

        def noted(
            boundary: Boundary, given: object, honest: object = honest, names: set[str] = names
        ) -> object:
            names.add(threading.current_thread().name)
            return honest(boundary, given)  # type: ignore[operator]

        monkeypatch.setattr(Boundary, name, noted)
    gateway.seal(3)
    assert two.given("fast")[-1] == 3
    assert threads == {"deal": {threading.current_thread().name}, "put": {"boundary"}}


# --- which version the sinks take ------------------------------------------------------------------------


def test_the_sinks_turn_to_the_candidate_and_the_base_rests(gateways: Gateways) -> None:
    gateway, one, two = side_by_side(gateways)
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    for node in (one, two):
        node.puts_out("first", 3, 4)
    assert gateways.disk.output["first"] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    one.puts_out("first", 5)
    assert gateways.disk.output["first"][-1] == (4, 2), "the base rests"
    assert one.acknowledged("first") == 4, "and keeps what was not delivered"


def test_the_sinks_turn_back_where_the_candidate_stopped(gateways: Gateways) -> None:
    gateway, one, two = side_by_side(gateways)
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    two.puts_out("first", 3)
    one.puts_out("first", 3, 4, 5)
    gateway.wants()
    assert gateways.disk.output["first"] == [(1, 1), (2, 1), (3, 2), (4, 1), (5, 1)]
    assert gateways.disk.output["second"] == [(1, 1), (2, 1)]
    assert gateway.status()["candidate"] is None


def test_a_sink_turns_when_it_holds_what_it_was_given_and_each_at_its_own_number(gateways: Gateways) -> None:
    gateway, one, two = side_by_side(gateways)
    gateway.slow.add("first")
    for node in (one, two):
        node.puts_out("first", 3, 4)
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    for node in (one, two):
        node.puts_out("first", 5)
        node.puts_out("second", 3, 4, 5)
    assert gateway.in_hand == {"first": [(3, 1), (4, 1)]}, "nothing of the other version before that"
    assert gateways.disk.output["second"][2:] == [(3, 2), (4, 2), (5, 2)]
    assert (gateway.beside["live"], gateway.beside["takes"]) == (False, True)
    gateway.slow.clear()
    gateway.ask(lambda: gateway.holds("first"))
    assert gateways.disk.output["first"][2:] == [(3, 1), (4, 1), (5, 2)]
    assert gateway.beside["live"] is True


def test_what_a_sink_holds_is_told_to_both_versions_on_their_actor(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, one, two = side_by_side(gateways)
    threads: set[str] = set()
    honest = Turning.handle

    def noted(turning: Turning, event: object) -> object:
        threads.add(threading.current_thread().name)
        return honest(turning, event)  # type: ignore[arg-type]

    monkeypatch.setattr(Turning, "handle", noted)
    gateway.slow.add("first")
    for node in (one, two):
        node.puts_out("first", 3)
    writer = threading.Thread(target=gateway.holds, args=["first"], name="writer")
    writer.start()
    writer.join(WAIT_S)
    gateway.settle()
    assert threads == {"boundary"}
    assert one.acknowledged("first") == two.acknowledged("first") == 3


# --- the end of a version --------------------------------------------------------------------------------


def test_the_run_goes_on_with_the_candidate_and_the_base_is_closed(gateways: Gateways) -> None:
    gateway, one, two = side_by_side(gateways)
    base = cast(Coordinated, gateway.versions._first.leading)
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    assert not base.ended.is_set()
    gateway.wants(base=2)
    assert base.ended.wait(WAIT_S)
    assert not gateway.candidate.ended.is_set()
    status = gateway.status()
    assert (status["version"], status["candidate"]) == (2, None)
    assert set(status["senders"].values()) == {0}
    heard = len(one.heard())
    gateway.seal(3)
    assert two.given("fast")[-1] == 3
    assert len(one.heard()) == heard


def test_a_candidate_that_is_taken_back_is_closed_when_no_sink_takes_it_any_more(gateways: Gateways) -> None:
    gateway, one, two = side_by_side(gateways)
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    gateway.slow.add("first")
    for node in (one, two):
        node.puts_out("first", 3)
    gateway.wants()
    assert gateway.beside["takes"], "its last group is being written"
    assert not gateway.candidate.ended.is_set()
    gateway.slow.clear()
    gateway.ask(lambda: gateway.holds("first"))
    assert gateway.status()["candidate"] is None
    assert gateway.candidate.ended.wait(WAIT_S)
    one.puts_out("first", 4)
    assert gateways.disk.output["first"][2:] == [(3, 2), (4, 1)]


def test_a_candidate_that_is_not_wanted_before_its_first_view_leaves_nothing(gateways: Gateways) -> None:
    gateway = gateways.start()
    gateway.opens(1)
    gateway.wants(candidate=gateways.disk.candidate())
    gateway.until(lambda: 2 in gateway.begun.editions)
    gateway.wants()
    assert gateway.begun.editions[2].over.is_set()
    assert gateway.candidate.ended.wait(WAIT_S)
    on_view = gateway.candidate.on_view
    assert on_view is not None
    on_view(Node(gateway, 2).view)
    gateway.settle()
    assert gateway.begun.editions[2].boundary is None, "also if its first view comes now"


def test_the_version_that_follows_a_candidate_that_was_taken_back_is_another_one(gateways: Gateways) -> None:
    gateway, one, _ = side_by_side(gateways)
    gateway.wants()
    gateway.wants(candidate=gateways.disk.candidate(3))
    three = gateway.opens(3)
    three.attaches(2)
    gateway.seal(3)
    assert three.given("fast") == [3]
    gateway.wants(candidate=gateways.disk.candidate(3, live=True))
    for node in (one, three):
        node.puts_out("first", 3)
    assert gateways.disk.output["first"][-1] == (3, 3)


def test_a_candidate_begins_with_the_states_of_the_version_that_the_run_goes_on_with(
    gateways: Gateways,
) -> None:
    """Both files were replaced since the gateway looked last."""
    gateway, _, _ = side_by_side(gateways)
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    gateway.wants(base=2, candidate=gateways.disk.candidate(3))
    gateway.until(lambda: 3 in gateway.begun.editions)
    assert gateway.begun.before == {2: 1, 3: 2}


def test_a_gateway_goes_on_with_a_version_only_once_its_ends_are_there(gateways: Gateways) -> None:
    """Killed on trial, it began again when the run already went on with the candidate."""
    side_by_side(gateways)
    gateway = gateways.start(candidate=gateways.disk.candidate(live=True))
    gateway.opens(1).attaches(2)
    gateway.wants(base=2)
    assert gateway.status()["version"] == 1
    two = gateway.opens(2)
    two.attaches(2)
    status = gateway.status()
    assert (status["version"], status["candidate"]) == (2, None)
    two.puts_out("first", 3)
    assert gateways.disk.output["first"][-1] == (3, 2)


def test_a_gateway_that_lacks_the_version_that_the_run_goes_on_with_begins_again(gateways: Gateways) -> None:
    gateway = gateways.start()
    gateway.opens(1)
    gateway.wants(base=2)
    (failure,) = gateway.failures
    assert isinstance(failure, EnvironmentFailed)
    assert str(failure).startswith(
        "The run goes on with version 2 of the flow, and this gateway knows only 1."
    )
    gateway.failures.clear()


def test_a_hundred_upgrades_leave_no_thread_and_nothing_of_the_versions_that_are_over(
    gateways: Gateways,
) -> None:
    gateway = gateways.start()
    gateway.opens(1).attaches()
    others = set(threading.enumerate())
    boundaries: list[weakref.ref[Boundary]] = []
    for version in range(2, 102):
        candidate = gateways.disk.candidate(version)
        gateway.wants(base=version - 1, candidate=candidate)
        # It reads the log again, in a thread of its own.
        node = gateway.opens(version)
        node.attaches()
        boundaries.append(weakref.ref(node.boundary))
        gateway.seal(version)
        gateway.wants(base=version - 1, candidate=replace(candidate, live=True))
        gateway.wants(base=version)
        gateway.begun.editions.clear()

    def begun_since() -> list[str]:
        return sorted(thread.name for thread in set(threading.enumerate()) - others)

    gateway.until(lambda: begun_since() == ["reading the log again", "timers"])
    gc.collect()
    assert [each for each in boundaries if each() is not None] == boundaries[-1:]


# --- one version's trouble -------------------------------------------------------------------------------


def broken_log(_source: str, _after: int) -> object:
    raise EnvironmentFailed("the log is damaged")


def test_a_log_that_cannot_be_read_for_a_candidate_is_the_trouble_of_the_candidate(
    gateways: Gateways,
) -> None:
    gateway = gateways.start()
    gateway.opens(1).attaches()
    gateway.seal(1, 2)
    gateway.readers = broken_log
    gateway.wants(candidate=gateways.disk.candidate())
    gateway.opens(2).attaches(NOTHING)
    gateway.until(lambda: bool(gateway.beside["failure"]))
    assert gateway.beside["failure"] == "the log is damaged"
    assert gateway.beside["whole"] is False, "so the sinks are not turned to it"
    assert gateway.failures == []


@pytest.mark.parametrize(("version", "live"), [(1, False), (1, True), (2, True)])
def test_a_log_that_cannot_be_read_for_the_base_or_for_what_sinks_take_ends_the_gateway(
    gateways: Gateways, version: int, live: bool
) -> None:
    _, one, two = side_by_side(gateways)
    for node in (one, two):
        for source in ("fast", "slow"):
            node.takes(source, 2)
    gateway = gateways.start(candidate=gateways.disk.candidate(live=live))
    gateway.readers = broken_log
    nodes = {1: gateway.opens(1), 2: gateway.opens(2)}
    nodes[version].attaches(NOTHING)
    gateway.until(lambda: bool(gateway.failures))
    assert {str(failure) for failure in gateway.failures} == {"the log is damaged"}
    gateway.failures.clear()


def test_a_log_that_is_read_for_a_version_which_is_closed_meanwhile_is_nobodys_trouble(
    gateways: Gateways, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = gateways.start()
    gateway.opens(1).attaches()
    gateway.seal(1, 2)
    reading, go_on = threading.Event(), threading.Event()

    def slow_log(_source: str, _after: int) -> object:
        reading.set()
        assert go_on.wait(WAIT_S)
        raise EnvironmentFailed("what follows is forgotten")

    gateway.readers = slow_log
    gateway.wants(candidate=gateways.disk.candidate())
    gateway.opens(2).attaches(NOTHING)
    assert reading.wait(WAIT_S)
    boundary = gateway.versions._editions[2].boundary
    assert boundary is not None
    reader = boundary._rereading._thread
    assert reader is not None
    gateway.wants()
    go_on.set()
    reader.join(WAIT_S)
    assert not reader.is_alive()
    gateway.settle()
    assert gateway.failures == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_each_version_reports_to_its_own_controller(gateways: Gateways) -> None:
    gateway, _, two = side_by_side(gateways)
    report = CopySuspected(BOTH, 1, "gateway")
    gateway.ask(lambda: two.boundary.report(report))
    assert gateway.candidate.reports == [report]
    assert cast(Coordinated, gateway.versions._first.leading).reports == []
