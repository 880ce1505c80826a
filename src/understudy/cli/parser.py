"""The arguments of `understudy`. Only argparse is needed here, so that help comes at once."""

from __future__ import annotations

import argparse
import textwrap
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from understudy.core.shape.partition import Copy, Partition
from understudy.flow.policy import POLICIES, REPLICAS_MAX, SHIP_MS_MIN, SILENCE_MS_MIN, Policy

#: Spark refuses to start with less than 450 MB of what Java calls its memory, which is less than its heap.
_HEAP_MB_MIN = 480
SIGNALS = ("KILL", "STOP", "CONT", "TERM")
#: What replicas 0 and 1 of a pair are called.
_REPLICAS = {"PRIM": 0, "SEC": 1}


class _Command(ArgumentParser):
    """Takes arguments and options in any order, and reports what it does not know with its own usage."""

    _mixing = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        if self._mixing:
            # Each of the two passes, one for options and one for arguments.
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


class _Version(argparse.Action):
    """Looked up only when it is asked for."""

    def __call__(self, parser: ArgumentParser, *_: Any) -> None:
        print(f"understudy {version('understudy')}")
        parser.exit()


def parser() -> ArgumentParser:
    command_line = ArgumentParser(
        prog="understudy",
        description="Keeps Spark streaming queries running while machines, processes and networks fail.",
        epilog="Each command has its own help: understudy run --help",
    )
    command_line.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = command_line.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Command
    )
    of_runs = (_run, _stop, _upgrade, _demo, _status, _kill, _move, _drain, _check)
    for add in (_setup, *of_runs, _simulate, _explain):
        add(commands)
    return command_line


def _command(
    commands: Any, name: str, summary: str, description: str, example: str, *, exit_codes: str = ""
) -> ArgumentParser:
    ending = f"exit code:\n{textwrap.indent(textwrap.fill(exit_codes, 78), '  ')}\n\n" if exit_codes else ""
    made: ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(f"{summary[0].upper()}{summary[1:]}. {description}", 80),
        epilog=f"{ending}example:\n  {example}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    return made


def _setup(commands: Any) -> None:
    _command(
        commands,
        "setup",
        "prepare this environment once, so that every later start is quicker",
        "Java keeps what it learns about Spark's classes in a file. It takes a minute or two; "
        "nothing depends on it.",
        "understudy setup",
    )


def _run(commands: Any) -> None:
    made = _command(
        commands,
        "run",
        "run a flow on this machine, as replicas that cover for each other",
        "Starts ZooKeeper, a gateway and the nodes, and ends them all when the flow's sources have "
        "ended, or on Ctrl-C. With the folder of a run that was stopped or that broke, the run goes on.",
        "understudy run sessions.py --policy pair --replicas 3 --standby 1\n"
        "  understudy run sessions.py --policy flux --nodes 4 --partitions 4",
        exit_codes="0 finished, or --seconds are over; 1 lost; 2 a mistake in the flow or the options; 3 the "
        "environment failed; stopped: 130 by Ctrl-C, 143 by `understudy stop`, 129 by a closed terminal",
    )
    made.add_argument("flow", metavar="FLOW.py", help="the Python file that builds the flow")
    made.add_argument("--policy", choices=sorted(POLICIES), help="how the flow is protected (pair)")
    _replicas(made)
    made.add_argument(
        "--nodes",
        type=_count(1),
        metavar="N",
        help="nodes that take seats at first (flux and cluster: 4; else one for each replica). Those that "
        "find no seat are standbys",
    )
    made.add_argument(
        "--standby",
        type=_count(0),
        metavar="N",
        help="nodes that wait to take a place (1 for pair and flux, else 0)",
    )
    made.add_argument(
        "--partitions",
        type=_count(1),
        metavar="N",
        help="shares of each fragment (flux: as many as nodes; cluster: half as many)",
    )
    made.add_argument(
        "--silence-ms",
        type=_count(SILENCE_MS_MIN),
        metavar="MS",
        help=f"a replica that hangs this long counts as dead ({Policy.silence_ms})",
    )
    made.add_argument(
        "--ship-ms",
        type=_count(SHIP_MS_MIN),
        metavar="MS",
        help="passive: how often snapshots are shipped to the backups (500)",
    )
    made.add_argument(
        "--zookeeper", type=_address, metavar="HOST:PORT", help="use this ZooKeeper instead of an own one"
    )
    made.add_argument(
        "--folder",
        metavar="DIR",
        help="the run's folder (a new one under runs/). If it holds a run that was stopped, or that broke, "
        "that run goes on, as it was unless other options say otherwise",
    )
    made.add_argument(
        "--snapshot-every",
        type=_seconds,
        metavar="S",
        help="how often the state is saved, so that the run can go on from it (10); 0: never",
    )
    made.add_argument(
        "--store",
        metavar="URL",
        help="where the state is saved: a folder, or a URL such as s3://bucket/path (in the run's folder)",
    )
    made.add_argument("--port", type=_count(0, 65535), metavar="P", help="the gateway's port")
    made.add_argument(
        "--heap", type=_count(_HEAP_MB_MIN), metavar="MB", help="memory for each node's Java (640)"
    )
    made.add_argument(
        "--new-code",
        action="store_true",
        help="go on with the flow file as it is, also if an upgrade to it was taken back or cut off",
    )
    made.add_argument("--no-history", action="store_true", help="do not record what happens for `check`")
    made.add_argument("--seconds", type=_positive, metavar="S", help="end after this long, start included")
    made.add_argument("--plain", action="store_true", help="lines of text instead of a live view")


