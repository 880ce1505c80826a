"""Which nodes warm up before they join, and which join at once because rows wait for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from understudy.core.shape.partition import Partition
from understudy.core.view.view import Seat, Seats, Status, View
from understudy.flow.loading import load
from understudy.runtime.node import warming as module
from understudy.runtime.node.warming import ROUNDS, is_awaited, warm_up
from understudy.runtime.settings import RunSettings

FIRST = RunSettings("run", "flow.py", "folder", "", nodes=2, standby=1)
NEXT = replace(FIRST, generation=2)
FLOW = """
import understudy as us

flow = us.Flow("small", bucket="100 ms")
rows = flow.source("rows", us.Push("k bigint, ts timestamp"), time="ts")

@flow.fragment(rows, time="ts")
def same(rows):
    return rows

flow.sink(same, us.Console(), name="out")
"""


def view(status: Status) -> View:
    lost = "No copy holds the state any more." if status is Status.DEAD else None
    return View(1, {Partition("same"): Seats(1, (Seat("node-1.1", 1, status),), lost)})


@pytest.mark.parametrize(
    ("settings", "node", "seen", "awaited"),
    [
        (FIRST, "node-1", None, False),
        (NEXT, "node-1", None, True),
        (NEXT, "node-2", None, True),
        (NEXT, "node-3", None, False),
        (NEXT, "node-1", view(Status.ACTIVE), False),
        (FIRST, "node-3", view(Status.DEAD), True),
    ],
    ids=["a new run", "goes on", "goes on, second", "goes on, standby", "comes again", "all copies lost"],
)
def test_a_node_is_awaited_if_no_other_has_the_state_that_it_will_have(
    settings: RunSettings, node: str, seen: View | None, awaited: bool
) -> None:
    assert is_awaited(node, settings, seen) is awaited


class Counted:
    """Engines that count their groups."""

    def __init__(self) -> None:
        self.groups = 0
        self.topology = self
        self.partitions = (Partition("same"),)
        self.inputs = {"same": ("rows",)}

    def engine(self, *_: object) -> Counted:
        return self

    def start(self) -> None: ...

    def close(self) -> None: ...

    def advance(self, tables: dict[str, pa.Table], *_: object) -> None:
        assert tables["rows"].num_rows
        self.groups += 1


@pytest.mark.parametrize("until", [0, 1, ROUNDS])
def test_a_node_stops_warming_up_when_rows_begin_to_wait_for_it(
    until: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    engines = Counted()
    monkeypatch.setattr(module, "FlowEngines", lambda *_: engines)
    warm_up(load(tmp_path / "flow.py"), tmp_path / "warm", lambda: engines.groups >= until)
    assert engines.groups == until
