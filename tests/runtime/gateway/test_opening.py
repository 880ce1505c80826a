"""How a candidate begins at the gateway: with the states of the version before, and then as a part of its
coordination. What goes wrong is its own trouble, and is tried again until it is not wanted any more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from boundary_kit import WAIT_S
from opening_kit import MORE_PAIRS, PAIRS, SUMS, Upgraded

from understudy.core.shape.partition import Partition
from understudy.core.view.view import View
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.gateway import opening
from understudy.runtime.gateway.leading import FACT, Leading
from understudy.runtime.gateway.opening import adopt_states
from understudy.runtime.process import seated_file
from understudy.runtime.saving.store import SnapshotStore

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def run(tmp_path: Path, zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upgraded]:
    monkeypatch.setattr(opening, "RETRY_S", 0.05)
    made = Upgraded(tmp_path, zookeeper.address)
    yield made
    made.end()


@pytest.fixture
def own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Upgraded, ZooKeeperServer]]:
    """With a server that the test may kill."""
    monkeypatch.setattr(opening, "RETRY_S", 0.05)
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        made = Upgraded(tmp_path / "run", server.address)
        yield made, server
        made.end()


#: The threads of one part in a coordination: it follows, it reports, and it stands for election.
OF_ONE = 3


def threads_of_coordination() -> set[threading.Thread]:
    names = ("coordination-", "leadership-")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


# --- the states that it begins with ----------------------------------------------------------------------


def test_every_partition_begins_with_the_newest_state_of_the_version_before(run: Upgraded) -> None:
    run.save_all(20)
    run.save_all(40)
    run.begin()
    run.await_begun()
    assert run.adopted() == {PAIRS: [40], MORE_PAIRS: [40], SUMS: [40]}
    assert run.mark.exists()
    assert run.edition.trouble == ""


def test_producers_come_first_so_no_consumer_has_an_older_state_than_they_had_let_go_of(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = SnapshotStore.adopt
    throughs = count(20, 20)

    def adopt(store: SnapshotStore, partition: Partition, version: int) -> Any:
        # The version before saves and drops meanwhile.
        run.save_all(next(throughs))
        return honest(store, partition, version)

    run.save_all(next(throughs))
    monkeypatch.setattr(SnapshotStore, "adopt", adopt)
    adopt_states(run.edition, run.before)
    adopted = run.adopted()
    assert adopted[SUMS] > max(adopted[PAIRS], adopted[MORE_PAIRS])


def test_a_candidate_adopts_once_also_for_a_gateway_that_begins_again(run: Upgraded) -> None:
    run.save_all(20)
    run.begin()
    run.await_begun()
    run.save(PAIRS, 30, version=2)
    run.save_all(40)
    run.again()
    run.begin()
    run.await_begun()
    assert run.adopted() == {PAIRS: [30, 20], MORE_PAIRS: [20], SUMS: [20]}


def test_a_candidate_that_began_with_nothing_does_not_adopt_later(run: Upgraded) -> None:
    """Its copies have taken all of the log. A state of the version before would be another one."""
    run.begin()
    run.await_begun()
    run.save_all(40)
    run.again()
    run.begin()
    run.await_begun()
    assert run.adopted() == {PAIRS: [], MORE_PAIRS: [], SUMS: []}


def test_an_adoption_that_was_cut_short_begins_anew_and_leaves_one_state_of_each_partition(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two, a damaged one would be passed over by one copy of a partition and not by another."""
    run.save_all(20)
    honest = SnapshotStore.adopt
    killed: list[Partition] = []

    def adopt(store: SnapshotStore, partition: Partition, version: int) -> Any:
        if partition == SUMS and not killed:
            killed.append(partition)
            raise EnvironmentFailed("the gateway is killed")
        return honest(store, partition, version)

    monkeypatch.setattr(SnapshotStore, "adopt", adopt)
    with pytest.raises(EnvironmentFailed):
        adopt_states(run.edition, run.before)
    assert not run.mark.exists()
    run.save_all(40)
    run.again()
    run.begin()
    run.await_begun()
    assert run.adopted() == {PAIRS: [40], MORE_PAIRS: [40], SUMS: [40]}


def test_a_partition_without_a_state_and_without_its_log_cannot_begin(run: Upgraded) -> None:
    run.edition.forgotten["rows"] = 15
    for partition in (PAIRS, SUMS):
        run.save(partition, 20)
    run.begin()
    run.until(lambda: bool(run.edition.trouble))
    assert run.edition.trouble == (
        "Version 1 has saved no state of pairs/1, and the log of rows does not go back to its beginning: "
        "version 2 would lack what came before."
    )
    assert not run.mark.exists()


def test_a_partition_that_reads_no_source_needs_no_log(run: Upgraded) -> None:
    run.edition.forgotten["rows"] = 15
    for partition in (PAIRS, MORE_PAIRS):
        run.save(partition, 20)
    adopt_states(run.edition, run.before)
    assert run.adopted() == {PAIRS: [20], MORE_PAIRS: [20], SUMS: []}


