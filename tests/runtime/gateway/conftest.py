"""An intake for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from intake_kit import Gate, make_flow


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(make_flow(), tmp_path)
    yield gate
    gate.end()