def _stop(commands: Any) -> None:
    made = _command(
        commands,
        "stop",
        "stop a run in good order, with its state saved",
        "As Ctrl-C at `understudy run` does. The same `understudy run FLOW.py --folder RUN` goes on with it.",
        "understudy stop runs/sessions-20260101-120000",
    )
    made.add_argument("folder", nargs="?", metavar="RUN", help="the run's folder (the newest under runs/)")


def _upgrade(commands: Any) -> None:
    made = _command(
        commands,
        "upgrade",
        "let a changed flow go live while rows flow",
        "The new version starts beside the old one, from its saved state, catches up, and takes over at a "
        "bucket: nothing lost, nothing twice, no silence. It is refused if the state does not fit, and taken "
        "back if it fails. Ctrl-C takes it back, too. Exit code 1 means that it was taken back. If this "
        "command is killed, or its terminal is closed, the upgrade goes on: the run carries it out.",
        "understudy upgrade sessions.py runs/sessions-20260101-120000",
    )
    made.add_argument("flow", metavar="FLOW.py", help="the Python file that builds the changed flow")
    made.add_argument("folder", nargs="?", metavar="RUN_FOLDER", help="the run's folder (the newest)")
    made.add_argument(
        "--trial",
        type=_seconds,
        default=10.0,
        metavar="S",
        help="how long the old version stands by after the new one has taken over (10)",
    )


def _replicas(made: ArgumentParser) -> None:
    adjustable = sorted(name for name, policy in POLICIES.items() if "replicas" in policy.parameters)
    made.add_argument(
        "--replicas",
        type=_count(2, REPLICAS_MAX),
        metavar="R",
        help=f"copies of everything, with policy {' or '.join(adjustable)} (2)",
    )


def _demo(commands: Any) -> None:
    made = _command(
        commands,
        "demo",
        "run a flow, kill two of its machines, and prove that nothing was lost",
        "Takes two to three minutes. Ends with a verdict against a batch job over the same input, "
        "and a picture.",
        "understudy demo\n  understudy demo --policy flux --seconds 150 --rate 5000",
    )
    made.add_argument(
        "--policy",
        choices=("pair", "flux"),
        default="pair",
        help="replicas of the whole flow, or partitions on four nodes with as many copies each (pair)",
    )
    _replicas(made)
    made.add_argument("--folder", metavar="DIR", help="the run's folder (a new one under runs/)")
    made.add_argument("--seconds", type=_positive, default=70.0, metavar="S", help="seconds of input (70)")
    made.add_argument(
        "--rate", type=_positive, default=10_000.0, metavar="R", help="packets per second (10000)"
    )
    made.add_argument(
        "--heap", type=_count(_HEAP_MB_MIN), default=512, metavar="MB", help="memory for each node's Java"
    )


def _status(commands: Any) -> None:
    made = _command(
        commands,
        "status",
        "show how a run is doing",
        "The newest run under runs/ unless a folder is given.",
        "understudy status --json",
    )
    made.add_argument("folder", nargs="?", metavar="RUN_FOLDER", help="the run's folder")
    made.add_argument("--json", action="store_true", help="everything that is known, as JSON")


def _kill(commands: Any) -> None:
    made = _command(
        commands,
        "kill",
        "chaos on purpose: kill or freeze a part of a run",
        "The process and all that it started get the signal, as if their machine had failed.",
        "understudy kill primary\n  understudy kill node-2 --signal STOP",
    )
    made.add_argument(
        "node",
        metavar="NODE",
        help="node-1, gateway, zookeeper, or a role: primary, secondary, sender, holder, standby",
    )
    made.add_argument("folder", nargs="?", metavar="RUN_FOLDER", help="the run's folder (the newest)")
    made.add_argument("--signal", choices=SIGNALS, default="KILL", help="what to send (KILL)")


def _move(commands: Any) -> None:
    made = _command(
        commands,
        "move",
        "move a copy of a partition to another node while the flow runs",
        "Where a node runs the whole flow, that is the one partition. While a copy moves, its partition has "
        "one copy less. Waits until the copy is active there. Ctrl-C ends the waiting, not the move. "
        "Exit code 1 means that it was declined or has become impossible.",
        "understudy move sessions/0 node-3\n  understudy move sessions/0:1 node-3 --no-wait",
    )
    made.add_argument(
        "partition",
        type=_partition,
        metavar="PARTITION",
        help="sessions/0, or sessions/0:1 for its replica 1; without that the copy on the fuller node",
    )
    made.add_argument("node", metavar="NODE", help="where it is to sit: node-3")
    made.add_argument("folder", nargs="?", metavar="RUN_FOLDER", help="the run's folder (the newest)")
    made.add_argument("--no-wait", action="store_true", help="only ask for it")


