"""`understudy kill`: lose a part of a run on purpose.

A name is looked up among the members in ZooKeeper, which know their process ids. A process that was stopped
long enough is no member any more, and ZooKeeper itself never was one, so the machine's processes are searched
too: their command lines name the run's folder.
"""

from __future__ import annotations

import signal
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from understudy.cli.folders import run_in
from understudy.core.shape.partition import Copy, Partition
from understudy.core.view.view import Seat
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.process_tree import signal_tree
from understudy.runtime.seating import ROLES, players, senders_in
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import status_of

_CONNECT_TIMEOUT_S = 3.0


def execute(arguments: Namespace) -> int:
    settings = run_in(arguments.folder)
    number = signal.Signals[f"SIG{arguments.signal}"]
    found = processes_of(settings)
    wanted = arguments.node
    try:
        known = _asked(settings)
    except EnvironmentFailed:
        # ZooKeeper may be what is stopped. Names that the machine's processes know still work.
        known = _Known({}, (), {})
    if wanted in ROLES:
        playing = players(wanted, known.seats, _senders(settings), known.nodes)
        if not playing:
            raise UserError(f"No node is {wanted} in run {settings.run} now. {_who(found, known.pids)}")
        if len(playing) > 1:
            raise UserError(
                f"In run {settings.run} several nodes are each {wanted} of some partitions: "
                f"{', '.join(playing)}. Name one."
            )
        (wanted,) = playing
    pid = known.pids.get(wanted) or found.get(wanted)
    if pid is None:
        raise UserError(f"There is no {wanted!r} in run {settings.run}. {_who(found, known.pids)}")
    if pid not in found.values():
        # The number may well be that of another program here.
        raise UserError(
            f"{wanted} is process {pid}, and that is none of this run's on this machine: it has just ended, "
            "or it is another machine's. Run this command there."
        )
    signal_tree(pid, number)
    print(f"sent {number.name} to {wanted} (process {pid}) and all that it started")
    return 0


@dataclass(frozen=True)
class _Known:
    """What ZooKeeper knows: process ids by every name a member goes by, nodes, and seats as last decided."""

    pids: Mapping[str, int]
    nodes: Sequence[str]
    seats: Mapping[Copy, Seat]


def _asked(settings: RunSettings) -> _Known:
    with Coordination(settings.zookeeper, settings.run, connect_timeout_s=_CONNECT_TIMEOUT_S) as coordination:
        members = coordination.members()
        stored = coordination.view()
    pids: dict[str, int] = {}
    for member in members:
        name = "gateway" if member.kind == "gateway" else str(member.facts.get("node", member.name))
        pids[member.name] = pids[name] = int(member.facts["pid"])
    nodes = [member.name for member in members if member.kind == "node"]
    return _Known(pids, nodes, {} if stored is None else stored.view.seats)


def _senders(settings: RunSettings) -> dict[Partition, int | None]:
    try:
        return senders_in(status_of(settings))
    except EnvironmentFailed:
        return {}


def processes_of(settings: RunSettings) -> dict[str, int]:
    """The run's processes on this machine, by the names they were started under."""
    found: dict[str, int] = {}
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "understudy.runtime.main" in command and settings.folder in command:
            rest = command[command.index("understudy.runtime.main") + 1 :]
            name = "gateway" if rest[0] == "gateway" else rest[rest.index(settings.folder) + 1]
            found[name] = process.pid
        elif command and command[-1] == str(settings.path / "zookeeper" / "zoo.cfg") and "java" in command[0]:
            found["zookeeper"] = process.pid
    return found


def _who(found: Mapping[str, int], members: Mapping[str, int]) -> str:
    # Members go by two names; the one with the incarnation is for those who know it.
    names = sorted(name for name in found.keys() | members.keys() if "." not in name)
    return f"There are: {', '.join(names)}." if names else "Nothing of it is running on this machine."
