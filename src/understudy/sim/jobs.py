"""Schedules on several cores: each process takes a few seeds at a time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from time import perf_counter

from understudy.sim.seeds import Summary, simulate

#: A failing seed is heard of after so many others at most, and Ctrl-C waits no longer than they take.
SEEDS_AT_A_TIME = 20


def simulate_on(
    jobs: int,
    policy: str,
    seeds: int,
    start_seed: int = 0,
    *,
    replicas: int | None = None,
    upgrades: bool = False,
    progress: Callable[[Summary], None] | None = None,
) -> Summary:
    """`simulate` by so many processes. A seed that fails ends it, with what the others had begun."""
    if jobs == 1:
        return simulate(policy, seeds, start_seed, replicas=replicas, upgrades=upgrades, progress=progress)
    summary, began = Summary(policy, replicas, upgrades), perf_counter()
    some = partial(simulate, policy, replicas=replicas, upgrades=upgrades)
    end = start_seed + seeds
    starts = iter(range(start_seed, end, SEEDS_AT_A_TIME))
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin) as pool:

        def begin(count: int) -> set[Future[Summary]]:
            return {
                pool.submit(some, min(SEEDS_AT_A_TIME, end - start), start) for start in islice(starts, count)
            }

        running = begin(jobs)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                summary.add(each.result())
            summary.seconds = perf_counter() - began
            if progress is not None:
                progress(summary)
            if not summary.violations:
                running |= begin(len(done))
    return summary


def _begin() -> None:
    """In a new process: the parent alone reacts to Ctrl-C, and no process outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
