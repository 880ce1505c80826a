"""`understudy kill`: lose a part of a run on purpose.

A name is looked up among the members in ZooKeeper, which know their process ids. A process that was stopped
long enough is no member any more, and ZooKeeper itself never was one, so the machine's processes are searched
too: their command lines name the run's folder.
"""

from __future__ import annotations

import signal
from argparse import Namespace

import psutil

from understudy.cli.folders import existing_folder
from understudy.core.view import Slot, View
from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.flow.policy import policy_named
from understudy.runtime.coordination.client import Coordination
from understudy.runtime.coordination.controllers import view_type_of
from understudy.runtime.process_tree import signal_tree
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import status_of

_SLOTS = {"primary": Slot.PRIM, "secondary": Slot.SEC}
_SENDER = "sender"
_CONNECT_TIMEOUT_S = 3.0


def execute(arguments: Namespace) -> int:
    settings = RunSettings.load(existing_folder(arguments.folder))
    number = signal.Signals[f"SIG{arguments.signal}"]
    found = processes_of(settings)
    wanted = arguments.node
    try:
        members, role_of = _members(settings)
    except EnvironmentFailed:
        # ZooKeeper may be what is stopped. Names that the machine's processes know still work.
        members, role_of = {}, {}
    if wanted in _SLOTS or wanted == _SENDER:
        if policy_named(settings.policy).partitioned:
            raise UserError(
                f"In run {settings.run} every node is {wanted} of some partitions. Name a node. "
                f"{_who(found, members)}"
            )
        if wanted not in role_of:
            raise UserError(f"Nobody is {wanted} in run {settings.run} now. {_who(found, members)}")
        wanted = role_of[wanted]
    pid = members.get(wanted) or found.get(wanted)
    if pid is None:
        raise UserError(f"There is no {wanted!r} in run {settings.run}. {_who(found, members)}")
    if not psutil.pid_exists(pid):
        raise UserError(f"{wanted} is process {pid} of another machine. Run this command there.")
    signal_tree(pid, number)
    print(f"sent {number.name} to {wanted} (process {pid}) and all that it started")
    return 0


def _members(settings: RunSettings) -> tuple[dict[str, int], dict[str, str]]:
    """Process ids by every name a member goes by, and member names by role."""
    view_type = view_type_of(settings.policy)
    with Coordination(
        settings.zookeeper, settings.run, connect_timeout_s=_CONNECT_TIMEOUT_S, view_type=view_type
    ) as coordination:
        members = coordination.members()
        stored = coordination.view()
    pids: dict[str, int] = {}
    for member in members:
        name = "gateway" if member.kind == "gateway" else str(member.facts.get("node", member.name))
        pids[member.name] = pids[name] = int(member.facts["pid"])
    roles: dict[str, str] = {}
    if stored is not None and isinstance(stored.view, View):
        seats = stored.view.seats
        roles = {
            role: seats[slot].node for role, slot in _SLOTS.items() if slot in seats and seats[slot].alive
        }
        try:
            sender = status_of(settings)["sender"]
        except EnvironmentFailed:
            sender = None
        if sender is not None:
            roles[_SENDER] = seats[Slot(sender)].node
    return pids, roles


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


def _who(found: dict[str, int], members: dict[str, int]) -> str:
    # Members go by two names; the one with the incarnation is for those who know it.
    names = sorted(name for name in found.keys() | members.keys() if "." not in name)
    return f"There are: {', '.join(names)}." if names else "Nothing of it is running on this machine."
