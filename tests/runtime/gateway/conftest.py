"""An intake, or a list of gateways that are ended, for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from boundary_kit import Gateway
from intake_kit import Gate, make_flow


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
