"""`understudy kill`: lose a part of a run on purpose.

The run's processes are searched for on this machine: their command lines name the run's folder and the names
they were started under. A process that was stopped long enough is no member any more, and ZooKeeper itself
never was one, yet both are found. ZooKeeper knows roles, incarnations, and members of other machines. A
member's process id alone is never signalled: it may be a stranger's here.
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
from understudy.runtime.candidate import candidate_in
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.members import Member
from understudy.runtime.process_tree import signal_tree
from understudy.runtime.seating import ROLES, players, senders_in
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import status_of

_CONNECT_TIMEOUT_S = 3.0


def execute(arguments: Namespace) -> int:
    settings = run_in(arguments.folder)
    number = signal.Signals[f"SIG{arguments.signal}"]
    wanted = arguments.node
    try:
        known = _asked(settings)
    except EnvironmentFailed:
        # ZooKeeper may be what is stopped. Names that the machine's processes know still work.
        known = _Known({}, {}, (), {})
    playing = [wanted]
    if wanted in ROLES:
        playing = players(wanted, known.seats, _senders(settings), known.nodes)
    # Searched for after the questions, which may take seconds: a process may have been started meanwhile.
    found = processes_of(settings)
    if not playing:
        raise UserError(f"No node is {wanted} in run {settings.run} now. {_who(found, known.pids)}")
    if len(playing) > 1:
        raise UserError(
            f"In run {settings.run} several nodes are each {wanted} of some partitions: "
            f"{', '.join(playing)}. Name one."
        )
    (wanted,) = playing
    pid = _pid_here(wanted, known, found)
    if pid is None and wanted in known.pids:
        raise UserError(
            f"{wanted} is process {known.pids[wanted]}, and that is none of this run's on this machine: "
            "it has just ended, or it is another machine's. Run this command there."
        )
    if pid is None:
        raise UserError(f"There is no {wanted!r} in run {settings.run}. {_who(found, known.pids)}")
    signal_tree(pid, number)
    print(f"sent {number.name} to {wanted} (process {pid}) and all that it started")
    return 0


@dataclass(frozen=True)
class _Known:
    """What ZooKeeper knows: process ids by every name a member goes by, nodes, and seats as last decided.
    While the run is upgraded, nodes and seats are those of the version that it goes on with.

    `started_as` maps a member's own name, which counts incarnations, to the name its process was started
    under.
    """

    pids: Mapping[str, int]
    started_as: Mapping[str, str]
    nodes: Sequence[str]
    seats: Mapping[Copy, Seat]


def _asked(settings: RunSettings) -> _Known:
    with _connected(settings) as coordination:
        members = coordination.members()
        stored = coordination.view()
    pids: dict[str, int] = {}
    started_as: dict[str, str] = {}
    for member in (*members, *_members_beside(settings)):
        name = "gateway" if member.kind == "gateway" else str(member.facts.get("node", member.name))
        pids[member.name] = pids[name] = int(member.facts["pid"])
        started_as[member.name] = name
    nodes = [member.name for member in members if member.kind == "node"]
    return _Known(pids, started_as, nodes, {} if stored is None else stored.view.seats)


def _connected(settings: RunSettings) -> Coordination:
    return Coordination(settings.zookeeper, settings.coordinates, connect_timeout_s=_CONNECT_TIMEOUT_S)


def _members_beside(settings: RunSettings) -> list[Member]:
    """The nodes of a version that runs beside the one that the run goes on with."""
    candidate = candidate_in(settings.path)
    if candidate is None:
        return []
    with _connected(candidate.settings) as coordination:
        return [member for member in coordination.members() if member.kind == "node"]


def _senders(settings: RunSettings) -> dict[Partition, int | None]:
    try:
        return senders_in(status_of(settings))
    except EnvironmentFailed:
        return {}


def _pid_here(wanted: str, known: _Known, found: Mapping[str, Sequence[int]]) -> int | None:
    """The process on this machine that goes by a name; None if there is none."""
    here = found.get(known.started_as.get(wanted, wanted), ())
    if known.pids.get(wanted) in here:
        return known.pids[wanted]
    # For a while after its end ZooKeeper still knows a member, and not yet the process that was started in
    # its place. The name of an incarnation, which no process was started under, means that one only.
    return found[wanted][-1] if wanted in found else None


def processes_of(settings: RunSettings) -> dict[str, list[int]]:
    """The run's processes on this machine, by the names they were started under; the youngest comes last.

    There may be several of a name: what a process has forked and left behind lives on under its command line.
    """
    named: dict[int, tuple[str, psutil.Process]] = {}
    for process in psutil.process_iter(["cmdline", "ppid", "create_time"]):
        name = _name_in(process.info["cmdline"] or [], settings)
        if name is not None:
            named[process.pid] = name, process
    found: dict[str, list[int]] = {}
    for name, process in sorted(named.values(), key=lambda each: each[1].info["create_time"]):
        parent = named.get(process.info["ppid"])
        # What a process forks, a worker of a sink's for example, has its parent's command line.
        if parent is None or parent[0] != name:
            found.setdefault(name, []).append(process.pid)
    return found


def _name_in(command: Sequence[str], settings: RunSettings) -> str | None:
    """The name under which the run started a process with this command line; None if the run did not."""
    if "understudy.runtime.main" in command and settings.folder in command:
        rest = command[command.index("understudy.runtime.main") + 1 :]
        return "gateway" if rest[0] == "gateway" else rest[rest.index(settings.folder) + 1]
    if command and command[-1] == str(settings.path / "zookeeper" / "zoo.cfg") and "java" in command[0]:
        return "zookeeper"
    return None


def _who(found: Mapping[str, object], members: Mapping[str, int]) -> str:
    # Members go by two names; the one with the incarnation is for those who know it.
    names = sorted(name for name in found.keys() | members.keys() if "." not in name)
    return f"There are: {', '.join(names)}." if names else "Nothing of it is running on this machine."
