"""What two versions of a flow have in common: the log goes as far as both let it, and a source waits only for
the version that some sink takes.
"""

from __future__ import annotations

import pytest
from boundary_kit import ROWS
from versions_kit import Bench, Gateways, Node

from understudy.core.bucket import NOTHING
from understudy.runtime.payload import encode

NOWHERE = {"fast": NOTHING, "slow": NOTHING}


def has(node: Node, through: int) -> None:
    """Every copy of the node has everything through this number, and so have all snapshots that are kept."""
    for source in ("fast", "slow"):
        node.takes(source, through)
        node.has_saved(source, through)


def log_of(gateways: Gateways) -> dict[str, tuple[int, int]]:
    """Through which number each source is trimmed and forgotten."""
    disk = gateways.disk
    return {source: (disk.trimmed[source], disk.forgotten[source]) for source in ("fast", "slow")}


def both(trimmed: int, forgotten: int) -> dict[str, tuple[int, int]]:
    return {"fast": (trimmed, forgotten), "slow": (trimmed, forgotten)}


# --- the log ---------------------------------------------------------------------------------------------


def test_nothing_is_forgotten_from_before_a_candidate_begins_until_it_says_what_it_needs(
    gateways: Gateways,
) -> None:
    gateway = gateways.start()
    one = gateway.opens(1)
    one.attaches()
    gateway.seal(1, 2, 3, 4)
    has(one, 1)
    assert log_of(gateways) == both(1, 1)
    forgotten_then: list[dict[str, int]] = []
    honest = gateway.begun.__call__

    def begin(*given: object, **named: object) -> None:
        forgotten_then.append(dict(given[0].forgotten))  # type: ignore[attr-defined]
        has(one, 3)
        honest(*given, **named)  # type: ignore[arg-type]

    gateway.begun = begin  # type: ignore[assignment]
    gateway.wants(candidate=gateways.disk.candidate())
    two = gateway.opens(2)
    assert forgotten_then == [{"fast": 1, "slow": 1}]
    assert log_of(gateways) == both(3, 1), "what the base lets go of, its states may need that were adopted"
    two.attaches(1)
    gateway.until(lambda: two.given("fast") == two.given("slow") == [2, 3, 4])
    has(one, 4)
    assert log_of(gateways) == both(4, 1)
    has(two, 2)
    assert log_of(gateways) == both(4, 2)


def test_a_version_that_is_not_open_yet_holds_up_no_trimming_and_one_that_is_does(gateways: Gateways) -> None:
    gateway = gateways.start()
    one = gateway.opens(1)
    one.attaches()
    gateway.wants(candidate=gateways.disk.candidate())
    gateway.seal(1, 2)
    has(one, 1)
    assert log_of(gateways) == both(1, NOTHING)
    two = gateway.opens(2)
    two.attaches(2)
    gateway.seal(3, 4)
    has(one, 4)
    assert log_of(gateways) == both(2, NOTHING)
    two.takes("fast", 3)
    assert gateways.disk.trimmed == {"fast": 3, "slow": 2}


@pytest.mark.parametrize("ends", ["taken back", "done"])
def test_the_log_is_let_go_of_when_the_version_is_closed_that_needed_it(
    gateways: Gateways, ends: str
) -> None:
    gateway = gateways.start()
    one = gateway.opens(1)
    gateway.wants(candidate=gateways.disk.candidate())
    two = gateway.opens(2)
    for node in (one, two):
        node.attaches()
    gateway.seal(1, 2, 3)
    stays, goes = (one, two) if ends == "taken back" else (two, one)
    has(stays, 3)
    has(goes, 1)
    assert log_of(gateways) == both(1, 1)
    if ends == "done":
        gateway.wants(candidate=gateways.disk.candidate(live=True))
        gateway.wants(base=2)
    else:
        gateway.wants()
    assert log_of(gateways) == both(3, 3)


def test_a_gateway_that_begins_again_forgets_nothing_that_its_candidate_needs(gateways: Gateways) -> None:
    gateway = gateways.start()
    one = gateway.opens(1)
    one.attaches()
    gateway.wants(candidate=gateways.disk.candidate())
    gateway.seal(1, 2, 3, 4)
    has(one, 2)
    for _ in range(2):
        gateway = gateways.start(candidate=gateways.disk.candidate())
        one = gateway.opens(1)
        one.attaches(2)
        has(one, 4)
        assert log_of(gateways) == both(4, NOTHING)
    two = gateway.opens(2)
    two.attaches(NOTHING)
    gateway.until(lambda: two.given("fast") == [1, 2, 3, 4])


