"""`understudy upgrade` in a run without processes: what the run does meanwhile is a test's to say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from understudy.cli import upgrade as module
from understudy.cli.main import main
from understudy.runtime import fit
from understudy.runtime.folder_lock import lock_of_run
from understudy.runtime.pinning import load_pinned, pin_shape
from understudy.runtime.settings import RunSettings
from upgrade_kit import ALONE, Status, Upgraded, facts, status

FLOW = """
import understudy as us

flow = us.Flow("small", bucket="100 ms")
rows = flow.source("rows", us.Push("k bigint, ts timestamp"), time="ts")

@flow.fragment(rows, time="ts")
def counts(rows):
    return rows

flow.sink(counts, us.JsonLines("out"), name="out")
"""
CHANGED = FLOW.replace("return rows", "return rows.where('k > 0')")
BEHIND = status(facts(behind={"out": 900}))
LOOKED = "looking whether the saved state fits the new code"


class Commanded:
    """The command in a run, which does what it does while the command waits: a step for each wait."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flow = folder / "flow.py"
        self.flow.write_text(FLOW)
        self.run = Upgraded(folder / "run", monkeypatch, str(self.flow), generation=3, gateway_port=4_711)
        self.steps: list[Callable[[], object]] = []
        self.said: list[str] = []
        self.waits = 0
        load_pinned(self.run.fleet.settings)
        pin_shape(self.run.fleet.settings, {"format": 1})
        self.lock = lock_of_run(self.run.folder)
        self.lock.take()
        clock = SimpleNamespace(monotonic=lambda: self.run.now_s, sleep=self._wait)
        monkeypatch.setattr(module, "time", clock)

    @property
    def settings(self) -> RunSettings:
        return RunSettings.load(self.run.folder)

    def _wait(self, _seconds: float) -> None:
        self.waits += 1
        if len(self.steps) > 1:
            self.steps.pop(0)()
        else:
            self.steps[0]()

    def then(self, *steps: Status | Callable[[], object] | None) -> None:
        """What the run does next: a look at such a status, or something else. The last is done repeatedly."""
        for step in steps:
            self.steps.append(step if callable(step) else lambda step=step: self._look(step))  # type: ignore[misc]

    def _look(self, seen: Status | None) -> None:
        self.run.look(seen)
        self.run.fleet.up |= set(self.run.upgrading.nodes)

    def until_catching_up(self) -> None:
        self.then(*[ALONE] * 4)

    def upgrade(self, *options: str, flow: str = CHANGED) -> int:
        """The exit code of the command, with the flow changed to this."""
        self.flow.write_text(flow)
        return main(["upgrade", str(self.flow), str(self.run.folder), *options])


def answering(monkeypatch: pytest.MonkeyPatch, **answer: list[str]) -> None:
    """What a process with a Spark says of the changed flow."""
    monkeypatch.setattr(fit, "_asked", lambda *_: {"refusals": [], "accepted": [], **answer})
