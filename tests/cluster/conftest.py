"""Complete runs: real Spark applications, a real ZooKeeper, real kills. What is started here ends here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from counting import write_flow
from owning import Owner

from understudy.flow.policy import policy_named
from understudy.runtime.local import LocalRun
from understudy.runtime.settings import RunSettings
from understudy.runtime.trial import Trial

StartTrial = Callable[..., Trial]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartTrial]:
    """Starts a run of the counting flow; ends it when the test has passed or failed."""
    runs: list[LocalRun] = []

    def begin(
        source: str,
        *,
        nodes: int = 2,
        standby: int = 0,
        policy: str = "pair",
        snapshot_every_ms: int = 10_000,
        store: str = "",
        **parameters: int,
    ) -> Trial:
        chosen = policy_named(policy, **parameters)
        folder = tmp_path / "run"
        folder.mkdir()
        settings = RunSettings(
            run="counting",
            flow_path=str(write_flow(tmp_path, source, chain=chosen.partitioned)),
            folder=str(folder),
            zookeeper="",
            policy=chosen,
            nodes=nodes,
            heap_mb=512,
            snapshot_every_ms=snapshot_every_ms,
            store=store,
        )
        run = LocalRun.on_own_zookeeper(settings, nodes=nodes, standby=standby)
        runs.append(run)
        run.start()
        return Trial(run)

    yield begin
    for run in runs:
        run.stop()


@pytest.fixture
def owner() -> Iterator[Callable[..., Owner]]:
    """Starts a command of Python; ends it, and all that it started."""
    owners: list[Owner] = []

    def begin(*command: str) -> Owner:
        owners.append(Owner(sys.executable, *command))
        return owners[-1]

    yield begin
    for each in owners:
        each.end()
