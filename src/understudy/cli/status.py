"""`understudy status`: how a run is doing, once."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from understudy.cli.folders import existing_folder
from understudy.cli.picture import figures, node_lines
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.gateway.process import FACT
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import status_at

CONNECT_TIMEOUT_S = 3.0


def execute(arguments: Namespace) -> int:
    settings = RunSettings.load(existing_folder(arguments.folder))
    status, ready = _asked(settings)
    if arguments.json:
        print(json.dumps({**status, "members": sorted(ready)}, indent=2))
        return 0
    print(f"run {settings.run}   flow {status['flow']}   policy {status['policy']}   epoch {status['epoch']}")
    for line in node_lines(status, ready, {}):
        parts = [f"{line.node:<12} {line.place:<10} {line.state:<14}", line.group]
        print(" ".join([*parts, "sends" if line.sends else ""]).rstrip())
    print(figures({}, status).sentence)
    if status["lost"]:
        print(f"The flow is lost: {status['lost']}")
    return 0


def _asked(settings: RunSettings) -> tuple[dict[str, Any], dict[str, str]]:
    """The gateway's status, and the nodes that are members with the names they were started under."""
    try:
        with Coordination(
            settings.zookeeper, settings.run, connect_timeout_s=CONNECT_TIMEOUT_S
        ) as coordination:
            facts = coordination.get_fact(FACT)
            members = coordination.members()
    except EnvironmentFailed as problem:
        raise EnvironmentFailed(
            f"Run {settings.run} in {settings.folder} is not running. {problem}"
        ) from None
    if not facts:
        raise EnvironmentFailed(f"Run {settings.run} has no gateway yet. Try again in a moment.")
    ready = {m.name: str(m.facts.get("node", m.name)) for m in members if m.kind == "node"}
    return status_at(str(facts["flight"])), ready
