"""`understudy run` as a user gives it, in one folder, as often as it is started."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counting import PUSHED, Flowing, expected, results, write_flow
from owning import Owner, until

from understudy.cli.kill import processes_of
from understudy.flow.errors import EnvironmentFailed
from understudy.history.judging import judge
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import status_of

SNAPSHOT_EVERY_S = 1
PATIENCE_S = 120.0
_UNDERSTUDY = ("-m", "understudy.cli.main")


class Commanded:
    """`understudy run` in one folder and on one port, as often as it is started."""

    def __init__(
        self, owner: Callable[..., Owner], folder: Path, policy: str, snapshot_every_s: int = SNAPSHOT_EVERY_S
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        self._folder = folder / "run"
        self.flow = write_flow(folder, PUSHED, chain=policy == "flux")
        self._command = [*_UNDERSTUDY, "run", str(self.flow), "--folder", str(self._folder), "--plain"]
        self._options = [
            *["--policy", policy, "--nodes", "2", "--standby", "0", "--heap", "512"],
            *["--port", str(self.port), "--snapshot-every", str(snapshot_every_s)],
        ]
        self._owner = owner
        self._process = owner(*self._command, *self._options)

    @property
    def rows(self) -> Flowing:
        return Flowing(f"127.0.0.1:{self.port}")

    def status(self) -> dict[str, Any] | None:
        try:
            return status_of(RunSettings.load(self._folder), 2.0)
        except EnvironmentFailed:
            return None

    def wait(
        self, condition: Callable[[dict[str, Any]], bool], patience_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """The first status that fulfils the condition."""
        found: list[dict[str, Any]] = []

        def fulfilled() -> bool:
            status = self.status()
            found.extend([status] if status is not None and condition(status) else [])
            return bool(found)

        until(fulfilled, patience_s)
        return found[0]

    def upgrade(self, trial_s: float = 1.0) -> Owner:
        """Let the flow's file, as it is now, go live: the command that does it."""
        options = [str(self.flow), str(self._folder), "--trial", str(trial_s)]
        return self._owner(*_UNDERSTUDY, "upgrade", *options)

    def kill_gateway(self) -> None:
        (gateway,) = processes_of(RunSettings.load(self._folder))["gateway"]
        os.kill(gateway, signal.SIGKILL)

    def stop(self) -> str:
        """Ctrl-C; returns what it said."""
        self._process.process.send_signal(signal.SIGINT)
        return self.said()

    def lose_power(self) -> None:
        self._process.lose_power()

    def go_on(self) -> None:
        """The same command without options: they are in the folder."""
        self._process = self._owner(*self._command)

    def said(self) -> str:
        """What it says until it ends."""
        return said_by(self._process)


def said_by(command: Owner) -> str:
    """What a command says until it ends: an upgrade starts one Spark after the other."""
    return command.process.communicate(timeout=2 * PATIENCE_S)[0]


def delivers(status: dict[str, Any]) -> bool:
    return bool(status["rows_out"] > 0)


def every_state_is_saved(status: dict[str, Any]) -> bool:
    """Whether a state of each partition is saved."""
    partitions = {copy.rpartition(":")[0] for copy in status["seats"]}
    return bool(partitions) and saved_partitions(status).keys() == partitions


def saved_partitions(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is told of the partitions of which anything is saved, by the copies that save them."""
    return {
        copy.rpartition(":")[0]: facts
        for node in status["nodes"].values()
        for copy, facts in node.get("copies", {}).items()
        if facts.get("saved_through") is not None
    }


def assert_right(folder: Path, rows: Flowing, *, chain: bool = False) -> None:
    pushed, _ = rows.account()
    delivered = results(folder)
    assert sorted(delivered) == expected(pushed, chain=chain)
    assert [end for end, *_ in delivered] == sorted(end for end, *_ in delivered)
    verdict = judge(sorted((folder / "run" / "history").glob("*.jsonl")))
    assert verdict.findings == []
    assert verdict.delivered > 0
