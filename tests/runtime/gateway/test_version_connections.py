"""Real connections of nodes to a gateway of two versions: each is let in where its version is open."""

from __future__ import annotations

import queue
import threading

import pytest
from boundary_kit import WAIT_S
from versions_kit import Bench, Gateways

from understudy.runtime.mesh import Mesh, purpose_of
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import connect


class Caller:
    """A node that calls the gateway; `why` says what became of that."""

    def __init__(self, gateway: Bench, version: int) -> None:
        self.opened: queue.Queue[Channel] = queue.Queue()
        self.closed = threading.Event()
        self.why = ""
        self._thread = threading.Thread(
            target=self._call, args=(gateway.endpoint.address, version), daemon=True
        )
        self._thread.start()

    def _call(self, address: str, version: int) -> None:
        try:
            connect(
                address,
                purpose_of(version),
                {"node": f"n{version}", "serial": 1},
                on_open=self.opened.put,
                on_frame=lambda _frame: None,
                on_closed=self._gone,
            )
        except ConnectionError as problem:
            self._gone(str(problem))

    def _gone(self, why: str) -> None:
        self.why = why
        self.closed.set()

    def is_let_in(self) -> Channel:
        return self.opened.get(timeout=WAIT_S)

    def is_sent_away(self) -> str:
        assert self.closed.wait(WAIT_S)
        assert self.opened.empty()
        return self.why


@pytest.fixture
def gateway(gateways: Gateways) -> Bench:
    """Version 1 is open, and version 2 has begun and has no view yet."""
    gateway = gateways.start()
    gateway.opens(1)
    gateway.wants(candidate=gateways.disk.candidate())
    return gateway


def test_a_node_of_a_version_that_is_not_open_comes_again_and_is_let_in_once_it_is(gateway: Bench) -> None:
    assert "not open here" in Caller(gateway, 2).is_sent_away()
    Caller(gateway, 1).is_let_in()
    gateway.opens(2)
    Caller(gateway, 2).is_let_in()


def test_a_node_of_a_version_that_is_closed_is_cut_off_and_not_let_in_again(gateway: Bench) -> None:
    gateway.opens(2)
    node = Caller(gateway, 2)
    node.is_let_in()
    gateway.wants()
    assert node.closed.wait(WAIT_S)
    assert "not open here" in Caller(gateway, 2).is_sent_away()


def test_a_node_that_was_let_in_while_its_version_was_closed_is_cut_off(
    gateway: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.opens(2)
    admitted = threading.Event()
    honest = Mesh._admit

    def noted(mesh: Mesh, hello: object) -> object:
        accepted = honest(mesh, hello)  # type: ignore[arg-type]
        admitted.set()
        return accepted

    monkeypatch.setattr(Mesh, "_admit", noted)
    boundary = gateway.versions._editions[2].boundary
    assert boundary is not None
    boundary.listen_on(gateway.endpoint)
    with gateway.held():
        gateway.versions.agree_with(gateway.disk.settings(), None)
        node = Caller(gateway, 2)
        assert admitted.wait(WAIT_S)
        node.is_let_in()
    assert node.closed.wait(WAIT_S)


def test_a_gateway_that_begins_again_lets_no_node_of_a_candidate_in_before_its_view(
    gateways: Gateways,
) -> None:
    gateway = gateways.start(candidate=gateways.disk.candidate(live=True))
    gateway.opens(1)
    assert "not open here" in Caller(gateway, 2).is_sent_away()
    gateway.opens(2)
    Caller(gateway, 2).is_let_in()
