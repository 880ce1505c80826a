"""Real processes, harmed under load: nine kinds of harm, each several times, history and output checked
each time.

    python studies/chaos.py [--repeat 5] [--only NAME] [--keep]

Each kind of harm has a run of its own at 10,000 rows a second: two replicas, or three where two are killed
at once, and a standby; dead nodes return as standbys. After every single harm the run must become steady
again, and the history so far must pass every checker. When the run has ended, its output must equal the
ground truth, row by row.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable

from harmed import outcome_of, traffic_trial
from harness import check_history, remove, save, say, steady
from understudy.runtime.trial import Trial


def kill_primary(trial: Trial) -> None:
    trial.kill("sender")


def kill_secondary(trial: Trial) -> None:
    trial.kill("holder")


def kill_primary_then_survivor(trial: Trial) -> None:
    trial.kill("sender")
    steady(trial)
    trial.kill("sender")


def kill_standby_during_catch_up(trial: Trial) -> None:
    trial.kill("holder")
    trial.wait(
        "a standby that is catching up", lambda s: any(x["status"] == "STDBY" for x in s["seats"].values())
    )
    trial.kill("standby")


def stop_primary_for_5_s(trial: Trial) -> None:
    name = trial.kill("sender", signal.SIGSTOP)
    time.sleep(5)
    trial.kill(name, signal.SIGCONT)


def kill_gateway(trial: Trial) -> None:
    trial.kill("gateway")


def kill_zookeeper_then_primary(trial: Trial) -> None:
    trial.kill("zookeeper")
    time.sleep(3)
    trial.restart("zookeeper")
    trial.kill("sender")


def kill_two_at_once(trial: Trial) -> None:
    trial.kill_at_once(["sender", "holder"])


def kill_secondary_and_stop_gateway(trial: Trial) -> None:
    trial.kill("holder")
    # Before it can report the death: it wakes without a sign from the healthy replica either.
    trial.kill("gateway", signal.SIGSTOP)
    time.sleep(5)
    trial.kill("gateway", signal.SIGCONT)


#: Runs with another number of replicas than two.
REPLICAS = {"kill two of three replicas at once": 3}

HARMS: dict[str, Callable[[Trial], None]] = {
    "kill the primary": kill_primary,
    "kill the secondary": kill_secondary,
    "kill the primary, catch up, kill the survivor": kill_primary_then_survivor,
    "kill the standby during catch-up": kill_standby_during_catch_up,
    "stop the primary for 5 s": stop_primary_for_5_s,
    "kill the gateway": kill_gateway,
    "kill ZooKeeper, restart it, kill the primary": kill_zookeeper_then_primary,
    "kill two of three replicas at once": kill_two_at_once,
    "kill the secondary, stop the gateway for 5 s": kill_secondary_and_stop_gateway,
}


def one_kind(name: str, harm: Callable[[Trial], None], repeat: int, keep: bool) -> dict[str, object]:
    replicas = REPLICAS.get(name, 2)
    with traffic_trial(nodes=replicas, replicas=replicas) as (trial, folder):
        for turn in range(1, repeat + 1):
            steady(trial)
            say(f"{name}: {turn} of {repeat}")
            harm(trial)
            steady(trial)
            check_history(folder)
    outcome = outcome_of(trial, folder)
    silences = ", ".join(f"{s:.2f}" for s in outcome.silences_s)
    say(f"{name}: {outcome.verdict}; silences {silences} s")
    if keep:
        say(f"kept in {folder}")
    else:
        remove(folder)
    silences_s = [round(each, 3) for each in outcome.silences_s]
    return {**outcome.verdict, "repeated": repeat, "silences_s": silences_s}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", help="a word from the name of the harm")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    arguments = parser.parse_args()
    results = {}
    for name, harm in HARMS.items():
        if arguments.only and arguments.only not in name:
            continue
        results[name] = one_kind(name, harm, arguments.repeat, arguments.keep)
        save("chaos", results)
    for name, result in results.items():
        print(f"{name:56} {result}")


if __name__ == "__main__":
    main()