def test_a_gateway_that_begins_again_after_the_run_went_on_with_the_candidate_has_kept_what_that_needs(
    gateways: Gateways,
) -> None:
    """The former base had let go of more, and its word is gone."""
    gateway = gateways.start()
    one = gateway.opens(1)
    gateway.wants(candidate=gateways.disk.candidate())
    two = gateway.opens(2)
    for node in (one, two):
        node.attaches()
    gateway.seal(1, 2, 3)
    has(one, 3)
    has(two, 1)
    gateway.wants(candidate=gateways.disk.candidate(live=True))
    gateway = gateways.start(base=2)
    two = gateway.opens(2)
    two.attaches(1)
    gateway.until(lambda: two.given("fast") == two.given("slow") == [2, 3])
    assert log_of(gateways) == both(1, 1)


# --- room ------------------------------------------------------------------------------------------------


@pytest.fixture
def narrow(gateways: Gateways) -> Gateways:
    """A source has room for so many buckets that some copy lacks."""
    gateways.disk.limits = {"input_buckets_max": 3}
    return gateways


def open_taps(gateway: Bench) -> set[str]:
    gateway.settle()
    return {source for source, there_is in gateway.rooms.items() if there_is}


def test_a_source_waits_for_the_base_and_not_for_a_candidate_that_no_sink_takes(narrow: Gateways) -> None:
    gateway = narrow.start()
    one = gateway.opens(1)
    one.attaches()
    gateway.wants(candidate=narrow.disk.candidate())
    two = gateway.opens(2)
    two.attaches()
    gateway.seal(1, 2, 3, 4)
    assert open_taps(gateway) == set()
    one.takes("fast", 4)
    assert open_taps(gateway) == {"fast"}
    one.takes("slow", 4)
    assert open_taps(gateway) == {"fast", "slow"}
    assert gateway.beside["crowded"] == ["fast", "slow"]
    assert gateway.status()["waiting_for_room"] == []


def test_a_source_waits_for_both_while_the_sinks_turn_and_for_the_candidate_then(narrow: Gateways) -> None:
    gateway = narrow.start()
    one = gateway.opens(1)
    one.attaches()
    gateway.wants(candidate=narrow.disk.candidate())
    two = gateway.opens(2)
    two.attaches()
    gateway.slow.add("first")
    one.puts_out("first", 1)
    gateway.seal(1, 2, 3, 4)
    for source in ("fast", "slow"):
        two.takes(source, 4)
    gateway.wants(candidate=narrow.disk.candidate(live=True))
    assert open_taps(gateway) == set(), "one sink takes the output of the base"
    gateway.slow.clear()
    gateway.ask(lambda: gateway.holds("first"))
    assert open_taps(gateway) == {"fast", "slow"}, "none does any more, and the base stops nobody"
    gateway.seal(5, 6, 7, 8)
    assert open_taps(gateway) == set()
    two.takes("slow", 8)
    assert open_taps(gateway) == {"slow"}


def test_a_base_that_is_crowded_does_not_stop_a_candidate_that_opens_live(narrow: Gateways) -> None:
    """After a restart, and when the nodes of the base are gone: nothing would ever open the tap."""
    gateway = narrow.start(candidate=narrow.disk.candidate(live=True))
    gateway.opens(1)
    gateway.seal(1, 2, 3, 4)
    assert open_taps(gateway) == set()
    gateway.opens(2)
    assert open_taps(gateway) == {"fast", "slow"}


def test_what_waits_for_a_version_that_no_sink_takes_is_bounded(gateways: Gateways) -> None:
    """Who upgrades the run may be frozen, or not hear of it: then the sources wait."""
    gateways.disk.limits = {"input_buckets_max": 3, "input_bytes_max": 3 * len(encode({"fast": ROWS}))}
    gateway = gateways.start()
    one = gateway.opens(1)
    one.attaches()
    gateway.wants(candidate=gateways.disk.candidate())
    gateway.opens(2).attaches()
    for number in range(1, 4):
        gateway.seal(number)
        one.takes("fast", number)
        one.takes("slow", number)
    assert open_taps(gateway) == {"fast", "slow"}
    for number in range(4, 7):
        gateway.seal(number)
        one.takes("fast", number)
        one.takes("slow", number)
    assert open_taps(gateway) == set()
    gateway.wants()
    assert open_taps(gateway) == {"fast", "slow"}, "it was let go of"


def test_a_candidate_that_is_closed_stops_nobody(narrow: Gateways) -> None:
    gateway = narrow.start(candidate=narrow.disk.candidate(live=True))
    one = gateway.opens(1)
    one.attaches()
    gateway.opens(2)
    gateway.seal(1, 2, 3, 4)
    for source in ("fast", "slow"):
        one.takes(source, 4)
    assert open_taps(gateway) == set()
    gateway.wants()
    assert open_taps(gateway) == {"fast", "slow"}
