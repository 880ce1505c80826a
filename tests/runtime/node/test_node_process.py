"""The node process with a real ZooKeeper; small engines in the place of those of Spark."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_run import SmallEngines

from understudy.flow.errors import EnvironmentFailed
from understudy.history.reading import records_of
from understudy.history.records import BegunRecord, EndedRecord
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.leader import Leadership
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.gateway.leading import FACT
from understudy.runtime.node import process as module
from understudy.runtime.node.process import Node
from understudy.runtime.process import Ending
from understudy.runtime.settings import RunSettings

pytestmark = pytest.mark.zookeeper

WAIT_S = 20.0

FLOW = """
import understudy as us

flow = us.Flow("small", bucket="100 ms")
rows = flow.source("rows", us.Push("k bigint, ts timestamp"), time="ts")

@flow.fragment(rows, time="ts")
def same(rows):
    return rows

flow.sink(same, us.Console(), name="out")
"""


@pytest.mark.parametrize(
    ("failure", "recorded"),
    [(None, [BegunRecord, EndedRecord]), (EnvironmentFailed("The disk is full."), [BegunRecord])],
)
def test_only_a_node_that_did_not_fail_records_a_good_end(
    tmp_path: Path,
    failure: EnvironmentFailed | None,
    recorded: list[type],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        settings = RunSettings("run", str(tmp_path / "flow.py"), str(tmp_path), server.address)
        settings.save()
        monkeypatch.setattr(module, "session", lambda **_: None)
        monkeypatch.setattr(module, "stop_session", lambda: None)
        monkeypatch.setattr(module, "warm_up", lambda *_: 0.0)
        monkeypatch.setattr(module, "FlowEngines", lambda flow, *_: SmallEngines(flow, settings))
        ending = Ending()
        node = Node(settings, "node-1", 1, ending)
        if failure is None:
            ending.ask()
        else:
            ending.fail(failure)
        node.run()
    assert [type(record) for record in records_of(settings.history_file(node.name))] == recorded


def test_a_node_of_a_run_that_goes_on_is_awaited_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    asked: list[bool] = []

    def warm_up(_flow: object, _folder: object, awaited: Callable[[], bool]) -> float:
        asked.append(awaited())
        return 0.0

    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        settings = RunSettings("run", str(tmp_path / "flow.py"), str(tmp_path), server.address, generation=2)
        settings.save()
        monkeypatch.setattr(module, "session", lambda **_: None)
        monkeypatch.setattr(module, "stop_session", lambda: None)
        monkeypatch.setattr(module, "warm_up", warm_up)
        monkeypatch.setattr(module, "FlowEngines", lambda flow, *_: SmallEngines(flow, settings))
        for name in ("node-1", "node-3"):
            ending = Ending()
            node = Node(settings, name, 1, ending)
            ending.ask()
            node.run()
    assert asked == [True, False]


def test_a_node_of_a_version_beside_another_seats_nobody_before_the_gateway_takes_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copies would begin with nothing: the gateway gives the version its first states before that."""
    (tmp_path / "flow.py").write_text(FLOW)
    asked: queue.Queue[object] = queue.Queue()
    stood = threading.Event()
    honest, start = Coordination.get_fact, Leadership.start

    def get_fact(coordination: Coordination, name: str) -> object:
        found = honest(coordination, name)
        asked.put(found)
        return found

    def stand(leadership: Leadership) -> Leadership:
        stood.set()
        return start(leadership)

    monkeypatch.setattr(module, "session", lambda **_: None)
    monkeypatch.setattr(module, "stop_session", lambda: None)
    monkeypatch.setattr(module, "warm_up", lambda *_: 0.0)
    monkeypatch.setattr(module, "FlowEngines", lambda flow, *_: SmallEngines(flow, settings))
    monkeypatch.setattr(Coordination, "get_fact", get_fact)
    monkeypatch.setattr(Leadership, "start", stand)
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        base = RunSettings("run", str(tmp_path / "flow.py"), str(tmp_path), server.address)
        base.save()
        settings = replace(base, version=2, first_node=3)
        settings.version_path.mkdir(parents=True)
        ending = Ending()
        running = threading.Thread(target=Node(settings, "node-3", 1, ending).run, daemon=True)
        running.start()
        with Coordination(server.address, settings.coordinates) as gateway:
            assert [asked.get(timeout=WAIT_S), asked.get(timeout=WAIT_S)] == [None, None]
            assert [member.name for member in gateway.members()] == ["node-3.1"]
            assert not stood.is_set()
            gateway.put_fact(FACT, {"flight": "127.0.0.1:1"})
            assert stood.wait(WAIT_S)
        ending.ask()
        running.join(WAIT_S)
        assert not running.is_alive()
