"""`understudy simulate`: random fault schedules in a simulated world, or every schedule of a small one, with
progress and a summary.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from understudy.flow.errors import UserError
from understudy.flow.policy import policy_named
from understudy.sim.checkers import Violation
from understudy.sim.explore import Bounds, explore
from understudy.sim.jobs import simulate_on
from understudy.sim.searching import Explored
from understudy.sim.seeds import Summary
from understudy.sim.shapes import small
from understudy.sim.upgrade_space import UpgradeBounds, explore_upgrades

T = TypeVar("T")

#: On a pipe, a line this often is progress enough.
_LINE_EVERY_S = 5.0


def execute(arguments: Namespace) -> int:
    wanted = {} if arguments.replicas is None else {"replicas": arguments.replicas}
    policy_named(arguments.policy, **wanted)
    if arguments.upgrades:
        _expect_upgradable(arguments)
    if arguments.explore is not None:
        return _explore(arguments)
    console = Console()
    if console.is_terminal:
        summary = _with_bar(arguments, console)
    else:
        summary = _with_lines(arguments)
    print(_summary_text(summary))
    again = f"--policy {summary.policy}"
    again += f" --replicas {summary.replicas}" if summary.replicas else ""
    again += " --upgrades" if summary.upgrades else ""
    for seed, violation in summary.violations:
        print(f"\nseed {seed} fails:\n{violation}\n")
        print(f"Run it again: understudy simulate {again} --seed {seed} --seeds 1")
    return 1 if summary.violations else 0


def _expect_upgradable(arguments: Namespace) -> None:
    if arguments.policy == "cluster":
        raise UserError(
            "The policy cluster is a baseline, and saves no state: an upgrade has nothing to begin with."
        )
    if arguments.explore is not None and (arguments.kills or arguments.saves or arguments.power_failures):
        raise UserError(
            "Of an upgrade, --explore tries crashes of the gateway alone. Leave out --kills, --saves and "
            "--power-failures, or leave out --explore: schedules of upgrades have every kind of fault."
        )


def _explore(arguments: Namespace) -> int:
    """Try every order of events in a small world."""
    try:
        said = _explore_upgrades(arguments) if arguments.upgrades else _explore_world(arguments)
    except Violation as violation:
        print(violation)
        return 1
    print(said)
    return 0


def _explore_world(arguments: Namespace) -> str:
    buckets, crashes = arguments.explore, arguments.gateway_crashes
    kills = 1 if arguments.kills is None else arguments.kills
    saves, powers = arguments.saves, arguments.power_failures
    if saves and arguments.policy == "cluster":
        raise UserError("The policy cluster is a baseline, and saves no state.")
    if powers and not saves:
        raise UserError("Without --saves nothing is left of the flow after a power failure.")
    setup = small(arguments.policy, buckets, arguments.replicas, saved=saves > 0)
    # With isolated replicas no standby is ever seated; one replica has no other to take the state from, if no
    # state is saved.
    spares = 0 if setup.isolated or (setup.replicas == 1 and not saves) else kills
    bounds = Bounds(setup, spares=spares, kills=kills, crashes=crashes, saves=saves, powers=powers)
    explored = explore(bounds, progress=_now_and_then(_explored_so_far))
    return (
        f"every schedule of {buckets} buckets with {kills} kills, {crashes} gateway crashes, {saves} saves "
        f"and {powers} power failures at any point: {_explored_in_all(explored)}"
    )


def _explore_upgrades(arguments: Namespace) -> str:
    buckets, crashes = arguments.explore, arguments.gateway_crashes
    bounds = UpgradeBounds(small(arguments.policy, buckets, arguments.replicas, saved=True), crashes=crashes)
    explored = explore_upgrades(bounds, progress=_now_and_then(_explored_so_far))
    return (
        f"every order of what the gateway does with {buckets} buckets while a flow is upgraded and taken "
        f"back, with {crashes} gateway crashes at any point: {_explored_in_all(explored)}"
    )


def _explored_in_all(explored: Explored) -> str:
    return (
        f"{explored.states:,} states, {explored.steps:,} steps, {explored.ends:,} ends in "
        f"{explored.seconds:.0f} s, no violation"
    )


def _explored_so_far(explored: Explored) -> str:
    return f"{explored.states:,} states, {explored.steps:,} steps"


def _with_bar(arguments: Namespace, console: Console) -> Summary:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("seeds", total=arguments.seeds)
        return _simulate(arguments, lambda summary: bar.update(task, completed=summary.seeds))


def _with_lines(arguments: Namespace) -> Summary:
    def so_far(summary: Summary) -> str:
        return f"{summary.seeds} of {arguments.seeds} seeds, {summary.steps} events"

    return _simulate(arguments, _now_and_then(so_far))


def _now_and_then(text_of: Callable[[T], str]) -> Callable[[T], None]:
    """Print the progress, but not every time."""
    last_s = time.monotonic()

    def tell(progress: T) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= _LINE_EVERY_S:
            last_s = time.monotonic()
            print(text_of(progress), flush=True)

    return tell


def _simulate(arguments: Namespace, progress: Callable[[Summary], None]) -> Summary:
    return simulate_on(
        min(arguments.jobs, arguments.seeds),
        arguments.policy,
        arguments.seeds,
        arguments.seed,
        replicas=arguments.replicas,
        upgrades=arguments.upgrades,
        progress=progress,
    )


def _summary_text(summary: Summary) -> str:
    faults = ", ".join(f"{count} {kind}" for kind, count in summary.faults.most_common()) or "none"
    happened = (
        ", ".join(f"{count} {what}" for what, count in summary.happened.most_common() if count) or "nothing"
    )
    upgraded = " with upgrades" if summary.upgrades else ""
    return "\n".join(
        [
            f"policy {summary.policy}{upgraded}: {summary.seeds} seeds in {summary.seconds:.1f} s, "
            f"{len(summary.violations) or 'no'} failing",
            f"  events     {summary.steps}",
            f"  buckets    {summary.buckets}",
            f"  faults     {sum(summary.faults.values())} ({faults})",
            f"  catch-ups  {summary.caught_up}",
            f"  happened   {happened}",
        ]
    )