def _drain(commands: Any) -> None:
    made = _command(
        commands,
        "drain",
        "move everything away from a node, so that it can be stopped",
        "Waits until the node is empty. Ctrl-C ends the waiting, not the moves. Exit code 1 means that it "
        "was declined or has become impossible.",
        "understudy drain node-3\n  understudy drain node-3 --undo",
    )
    made.add_argument("node", metavar="NODE", help="node-3")
    made.add_argument("folder", nargs="?", metavar="RUN_FOLDER", help="the run's folder (the newest)")
    made.add_argument("--undo", action="store_true", help="the node may be given copies again")
    made.add_argument("--no-wait", action="store_true", help="only ask for it")


def _check(commands: Any) -> None:
    made = _command(
        commands,
        "check",
        "judge what a run recorded: nothing lost, nothing twice, all in order",
        "Files are taken as the parts of one run; each folder is a run of its own. Exit code 1 "
        "means a violation, records that are missing, or a flow that was lost.",
        "understudy check runs/sessions-20260101-120000",
    )
    made.add_argument("history", nargs="+", metavar="HISTORY", help="a run's folder, or its history files")


def _simulate(commands: Any) -> None:
    made = _command(
        commands,
        "simulate",
        "run the protocols under random faults in virtual time",
        "One seed makes one schedule, with every kind of fault. A seed that fails is printed and can be run "
        "again. With --explore, every schedule of a world of so many buckets is tried instead: of one "
        "partition, or with the policies flux and cluster of a producer and a consumer.",
        "understudy simulate --policy pair --seeds 1000\n"
        "  understudy simulate --policy pair --upgrades --seeds 1000\n"
        "  understudy simulate --policy pair --replicas 3 --seeds 1000\n"
        "  understudy simulate --policy flux --explore 1 --kills 0\n"
        "  understudy simulate --policy none --explore 2 --saves 2 --kills 0 --power-failures 1",
    )
    made.add_argument("--policy", choices=sorted(POLICIES), default="pair", help="the policy to try")
    _replicas(made)
    made.add_argument("--seeds", type=_count(1), default=1000, metavar="N", help="how many seeds (1000)")
    made.add_argument("--seed", type=_count(0), default=0, metavar="S", help="the first seed (0)")
    made.add_argument("--jobs", type=_count(1), default=1, metavar="N", help="processes that share them (1)")
    made.add_argument(
        "--upgrades",
        action="store_true",
        help="with an operator who upgrades the flow, turns to its next version and back. With --explore: "
        "every order of what the gateway does, and no kills",
    )
    made.add_argument(
        "--explore", type=_count(1), metavar="BUCKETS", help="try every schedule of so many buckets"
    )
    made.add_argument("--kills", type=_count(0), metavar="N", help="with --explore: kills (1)")
    made.add_argument(
        "--gateway-crashes", type=_count(0), default=0, metavar="N", help="with --explore: crashes (0)"
    )
    made.add_argument(
        "--saves",
        type=_count(0),
        default=0,
        metavar="N",
        help="with --explore: how often state is saved in a store (0); with it all copies may be lost",
    )
    made.add_argument(
        "--power-failures", type=_count(0), default=0, metavar="N", help="with --saves: everything dies (0)"
    )


def _explain(commands: Any) -> None:
    made = _command(
        commands,
        "explain",
        "print what a flow file builds",
        "Nothing is started, so what the fragments do is not looked at.",
        "understudy explain sessions.py",
    )
    made.add_argument("flow", metavar="FLOW.py", help="the Python file that builds the flow")


def _count(least: int, most: int | None = None) -> Any:
    def count(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least or (most is not None and number > most):
            limit = f"at least {least}" if most is None else f"from {least} to {most}"
            raise ArgumentTypeError(f"must be {limit}, not {number}")
        return number

    return count


def _partition(text: str) -> tuple[Partition, int | None]:
    """A partition, and the replica of the copy that is meant, if one is."""
    name, colon, replica = text.rpartition(":")
    try:
        if colon and not replica.isdecimal():
            text = f"{name}:{_REPLICAS[replica]}"
        if colon:
            copy = Copy.of(text)
            return copy.partition, copy.replica
        return Partition.of(text), None
    except (KeyError, ValueError):
        raise ArgumentTypeError(f"{text!r} is not a partition; write sessions/0 or sessions/0:1") from None


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (number == 0 or 0.1 <= number < 1e6):
        raise argparse.ArgumentTypeError(f"must be 0, or a number of seconds from 0.1 on, not {text!r}")
    return number


def _address(text: str) -> str:
    for part in text.split(","):
        host, _, port = part.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise argparse.ArgumentTypeError(f"{part!r} is not HOST:PORT")
    return text
