"""Asking a gateway for its status, over real connections."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import RunStatus, status_of
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, Endpoint
from understudy.runtime.transport.wire import Frame

WAIT_S = 10.0


class Gateway:
    """Tells on the opening of a connection, and whenever it is asked, how often it was asked."""

    def __init__(self, port: int = 0) -> None:
        self.run = "run"
        self.asked = 0
        self.told: list[str] = []
        self.channels: list[Channel] = []
        self.endpoint = Endpoint(port=port)
        self.endpoint.handle("status", self._admit)
        self.endpoint.ready()

    def _admit(self, _hello: Mapping[str, Any]) -> Accepted:
        box: list[Channel] = []

        def tell() -> None:
            self.asked += 1
            box[0].send(Frame({"kind": "status", "status": {"run": self.run, "asked": self.asked}}))

        def opened(channel: Channel) -> None:
            box.append(channel)
            self.channels.append(channel)
            tell()

        def heard(frame: Frame) -> None:
            self.told.append(frame.kind)
            tell()

        return Accepted(on_open=opened, on_frame=heard, on_closed=lambda _why: None)

    @property
    def sockets(self) -> int:
        """How many connections stand open here."""
        sockets = psutil.Process().net_connections("tcp")
        mine = [s for s in sockets if s.laddr and s.laddr.port == self.endpoint.port]
        return sum(each.status == psutil.CONN_ESTABLISHED for each in mine)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.endpoint.end()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def settings_for(gateway: Gateway, folder: Path) -> RunSettings:
    return RunSettings("run", "flow.py", str(folder), "", gateway_port=gateway.endpoint.port)


def until_sockets(gateway: Gateway, count: int) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while gateway.sockets != count:
        assert time.monotonic() < deadline_s, f"{gateway.sockets} connections stand open, not {count}"
        time.sleep(0.02)


@pytest.mark.usefixtures("no_garbage_collection")
def test_one_connection_serves_every_look(gateway: Gateway, tmp_path: Path) -> None:
    status = RunStatus(settings_for(gateway, tmp_path))
    assert [status.ask()["asked"] for _ in range(5)] == [1, 2, 3, 4, 5]
    assert len(gateway.channels) == 1
    status.close()
    until_sockets(gateway, 0)


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_single_look_leaves_no_connection_open(gateway: Gateway, tmp_path: Path) -> None:
    for _ in range(5):
        status_of(settings_for(gateway, tmp_path))
    until_sockets(gateway, 0)


def test_a_connection_that_broke_is_made_again(gateway: Gateway, tmp_path: Path) -> None:
    status = RunStatus(settings_for(gateway, tmp_path))
    status.ask()
    gateway.endpoint.end()
    with pytest.raises(EnvironmentFailed, match="does not tell its status"):
        until_refused(status)
    again = Gateway(gateway.endpoint.port)
    try:
        assert answer_at_last(status)["asked"] >= 1
        status.close()
    finally:
        again.endpoint.end()


def until_refused(status: RunStatus) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        status.ask(timeout_s=1.0)


def answer_at_last(status: RunStatus) -> dict[str, Any]:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            return status.ask(timeout_s=1.0)
        except EnvironmentFailed:
            assert time.monotonic() < deadline_s


def test_the_port_of_another_run_is_recognised(gateway: Gateway, tmp_path: Path) -> None:
    gateway.run = "another"
    with pytest.raises(EnvironmentFailed, match="belongs to run 'another'"):
        status_of(settings_for(gateway, tmp_path))


def test_a_gateway_that_is_told_something_answers_and_can_be_asked_afterwards(
    gateway: Gateway, tmp_path: Path
) -> None:
    status = RunStatus(settings_for(gateway, tmp_path))
    assert status.tell("save", WAIT_S)
    assert gateway.told == ["save"]
    assert status.ask(WAIT_S)["asked"] == 3
    assert status.tell("save", WAIT_S)
    assert gateway.told == ["save", "status", "status", "save"]
    status.close()


def test_the_gateway_of_another_run_is_told_nothing(gateway: Gateway, tmp_path: Path) -> None:
    gateway.run = "another"
    status = RunStatus(settings_for(gateway, tmp_path))
    assert not status.tell("save", WAIT_S)
    assert "save" not in gateway.told
    status.close()


def test_a_gateway_that_is_gone_is_told_nothing(gateway: Gateway, tmp_path: Path) -> None:
    status = RunStatus(settings_for(gateway, tmp_path))
    gateway.endpoint.end()
    assert not status.tell("save", 1.0)
    status.close()
