"""The gateway's part in the coordination of one version, on a real ZooKeeper."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opening_kit import ADDRESS, PAIRS, Upgraded

from understudy.core.shape.partition import Copy
from understudy.core.view.events import CopySuspected
from understudy.core.view.view import View
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.gateway.leading import FACT, Leading
from understudy.runtime.process import seated_file

pytestmark = pytest.mark.zookeeper


class Part:
    """A gateway in the coordination of a version, and another process that takes part in it."""

    def __init__(self, run: Upgraded) -> None:
        self.run = run
        run.settings.version_path.mkdir(parents=True, exist_ok=True)
        self.other = Coordination(run.settings.zookeeper, run.settings.coordinates)
        self.leading = self.lead()

    def lead(self) -> Leading:
        return Leading(self.run.settings, self.run.edition.dataflow.topology)

    def join(self, *names: str) -> None:
        for name in names:
            self.other.join("node", name, {"flight": ADDRESS, "pid": 1, "node": name})

    def follow(self) -> None:
        self.leading.begin(ADDRESS)
        self.leading.follow(self.run.views.append)

    def end(self) -> None:
        self.leading.end()
        self.other.close()


@pytest.fixture
def part(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Part]:
    made = Part(Upgraded(tmp_path, zookeeper.address))
    yield made
    made.end()


def test_it_is_a_member_that_nodes_find_under_the_coordinates_of_its_version(part: Part) -> None:
    part.leading.begin(ADDRESS)
    assert part.other.get_fact(FACT)["flight"] == ADDRESS
    (member,) = part.other.members()
    assert (member.kind, member.facts["flight"]) == ("gateway", ADDRESS)
    with Coordination(part.run.before.zookeeper, part.run.before.coordinates) as first:
        assert first.get_fact(FACT) is None
        assert first.members() == []


def test_it_leads_and_seats_the_nodes_that_are_there(part: Part) -> None:
    part.follow()
    part.join("node-3.1", "node-4.1")
    part.run.until(lambda: bool(part.run.views))
    assert set(part.leading.members) == {"node-3.1", "node-4.1"}
    assert seated_file(part.run.settings.version_path).exists(), "from here on copies have state"


def test_it_begins_with_the_newest_view_and_hears_of_each_that_follows(part: Part) -> None:
    part.follow()
    part.join("node-3.1", "node-4.1")
    part.run.until(lambda: bool(part.run.views))
    heard: list[View] = []
    again = part.lead()
    again.follow(heard.append)
    part.run.until(lambda: bool(heard))
    assert heard == part.run.views[-1:]
    seat = heard[0].seat(Copy(PAIRS))
    assert part.leading.report(CopySuspected(Copy(PAIRS), seat.epoch, "gateway"))
    part.run.until(lambda: bool(heard[1:]))
    assert heard[1].epoch > heard[0].epoch
    again.end()


def test_a_view_that_was_lost_is_no_reason_to_begin_anew(part: Part) -> None:
    seated_file(part.run.settings.version_path).touch()
    part.leading.begin(ADDRESS)
    with pytest.raises(EnvironmentFailed, match="does not know which nodes hold the state of this run"):
        part.leading.follow(part.run.views.append)
    part.join("node-3.1", "node-4.1")
    part.run.until(lambda: part.leading.failure is not None)
    assert part.leading.failure is not None
    assert "its data is lost" in part.leading.failure
    assert part.other.view() is None


def test_it_leaves_with_all_that_it_started(part: Part) -> None:
    before = set(threading.enumerate())
    leading = part.lead()
    leading.begin(ADDRESS)
    leading.follow(part.run.views.append)
    part.run.until(lambda: len(part.other.members()) == 1)
    leading.end()
    assert part.other.members() == []
    part.run.until(lambda: set(threading.enumerate()) <= before)
    leading.end()


def test_one_that_never_began_leaves_as_well(part: Part) -> None:
    before = set(threading.enumerate())
    part.lead().end()
    part.run.until(lambda: set(threading.enumerate()) <= before)
