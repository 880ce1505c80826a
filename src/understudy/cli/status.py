"""`understudy status`: how a run is doing, once."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from understudy.cli.folders import run_in
from understudy.cli.picture import figures, legend, node_lines
from understudy.cli.policies import titled
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.folder_lock import lock_of_run
from understudy.runtime.going_on import has_begun
from understudy.runtime.process import failures, finished_file
from understudy.runtime.seating import in_one_piece, seats_in
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import status_of
from understudy.runtime.stopped import stopped_in


def execute(arguments: Namespace) -> int:
    settings = run_in(arguments.folder)
    status = _asked(settings)
    if arguments.json:
        print(json.dumps(status, indent=2))
        return 0
    print("   ".join(_header(settings, status)))
    lines = node_lines(status, {})
    width = max([10, *(len(line.place) for line in lines)])
    for line in lines:
        sends = "sends" if line.sends else ""
        print(f"{line.node:<12} {line.place:<{width}} {line.state:<14} {sends:<6} {line.group}".rstrip())
    if (marks := legend(status)) is not None:
        print(marks)
    if not status["members"]:
        print("no node is ready; Spark takes a while to start")
    print(figures({}, status).sentence)
    if status["lost"]:
        print(f"The flow is lost: {status['lost']}")
    return 0


def _header(settings: RunSettings, status: dict[str, Any]) -> list[str]:
    policy = titled(status["policy"], status["replicas"])
    seats = seats_in(status)
    # The lines below name no partition then, and `move` asks for it.
    only_partition = [f"partition {next(iter(seats)).partition}"] if in_one_piece(seats) else []
    return [
        f"run {settings.run}",
        f"flow {status['flow']}",
        f"policy {policy}",
        f"epoch {status['epoch']}",
        *only_partition,
        *_versions(status),
    ]


def _versions(status: dict[str, Any]) -> list[str]:
    """Which version of the flow it is, once there was more than one."""
    version, candidate = status["version"], status["candidate"]
    if candidate is None:
        return [f"version {version}"] if version > 1 else []
    what = "which delivers" if candidate["live"] else "which catches up"
    return [f"version {version}, and beside it version {candidate['version']}, {what}"]


def _asked(settings: RunSettings) -> dict[str, Any]:
    try:
        return status_of(settings)
    except EnvironmentFailed as problem:
        raise EnvironmentFailed(_why_silent(settings, problem)) from None


def _why_silent(settings: RunSettings, problem: EnvironmentFailed) -> str:
    where = f"{settings.run} in {settings.folder}"
    if finished_file(settings.path).exists():
        return f"Run {where} has finished: every source has ended and everything is delivered."
    failed = failures(settings.path)
    logs = settings.path / "logs"
    if not lock_of_run(settings.path).is_held():
        return f"Run {where} {_how_ended(settings, failed)} {_how_to_go_on(settings)}"
    if "gateway" in failed:
        return (
            f"The gateway of run {where} failed: {failed['gateway']} It is started again and again, "
            "and the nodes keep their state."
        )
    return (
        f"Run {where} gives no status: it starts or hangs, or its gateway does. {problem} "
        f"Try again in a moment, or look into {logs}."
    )


def _how_ended(settings: RunSettings, failed: Mapping[str, str]) -> str:
    """How a run has ended that does not run and is not finished."""
    stopped = stopped_in(settings.path)
    if stopped is None:
        reasons = "".join(f" {name} failed: {why}" for name, why in failed.items())
        how = "" if reasons else " It was killed, or its machine went down."
        return f"broke off: it was not stopped.{reasons or how} Its logs are in {settings.path / 'logs'}."
    if stopped.all_saved:
        return "is stopped, in good order: every state is saved."
    if settings.saves:
        return (
            "is stopped, in good order. Not every state was saved then: it goes on from the snapshots before "
            "and from its log."
        )
    return "is stopped, in good order."


def _how_to_go_on(settings: RunSettings) -> str:
    if has_begun(settings) and not settings.saves:
        return "It saved no state, so it cannot go on. Start the flow again in a new folder."
    return f"Go on with: understudy run {settings.flow_path} --folder {settings.folder}"
