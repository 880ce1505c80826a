"""What is over of a run goes from a ZooKeeper that others use too, and nothing else does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from understudy.core.shape.partition import Partition
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.coordination.client import ROOT, Coordination
from understudy.runtime.former_trees import FormerTrees, forget_former
from understudy.runtime.going_on import await_departure, next_generation
from understudy.runtime.partitioning import require_view
from understudy.runtime.process import seated_file
from understudy.runtime.settings import RunSettings

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def first(cluster: Any, tmp_path: Path) -> RunSettings:
    return RunSettings(cluster.run, "flow.py", str(tmp_path), cluster.server.address)


@pytest.fixture
def client(cluster: Any) -> Any:
    """Looks at all trees."""
    return cluster.connect().session.client


def lived(settings: RunSettings) -> None:
    """A generation, or a version, had processes and a view, and is over."""
    with Coordination(settings.zookeeper, settings.coordinates) as coordination:
        coordination.join("node", "node-1.1", {})
        coordination.put_fact("gateway", {"flight": "127.0.0.1:1"})
        coordination.put_fact("answer-1", {"ok": True})
        epoch = settings.first_epoch
        view = View(epoch, {Partition("flow"): Seats(epoch, (Seat("node-1.1", epoch, Status.ACTIVE),))})
        coordination.publish(view, None)
        # A report that no leader has read.
        coordination.session.client.create(f"{coordination.root}/reports/r-", b"{}", sequence=True)


def trees(client: Any, run: str) -> set[str]:
    """Of a run, without its name."""
    return {name.removeprefix(run) for name in client.get_children(ROOT) if name.startswith(run)}


def test_of_many_generations_the_newest_stays_and_the_name(first: RunSettings, client: Any) -> None:
    newest = first
    lived(newest)
    for _ in range(5):
        newest = next_generation(newest)
        lived(newest)
        forget_former(newest)
        assert trees(client, first.run) == {"", f"~{newest.generation}"}
    with Coordination(newest.zookeeper, newest.coordinates) as there:
        assert there.view() is not None
        assert there.fact_names() == ["answer-1", "gateway"]
    root = f"{ROOT}/{first.run}"
    assert client.get_children(root) == ["facts"]
    assert client.get_children(f"{root}/facts") == ["gateway"], "no other run takes that name"


def test_what_earlier_starts_could_not_delete_goes_too(first: RunSettings, client: Any) -> None:
    for generation in range(1, 5):
        lived(replace(first, generation=generation))
    forget_former(replace(first, generation=4))
    assert trees(client, first.run) == {"", "~4"}


def test_versions_that_are_over_go(first: RunSettings, client: Any) -> None:
    second = next_generation(first)
    for generation in (first, second):
        for version in (1, 2, 3):
            lived(replace(generation, version=version))
    now = replace(second, version=2, versions_tried=3)
    forget_former(now)
    assert trees(client, first.run) == {"", "~2@2"}


def test_a_tree_with_members_stays(cluster: Any, first: RunSettings, client: Any) -> None:
    lived(first)
    cluster.process("node-1.1")
    before = sorted(client.get_children(f"{ROOT}/{first.run}"))
    forget_former(next_generation(first), wait_s=0.0)
    assert sorted(client.get_children(f"{ROOT}/{first.run}")) == before


def test_members_that_are_about_to_leave_are_waited_for(
    cluster: Any, first: RunSettings, client: Any
) -> None:
    lived(first)
    threading.Timer(0.5, cluster.process("node-1.1").kill).start()
    forget_former(next_generation(first), wait_s=30.0)
    assert client.get_children(f"{ROOT}/{first.run}") == ["facts"]


def test_another_run_that_is_named_like_a_generation_of_this_one_stays(
    first: RunSettings, client: Any
) -> None:
    lived(replace(first, run=f"{first.run}~2"))
    forget_former(replace(first, generation=3))
    assert "~2" in trees(client, first.run)


def test_the_next_start_finds_nobody_in_a_tree_that_is_gone(first: RunSettings) -> None:
    second = next_generation(first)
    lived(first)
    lived(second)
    forget_former(second)
    await_departure(first, wait_s=0.0)
    await_departure(second, wait_s=0.0)


def test_a_late_process_of_a_tree_that_is_gone_makes_no_new_one_and_lives(
    first: RunSettings,
    expire: Callable[[Coordination], None],
    eventually: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It slept, so its session was over when the tree went. What it reports nobody needs."""
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    former = next_generation(first)
    with Coordination(former.zookeeper, former.coordinates, session_timeout_ms=1_000) as late:
        late.join("node", "node-1.1", {})
        view = View(9, {Partition("flow"): Seats(9, (Seat("node-1.1", 9, Status.ACTIVE),))})
        late.publish(view, None)
        eventually(lambda: late.latest_view == view)
        late.session.client.delete(late.root, recursive=True)
        with caplog.at_level(logging.WARNING):
            expire(late)
            eventually(lambda: "has nothing of run" in caplog.text)
        late.report("suspect", {"node": "node-2.1"})
        eventually(lambda: not late._outbox)
        assert late.session.client.exists(late.root) is None
        assert failed == []


def test_a_late_process_that_makes_the_tree_again_seats_nobody(first: RunSettings) -> None:
    """One that was still starting. Its folder shows that the run goes on."""
    lived(first)
    second = next_generation(first)
    forget_former(second)
    seated_file(first.version_path).touch()
    with Coordination(first.zookeeper, first.coordinates) as late:
        assert late.view() is None
        with pytest.raises(EnvironmentFailed, match="does not know which nodes hold the state"):
            require_view(None, first)


# --- when ---------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """What was to be forgotten, with the settings of that moment."""
    made: list[RunSettings] = []

    class Thread:
        def __init__(self, *, args: tuple[RunSettings], **_: object) -> None:
            made.extend(args)

        def start(self) -> None:
            pass

    monkeypatch.setattr("understudy.runtime.former_trees.threading.Thread", Thread)
    return made


def test_a_generation_goes_when_the_next_one_has_a_view_and_a_version_when_it_is_over(
    begun: list[RunSettings],
) -> None:
    former = FormerTrees()
    second = RunSettings("run", "flow.py", "/run", "zk:1", generation=2)
    former.look(second, {"epoch": 0})
    assert begun == [], "copies have no seats yet"
    for _ in range(3):
        former.look(second, {"epoch": second.first_epoch})
    assert begun == [second]
    upgraded = replace(second, version=2, versions_tried=2)
    former.look(upgraded, {"epoch": second.first_epoch})
    assert begun == [second, upgraded]


def test_a_run_that_has_just_begun_or_has_its_own_zookeeper_forgets_nothing(
    begun: list[RunSettings],
) -> None:
    settings = RunSettings("run", "flow.py", "/run", "zk:1")
    FormerTrees().look(settings, {"epoch": 1})
    FormerTrees().look(replace(settings, generation=2, own_zookeeper=True), {"epoch": 1_000_001})
    assert begun == []
