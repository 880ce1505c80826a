"""A changed flow goes live while rows flow: is every row delivered once, and does the output pause?

    python studies/upgrade.py [--repeat 5] [--policies none,pair,flux] [--rows-per-s 10000] [--trial 5]
        [--keep]

Each policy has one run, at 10,000 rows a second unless told otherwise. It is upgraded so often, each time by
`understudy upgrade` with another last column, `made_by`, which tells in the output which version made a row.
Then once each:

    unfit     other windows, which the saved state cannot take: must be refused, and change nothing
    failing   a version that raises an error with every row: must be taken back
    killed    the nodes of a new version are killed when it has taken over and is on trial: must be taken back

In the end the whole output is compared with the batch truth. `none` and `pair` run the traffic flow, `flux`
the firewall flow: two fragments, of two partitions each.

**Silence** is the longest time without a result from a second before a turn, from one version to the next or
back, until two seconds after it. Beside it stands the same for every other moment of the run: the median, and
the longest. `live` and `done` are the seconds from the command until the new version's output is delivered,
and until the old version has ended. The new version's Sparks start on the same two cores on which the old one
works; on a cluster they have hosts of their own.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import understudy as us
from commanded import Commanded, now_us
from harness import (
    FIREWALL,
    FIREWALL_VALUES,
    TRAFFIC,
    TRAFFIC_VALUES,
    against_truth,
    remove,
    save,
    save_text,
    say,
)
from understudy.cli.kill import processes_of
from understudy.history.judging import judge
from understudy.history.reading import by_process, entries
from understudy.history.records import DeliveredRecord
from understudy.runtime.process_tree import family, signal_all

POLICIES = ("none", "pair", "flux")
VERDICT = ("lost", "duplicated", "wrong", "strange", "out_of_order")
ROWS_OUT_MIN = 500
BEFORE_US, AFTER_US = 1_000_000, 2_000_000


@dataclass(frozen=True)
class Subject:
    """A flow that can be written down in several versions: where its file is changed, and how."""

    file: Path
    values: tuple[str, ...]
    #: The end of the last aggregation, and the same with a further column.
    ending: str
    #: A window's length, and another one.
    window: tuple[str, str]

    def version(self, folder: Path, column: str) -> Path:
        return self._written(folder, self.ending, f'{self.ending}.withColumn("made_by", {column})')

    def unfit(self, folder: Path) -> Path:
        return self._written(folder, *self.window)

    def _written(self, folder: Path, old: str, new: str) -> Path:
        text = self.file.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{self.file} has {old!r} {text.count(old)} times, not once")
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / self.file.name
        written.write_text(text.replace(old, new))
        return written


TRAFFIC_FLOW = Subject(
    TRAFFIC,
    TRAFFIC_VALUES,
    'F.sum("size").alias("bytes")\n    )',
    ("WINDOW_US = 200_000", "WINDOW_US = 400_000"),
)
FIREWALL_FLOW = Subject(
    FIREWALL,
    FIREWALL_VALUES,
    'F.count("*").alias("sessions"),\n        )',
    ("GAP_BLOCKS = 5.5", "GAP_BLOCKS = 6.5"),
)
FAILS = 'F.raise_error(F.lit("this version is wrong")).cast("int")'


class Upgraded:
    """One run that is upgraded again and again."""

    def __init__(self, policy: str, trial_s: float) -> None:
        self.policy = policy
        self.subject = FIREWALL_FLOW if policy == "flux" else TRAFFIC_FLOW
        nodes = {"none": 1, "pair": 2, "flux": 2}[policy]
        options = ["--policy", policy, "--nodes", str(nodes), "--standby", "0", "--heap", "512"]
        options += ["--partitions", "2"] if policy == "flux" else []
        self._trial = ("--trial", str(trial_s))
        self.run = Commanded(self.subject.file, *options)
        self.run.flow = self._version("1", "F.lit(1)")
        self.live_s: list[float] = []
        self.done_s: list[float] = []
        self.versions = 1
        self.refusal = ""
        self.taken_back: dict[str, str] = {}

    def all(self, repeat: int) -> None:
        self.run.start()
        self._await_output(0)
        for turn in range(1, repeat + 1):
            self._upgrade(turn, repeat)
        self._unfit()
        self._failing()
        self._killed()
        self._await_output(self._rows_out())
        self.run.stop()

    def _version(self, name: str, column: str) -> Path:
        return self.subject.version(self.run.folder / "flows" / name, column)

    def _upgrade(self, turn: int, repeat: int) -> None:
        number = self.versions + 1
        began_us = now_us()
        code, said = self.run.upgrade(self._version(str(number), f"F.lit({number})"), *self._trial)
        self.done_s.append((now_us() - began_us) / 1e6)
        if code != 0:
            raise RuntimeError(f"an upgrade of {self.policy} did not succeed: {said}")
        self.versions = number
        live_us = next(each.at_us for each in self._deliveries() if each.version == number)
        self.live_s.append((live_us - began_us) / 1e6)
        say(f"{self.policy}: upgrade {turn} of {repeat}, live after {self.live_s[-1]:.1f} s")

    def _unfit(self) -> None:
        before = self.run.settings
        code, self.refusal = self.run.upgrade(self.subject.unfit(self.run.folder / "flows" / "unfit"))
        if code == 0 or self.run.settings != before:
            raise RuntimeError(f"a version that does not fit was not refused: {self.refusal}")
        say(f"{self.policy}: refused. {self.refusal.splitlines()[-1]}")

    def _failing(self) -> None:
        self._take_back("failing", self._version("failing", FAILS))

    def _killed(self) -> None:
        """Kill the new version's nodes when its output is delivered."""
        over = threading.Event()
        killing = threading.Thread(target=self._kill_when_live, args=(over,))
        killing.start()
        try:
            self._take_back("killed", self._version("killed", "F.lit(-1)"))
        finally:
            over.set()
            killing.join()

    def _kill_when_live(self, over: threading.Event) -> None:
        while not over.wait(0.1):
            status = self.run.status()
            candidate = None if status is None else status["candidate"]
            if candidate is not None and candidate["live"]:
                time.sleep(1.0)
                found = processes_of(self.run.settings)
                names = [member.partition(".")[0] for member in candidate["members"]]
                victims = [each for name in names for pid in found.get(name, ()) for each in family(pid)]
                say(f"{self.policy}: kills {' and '.join(names)}")
                signal_all(victims, signal.SIGKILL)
                return

    def _take_back(self, what: str, flow: Path) -> None:
        before = self.run.settings.version
        code, said = self.run.upgrade(flow, "--trial", "30")
        if code != 1 or "taken back" not in said or self.run.settings.version != before:
            raise RuntimeError(f"{what}: the new version was not taken back, exit code {code}: {said}")
        # A result names no folder of the machine that it was measured on.
        self.taken_back[what] = said.splitlines()[-1].replace(str(self.run.folder), "FOLDER")
        say(f"{self.policy}: {what}. {self.taken_back[what]}")
        self._await_output(self._rows_out())

    def _rows_out(self) -> int:
        return int(self.run.wait("an answer", lambda _: True)["rows_out"])

    def _await_output(self, since: int) -> None:
        self.run.wait("output", lambda status: int(status["rows_out"]) >= since + ROWS_OUT_MIN)

    # --- what came of it ---------------------------------------------------------------------------------

    def _deliveries(self) -> list[DeliveredRecord]:
        """All with rows, in their order."""
        files = sorted((self.run.folder / "run" / "history").glob("gateway*.jsonl"))
        found = [
            entry
            for parts in by_process(files).values()
            for entry in entries(parts)
            if isinstance(entry, DeliveredRecord) and entry.buckets
        ]
        return sorted(found, key=lambda record: record.at_us)

    def result(self) -> dict[str, Any]:
        folder = self.run.folder
        verdict = against_truth(folder, self.subject.file, self.subject.values)
        judged = judge(sorted((folder / "run" / "history").glob("*.jsonl")))
        found = self._deliveries()
        turns = [later for earlier, later in pairwise(found) if earlier.version != later.version]
        around = [(turn.at_us - BEFORE_US, turn.at_us + AFTER_US) for turn in turns]
        gaps = [(a.at_us, b.at_us, (b.at_us - a.at_us) / 1e6) for a, b in pairwise(found)]
        silences = [max(s for a, b, s in gaps if b > first and a < last) for first, last in around]
        others = [s for a, b, s in gaps if not any(b > first and a < last for first, last in around)]
        made_by = us.read_output(folder / "out").column("made_by").to_pylist()
        return {
            "policy": self.policy,
            "upgrades": len(self.live_s),
            **verdict,
            "history_findings": [str(each) for each in (*judged.findings, *judged.damages)],
            "turns": [turn.version for turn in turns],
            "silences_s": [round(each, 3) for each in silences],
            "otherwise_median_s": round(median(others), 3),
            "otherwise_longest_s": round(max(others), 3),
            "live_s": [round(each, 1) for each in self.live_s],
            "done_s": [round(each, 1) for each in self.done_s],
            "refused": self.refusal,
            "taken_back": self.taken_back,
            "made_by": sorted(set(made_by)),
        }


