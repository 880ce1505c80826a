"""What processes hear through ZooKeeper, while all is well and while it is not."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from understudy.core.shape.partition import Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.controller import Controller
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.coordination.client import Coordination, Superseded
from understudy.runtime.coordination.leader import Leadership
from understudy.runtime.process import END_TIMEOUT_S

pytestmark = pytest.mark.zookeeper


def view(epoch: int) -> View:
    return View(epoch, {Partition("flow"): Seats(epoch, (Seat("a", 1, Status.ACTIVE),))})


def names(members: list[Any]) -> list[str]:
    return [member.name for member in members]


def test_views_reach_two_watchers_once_and_in_order(cluster: Any, heard: Any) -> None:
    writer, reader = cluster.connect(), cluster.connect()
    watchers = [heard(), heard()]
    writer.watch_view(watchers[0])
    reader.watch_view(watchers[1])
    version = None
    for epoch in range(1, 21):
        version = writer.publish(view(epoch), version)
    for watcher in watchers:
        watcher.until(lambda v: v.epoch == 20)
        epochs = [v.epoch for v in watcher.all]
        assert epochs == sorted(set(epochs))
    assert reader.latest_view == view(20)


def test_every_awaited_view_is_heard_once_although_members_come_in_between(cluster: Any, heard: Any) -> None:
    writer, reader, views, members = cluster.connect(), cluster.connect(), heard(), heard()
    reader.watch_view(views)
    reader.watch_members(members)
    version = None
    for epoch in range(1, 11):
        version = writer.publish(view(epoch), version)
        views.until(lambda v, epoch=epoch: v.epoch == epoch)
        writer.join("node", f"n{epoch}", {})
        members.until(lambda m, epoch=epoch: len(m) == epoch)
    assert [v.epoch for v in views.all] == list(range(1, 11))


def test_who_begins_to_watch_late_hears_the_current_view(cluster: Any, heard: Any) -> None:
    connection, watcher = cluster.connect(), heard()
    connection.publish(view(1), None)
    connection.watch_view(watcher)
    assert watcher.until(lambda _: True) == view(1)


def test_a_view_is_published_only_over_the_version_it_was_decided_upon(cluster: Any) -> None:
    connection = cluster.connect()
    first = connection.publish(view(1), None)
    second = connection.publish(view(2), first)
    with pytest.raises(Superseded):
        connection.publish(view(3), first)
    with pytest.raises(Superseded):
        connection.publish(view(1), None)
    stored = connection.view()
    assert (stored.view, stored.version) == (view(2), second)


def test_a_listener_that_fails_ends_its_process_but_does_not_silence_the_others(
    cluster: Any, heard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, watcher = cluster.connect(), heard()
    failures: list[threading.ExceptHookArgs] = []
    # What a process of a run sets to end itself.
    monkeypatch.setattr(threading, "excepthook", failures.append)

    def broken(_: View) -> None:
        raise RuntimeError("a listener's own bug")

    connection.watch_view(broken)
    connection.watch_view(watcher)
    version = connection.publish(view(1), None)
    watcher.until(lambda v: v.epoch == 1)
    connection.publish(view(2), version)
    watcher.until(lambda v: v.epoch == 2)
    assert str(failures[0].exc_value) == "a listener's own bug"


def test_members_come_with_their_facts_in_joining_order_and_go(cluster: Any, heard: Any) -> None:
    connection, other, watcher = cluster.connect(), cluster.connect(), heard()
    other.watch_members(watcher)
    later = connection.join("node", "z", {"flight": "127.0.0.1:1"})
    connection.join("gateway", "a", {})
    members = watcher.until(lambda m: len(m) == 2)
    assert [(m.name, m.kind, m.facts) for m in members] == [
        ("z", "node", {"flight": "127.0.0.1:1"}),
        ("a", "gateway", {}),
    ]
    later.leave()
    watcher.until(lambda m: names(m) == ["a"])
    connection.close()
    watcher.until(lambda m: m == [])


def test_a_name_that_is_taken_is_refused(cluster: Any) -> None:
    cluster.connect().join("node", "a", {})
    with pytest.raises(EnvironmentFailed, match="member called a is already there"):
        cluster.connect().join("node", "a", {})


def test_a_killed_process_stops_being_a_member(cluster: Any, heard: Any) -> None:
    connection, watcher = cluster.connect(), heard()
    process = cluster.process("victim")
    connection.watch_members(watcher)
    watcher.until(lambda m: names(m) == ["victim"])
    process.kill()
    watcher.until(lambda m: m == [])


def test_a_member_whose_session_was_lost_comes_back(
    cluster: Any, heard: Any, expire: Callable[[Coordination], None]
) -> None:
    connection, other, watcher = cluster.connect(), cluster.connect(), heard()
    membership = connection.join("node", "a", {})
    other.watch_members(watcher)
    before = watcher.until(lambda m: names(m) == ["a"])
    expire(connection)
    after = watcher.until(lambda m: names(m) == ["a"] and m != before)
    assert after[0].order > before[0].order
    assert membership.kept


def test_a_fact_is_what_was_put_last(cluster: Any) -> None:
    connection, other = cluster.connect(), cluster.connect()
    assert other.get_fact("flow") is None
    connection.put_fact("flow", {"name": "first"})
    connection.put_fact("flow", {"name": "sessions", "slots": [1, 2]})
    assert other.get_fact("flow") == {"name": "sessions", "slots": [1, 2]}


def test_an_address_where_no_server_answers_is_named_within_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(EnvironmentFailed, match=r"127\.0\.0\.1:1 .*Check that it runs"):
        Coordination("127.0.0.1:1", "run", connect_timeout_s=1.0)
    assert time.monotonic() - began < 5.0


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="host:port"):
        Coordination("127.0.0.1:here", "run")


def test_everything_resumes_when_the_server_comes_back(own_cluster: Any, heard: Any, eventually: Any) -> None:
    connection, other = own_cluster.connect(), own_cluster.connect()
    views, members = heard(), heard()
    other.watch_view(views)
    other.watch_members(members)
    version = connection.publish(view(1), None)
    connection.join("node", "a", {})
    views.until(lambda v: v.epoch == 1)
    members.until(lambda m: names(m) == ["a"])

    own_cluster.server.kill()
    began = time.monotonic()
    connection.report("suspected", {"node": "a", "epoch": 1, "by": "test"})
    assert time.monotonic() - began < 0.1, "a report made its caller wait"
    assert other.latest_view == view(1)
    waiting = threading.Thread(target=lambda: connection.publish(view(2), version))
    waiting.start()
    own_cluster.server.start()

    waiting.join(15.0)
    assert views.until(lambda v: v.epoch == 2) == view(2)
    assert [v.epoch for v in views.all] == [1, 2]
    # On a busy machine the server is away for longer than a session lasts; the member is then put back.
    eventually(lambda: names(other.members()) == ["a"])
    eventually(lambda: [r.kind for r in other.reports()] == ["suspected"])


def test_closing_ends_calls_that_wait_for_a_server_that_is_away(own_cluster: Any) -> None:
    from understudy.runtime.coordination.session import Closed

    connection = own_cluster.connect()
    own_cluster.server.kill()
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            connection.view()
        except Closed as closed:
            ended.append(closed)

    waiting = threading.Thread(target=ask)
    waiting.start()
    connection.close()
    waiting.join(10.0)
    assert len(ended) == 1


@pytest.mark.parametrize("server", ["killed", "stopped"])
def test_goodbyes_do_not_wait_for_a_server_that_is_away(own_cluster: Any, server: str) -> None:
    connection = own_cluster.connect()
    membership = connection.join("node", "a", {})
    leadership = Leadership(connection, "a", partial(Controller, chain_of(flow=1), 2, 2)).start()
    assert leadership.await_leading(10.0)
    java = own_cluster.server.pid
    if server == "killed":
        own_cluster.server.kill()
    else:
        os.kill(java, signal.SIGSTOP)

    def leave() -> None:
        membership.leave()
        leadership.stop()
        connection.close()

    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    leaving.join(END_TIMEOUT_S)
    in_time = not leaving.is_alive()
    if server == "stopped":
        os.kill(java, signal.SIGCONT)
    assert in_time, "a process would have to end hard"