@pytest.mark.parametrize("adopted", [1, 3])
def test_a_candidate_that_is_cancelled_while_it_adopts_keeps_no_state(
    run: Upgraded, adopted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was left of it may have been tidied up by then, and nothing would do that again."""
    run.save_all(20)
    honest, done = SnapshotStore.adopt, count(1)

    def adopt(store: SnapshotStore, partition: Partition, from_version: int) -> Any:
        found = honest(store, partition, from_version)
        if next(done) == adopted:
            run.edition.over.set()
        return found

    monkeypatch.setattr(SnapshotStore, "adopt", adopt)
    run.begin()
    run.await_begun()
    assert run.edition.over.is_set()
    assert (run.adopted(), run.views) == ({PAIRS: [], MORE_PAIRS: [], SUMS: []}, [])
    assert not run.mark.exists()
    assert [one.through for one in run.first.listed(SUMS)] == [20]


# --- trouble ---------------------------------------------------------------------------------------------


def test_a_store_that_does_not_answer_is_told_and_asked_again(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save_all(20)
    answers = threading.Event()
    honest = SnapshotStore.partitions

    def partitions(store: SnapshotStore) -> Any:
        if not answers.is_set():
            raise EnvironmentFailed("the store does not answer")
        return honest(store)

    monkeypatch.setattr(SnapshotStore, "partitions", partitions)
    run.begin()
    run.until(lambda: run.edition.trouble == "the store does not answer")
    assert run.edition.leading is None, "its nodes get no seats before it has their states"
    answers.set()
    run.await_begun()
    assert run.edition.trouble == ""
    assert run.adopted()[SUMS] == [20]


def test_a_defect_of_ours_is_the_trouble_of_the_candidate_and_does_not_end_the_gateway(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[object] = []
    monkeypatch.setattr(threading, "excepthook", left.append)

    def broken(_store: SnapshotStore) -> Any:
        raise KeyError("rows")

    monkeypatch.setattr(SnapshotStore, "partitions", broken)
    run.begin()
    run.until(lambda: run.edition.trouble == "'rows'")
    run.end()
    assert left == []


def test_a_zookeeper_that_does_not_answer_is_told_and_given_up_when_the_candidate_is_not_wanted(
    run: Upgraded,
) -> None:
    run.edition = replace(run.edition, settings=replace(run.settings, zookeeper="127.0.0.1:1"))
    run.begin()
    run.until(lambda: run.edition.trouble.startswith("ZooKeeper does not answer at 127.0.0.1:1"))
    assert run.mark.exists(), "its states were there before that"
    run.end()
    assert run.edition.leading is None


def test_a_candidate_that_waits_for_zookeeper_leaves_no_thread_when_it_is_not_wanted_any_more(
    own_run: tuple[Upgraded, ZooKeeperServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, server = own_run
    before = threads_of_coordination()
    waits = threading.Event()
    honest = Leading.begin

    def begin(leading: Leading, address: str) -> None:
        server.kill()
        waits.set()
        honest(leading, address)

    monkeypatch.setattr(Leading, "begin", begin)
    run.begin()
    assert waits.wait(WAIT_S)
    assert run.edition.leading is not None
    run.end()
    assert threads_of_coordination() == before
    assert run.edition.trouble == ""


def test_a_candidate_that_is_not_wanted_any_more_when_zookeeper_answers_is_ended_at_once(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = opening.Leading

    def leading(*given: Any) -> Leading:
        made = honest(*given)
        # As the gateway closes a version, which has no part in its coordination yet.
        run.edition.over.set()
        run.edition.leave()
        return made

    monkeypatch.setattr(opening, "Leading", leading)
    run.begin()
    run.await_begun()
    with Coordination(run.settings.zookeeper, run.settings.coordinates) as other:
        assert other.get_fact(FACT) is None
        assert other.members() == []


def test_a_view_that_zookeeper_has_lost_is_the_trouble_of_the_candidate(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[object] = []
    monkeypatch.setattr(threading, "excepthook", left.append)
    run.settings.version_path.mkdir(parents=True)
    seated_file(run.settings.version_path).touch()
    run.begin()
    run.until(lambda: "does not know which nodes hold the state of this run" in run.edition.trouble)
    seated_file(run.settings.version_path).unlink()
    run.await_begun()
    assert left == []
    assert run.edition.trouble == ""


def test_an_attempt_that_fails_leaves_nothing_in_the_coordination(
    run: Upgraded, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(threads_of_coordination())
    fails = iter([True, True])
    honest = Leading.follow

    def follow(leading: Leading, on_view: Any) -> None:
        if next(fails, False):
            raise EnvironmentFailed("once more")
        honest(leading, on_view)

    monkeypatch.setattr(Leading, "follow", follow)
    run.begin()
    run.await_begun()
    with Coordination(run.settings.zookeeper, run.settings.coordinates) as other:
        run.until(lambda: len(other.members()) == 1)
    run.until(lambda: len(threads_of_coordination()) == before + OF_ONE)


# --- its part in the coordination ------------------------------------------------------------------------


def test_its_nodes_get_seats_when_it_takes_part_and_it_hears_of_every_view(run: Upgraded) -> None:
    with Coordination(run.settings.zookeeper, run.settings.coordinates) as other:
        for name in ("node-3.1", "node-4.1"):
            other.join("node", name, {"flight": "127.0.0.1:1", "pid": 1, "node": name})
        run.begin()
        run.until(lambda: bool(run.views))
        view = run.views[0]
        assert isinstance(view, View)
        assert {seat.node for seat in view.seats.values()} == {"node-3.1", "node-4.1"}
        assert seated_file(run.settings.version_path).exists()
        assert not seated_file(run.before.version_path).exists(), "the other version's is its own"
