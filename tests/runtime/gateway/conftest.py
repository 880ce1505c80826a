"""An intake, or gateways that are ended, for each test that asks for one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

# The small engines are kept with the tests of nodes.
sys.path.append(str(Path(__file__).parents[1] / "node"))

import pytest
from boundary_kit import Gateway
from intake_kit import Gate, make_flow
from versions_kit import Gateways

from understudy.runtime.coordination.server import ZooKeeperServer


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(make_flow(), tmp_path)
    yield gate
    gate.end()


@pytest.fixture
def made() -> Iterator[list[Gateway]]:
    gateways: list[Gateway] = []
    yield gateways
    for gateway in gateways:
        gateway.actor.end()
        gateway.boundary.end()
        assert gateway.failures == []
        assert gateway.around.failures == []


@pytest.fixture
def gateways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateways]:
    made = Gateways(tmp_path, monkeypatch)
    yield made
    made.end()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server for the tests that leave it alone."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
