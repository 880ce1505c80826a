"""Orphans: the processes that a killed command leaves behind. There should be none.

    python studies/orphans.py [--only NAME] [--signals KILL,TERM] [--moments WORD,WORD]

`understudy run`, `understudy demo` and every study that starts processes are killed, one at a time, with
SIGKILL and with SIGTERM, in four moments: when their first Java starts, when the first Spark starts, when all
of it has run for a while, and while it ends because of Ctrl-C. Only the command itself is killed; all that it
started must end by itself. Counted are the processes that still run 10 s later.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from descendants import Descendants
from harness import HERE, RESULTS, TRAFFIC, remove, save, say
from understudy.runtime.process import PR_SET_PDEATHSIG

LEFT_AFTER_S = 10.0
#: How long a run goes on before it counts as running: every node is then warming up, or further.
RUNNING_S = 12.0
#: How long the command may go on with its own end before it is killed.
ENDING_S = 0.1
TIMEOUT_S = 120.0

#: A study that starts a gateway beside a ZooKeeper, and no node.
WITHOUT_SPARK = ("restart.py",)

CLI = (sys.executable, "-m", "understudy.cli.main")


def commands(folder: Path) -> dict[str, list[str]]:
    """The commands to kill, by name. All of these would go on for minutes."""
    studies = {
        "chaos.py": [],
        "failover.py": [],
        "overhead.py": [],
        "flux_overhead.py": ["--repeat", "1"],
        "flux_recovery.py": [],
        "soak.py": [],
        "fragments.py": [],
        "restart.py": [],
    }
    return {
        "understudy run": [*CLI, "run", str(TRAFFIC), "--folder", str(folder / "run"), "--plain"],
        "understudy run, flux": [
            *[*CLI, "run", str(HERE / "firewall.py"), "--folder", str(folder / "run"), "--plain"],
            *["--policy", "flux"],
        ],
        "understudy demo": [*CLI, "demo", "--folder", str(folder / "demo")],
        **{name: [sys.executable, str(HERE / name), *options] for name, options in studies.items()},
    }


def end_with_study() -> None:
    """In a command that begins: end when this study does, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def javas(started: Descendants, word: str) -> int:
    """How many of them are Java with this word on their command line."""
    count = 0
    for process in started.running():
        try:
            line = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        count += "java" in Path(line[0] if line else "").name and any(word in part for part in line)
    return count


def await_java(command: subprocess.Popen[bytes], started: Descendants, word: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not javas(started, word):
        if command.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"there was no Java with {word!r}; the command's output is above")
        time.sleep(0.02)


@dataclass(frozen=True)
class Moment:
    """When a command is killed: so long after its first Java with this word has started."""

    java: str
    wait_s: float = 0.0
    #: Whether it has just been asked to end, by Ctrl-C.
    ending: bool = False


SPARK = "SparkSubmit"
MOMENTS = {
    "first Java starts": Moment(""),
    "Spark starts": Moment(SPARK),
    "running": Moment(SPARK, RUNNING_S),
    "ending": Moment(SPARK, RUNNING_S, ending=True),
}


def await_moment(name: str, command: subprocess.Popen[bytes], started: Descendants, moment: Moment) -> None:
    await_java(command, started, "" if name in WITHOUT_SPARK else moment.java)
    time.sleep(moment.wait_s)
    if moment.ending:
        command.send_signal(signal.SIGINT)
        time.sleep(ENDING_S)


def killed(name: str, number: signal.Signals, moment: str) -> dict[str, Any]:
    """Start the command, kill it in that moment, and count what it leaves."""
    folder = Path(tempfile.mkdtemp(prefix="understudy-orphans-"))
    started = Descendants()
    environment = {
        **started.environment,
        "TMPDIR": str(folder),
        "TRAFFIC_OUTPUT": str(folder / "out"),
        "FIREWALL_OUTPUT": str(folder / "out"),
    }
    with (folder / "log").open("ab") as log:
        command = subprocess.Popen(
            commands(folder)[name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            preexec_fn=end_with_study,  # noqa: PLW1509 - this process has one thread
        )
    try:
        await_moment(name, command, started, MOMENTS[moment])
        before = len(started.running())
        command.send_signal(number)
        at_s = time.monotonic()
        while started.running() and time.monotonic() - at_s < LEFT_AFTER_S:
            time.sleep(0.1)
        gone_s = time.monotonic() - at_s
        left = started.running()
        lines = [" ".join(process.cmdline())[:120] for process in left]
    except BaseException:
        print((folder / "log").read_text()[-2_000:])
        raise
    finally:
        for process in started.running():
            process.kill()
        command.wait()
        remove(folder)
    return {
        "command": name,
        "signal": number.name,
        "moment": moment,
        "before": before,
        "left": len(left),
        "gone_after_s": None if left else round(gone_s, 1),
        "who_is_left": lines,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="a word from the names of the commands")
    parser.add_argument("--signals", default="KILL,TERM")
    parser.add_argument("--moments", default=",".join(MOMENTS), help="with commas")
    arguments = parser.parse_args()
    results = []
    for name, moment in product(commands(Path()), arguments.moments.split(",")):
        if arguments.only in name and not (name in WITHOUT_SPARK and moment == "Spark starts"):
            for signal_name in arguments.signals.split(","):
                results.append(killed(name, signal.Signals[f"SIG{signal_name}"], moment))
                say(row(results[-1]))
                keep(results[-1])
    print(f"\n{'command':22} {'signal':8} {'moment':18} {'before':>6} {'left':>5} {'gone after':>11}")
    for result in results:
        print(row(result))
    print(f"{sum(result['left'] for result in results)} processes left in {len(results)} kills")


def keep(result: dict[str, Any]) -> None:
    """Put a result in the place of the former one of the same kill."""
    file = RESULTS / "orphans.json"
    former = json.loads(file.read_text())["kills"] if file.exists() else []
    which = ("command", "moment", "signal")
    others = [each for each in former if any(each[key] != result[key] for key in which)]
    kills = sorted([*others, result], key=lambda each: [each[key] for key in which])
    save("orphans", {"left_after_s": LEFT_AFTER_S, "kills": kills})


def row(result: dict[str, Any]) -> str:
    gone = "-" if result["gone_after_s"] is None else f"{result['gone_after_s']:.1f} s"
    return (
        f"{result['command']:22} {result['signal']:8} {result['moment']:18} "
        f"{result['before']:>6} {result['left']:>5} {gone:>11}"
    )


if __name__ == "__main__":
    main()