def upgraded(policy: str, repeat: int, trial_s: float, keep: bool) -> dict[str, Any]:
    subject = Upgraded(policy, trial_s)
    good = False
    try:
        subject.all(repeat)
        result = subject.result()
        good = not result["history_findings"] and not any(result[name] for name in VERDICT)
        return result
    finally:
        subject.run.end()
        if good and not keep:
            remove(subject.run.folder)
        else:
            say(f"kept in {subject.run.folder}")


def table(results: dict[str, dict[str, Any]]) -> str:
    header = f"{'':6} {'times':>5} {'lost':>5} {'twice':>5} {'wrong':>5} {'order':>5} {'history':>8}"
    header += f" {'turns':>6} {'silence':>8} {'most':>6} {'else':>6} {'most':>6} {'live':>6} {'done':>6}"
    return "\n".join([header, *(_row(name, result) for name, result in results.items())])


def _row(name: str, result: dict[str, Any]) -> str:
    checked = [result["lost"], result["duplicated"], result["wrong"] + result["strange"]]
    checked += [result["out_of_order"]]
    silences = result["silences_s"]
    return (
        f"{name:6} {result['upgrades']:>5} {' '.join(f'{each:>5}' for each in checked)} "
        f"{len(result['history_findings']):>8} {len(silences):>6} {median(silences):>8.2f} "
        f"{max(silences):>6.2f} {result['otherwise_median_s']:>6.2f} {result['otherwise_longest_s']:>6.2f} "
        f"{median(result['live_s']):>6.1f} {median(result['done_s']):>6.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--policies", default=",".join(POLICIES), help="with commas")
    parser.add_argument("--rows-per-s", type=float, default=10_000)
    parser.add_argument("--trial", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    arguments = parser.parse_args()
    # Here, not only for the runs: the truth is worked out by the same files.
    rate = str(arguments.rows_per_s)
    os.environ |= {"FIREWALL_ROWS_PER_S": rate, "TRAFFIC_ROWS_PER_S": rate}
    results: dict[str, dict[str, Any]] = {}
    for policy in arguments.policies.split(","):
        results[policy] = upgraded(policy, arguments.repeat, arguments.trial, arguments.keep)
        save("upgrade", {"rows_per_s": arguments.rows_per_s, "lines": results})
        save_text("upgrade", table(results))
        print(table(results), flush=True)


if __name__ == "__main__":
    main()
