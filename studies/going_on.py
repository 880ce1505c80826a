"""Runs that lose all that lives: are they exact, and how long until output flows again?

    python studies/going_on.py [--repeat N] [--kinds stop,power,loss] [--policies none,pair,flux,plain]
        [--seed S] [--snapshot-every 10] [--keep]

    stop      Ctrl-C at a random moment, and the same command again (5 times)
    power     every process of the run, the command and ZooKeeper included, is killed at one instant at a
              random moment, and the command is given again (10 times)
    loss      every copy of one partition is killed at one instant, and the run goes on by itself (5 times).
              For `pair` a standby waits, for `none` once with a standby and once without; for `flux` two of
              three nodes are killed, which hold all copies of a partition chosen at random, and the third
              goes on with it

Each line of the table is one run in one folder that was harmed so often, at 10,000 rows a second, and whose
whole output was compared with the batch truth in the end. `none` and `pair` run the traffic flow, `flux` the
firewall flow: two fragments, of two partitions each. Time counts from the kill, or for `stop` from the
command that goes on, until the next result is durable. `power` is given the command again at once. Beside
them stands the traffic query in plain Structured Streaming, killed and started again at once from its
checkpoint.

Where the time goes is read from the history. `up`: the gateway works. `seated`: a view gives the lost
partitions their nodes. `restored`: the first copy has its saved state in a started engine. `output`: the next
result is durable.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

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
from plain_query import PlainQuery
from understudy.history.judging import judge
from understudy.history.reading import by_process, entries
from understudy.history.records import BegunRecord, DeliveredRecord, InstalledRecord, Record, ViewRecord

REPEAT = {"stop": 5, "power": 10, "loss": 5}
POLICIES = ("none", "pair", "flux", "plain")
VERDICT = ("lost", "duplicated", "wrong", "strange", "out_of_order")
PHASES = ("up", "seated", "restored", "output")
ROWS_PER_S = 10_000
#: So many rows must have come out since a harm before the next one.
ROWS_OUT_MIN = 500


@dataclass(frozen=True)
class Line:
    """One line of the table: a run of a policy, and what is done to it."""

    policy: str
    kind: str
    nodes: int
    standby: int

    @property
    def name(self) -> str:
        waiting = f", {self.standby} standby" if self.kind == "loss" and self.policy == "none" else ""
        return f"{self.policy}: {self.kind}{waiting}"

    @property
    def flow(self) -> Path:
        return FIREWALL if self.policy == "flux" else TRAFFIC

    @property
    def values(self) -> tuple[str, ...]:
        return FIREWALL_VALUES if self.policy == "flux" else TRAFFIC_VALUES

    def command(self, snapshot_every_s: float) -> Commanded:
        options = ["--policy", self.policy, "--nodes", str(self.nodes), "--standby", str(self.standby)]
        options += ["--partitions", "2"] if self.policy == "flux" else []
        options += ["--snapshot-every", str(snapshot_every_s)]
        return Commanded(self.flow, *options)


LINES = (
    Line("none", "stop", 1, 0),
    Line("none", "power", 1, 0),
    Line("none", "loss", 1, 1),
    Line("none", "loss", 1, 0),
    Line("pair", "stop", 2, 0),
    Line("pair", "power", 2, 0),
    Line("pair", "loss", 2, 1),
    Line("flux", "stop", 2, 0),
    Line("flux", "power", 2, 0),
    Line("flux", "loss", 3, 0),
)


class Trials:
    """One run that is harmed again and again. Moments come from the seed."""

    def __init__(self, line: Line, chance: random.Random, snapshot_every_s: float) -> None:
        self.line = line
        self._chance = chance
        self._snapshot_every_s = snapshot_every_s
        self.run = line.command(snapshot_every_s)
        #: Of each turn the moment from which time counts.
        self.since_us: list[int] = []
        self.stopping_s: list[float] = []

    def all(self, repeat: int) -> None:
        """Harm the run so often. In the end it is stopped in good order."""
        harm: Callable[[], None] = {"stop": self._stop, "power": self._power, "loss": self._loss}[
            self.line.kind
        ]
        self.run.start()
        self._await_output("its first output")
        for turn in range(1, repeat + 1):
            if self.line.kind == "loss":
                self.run.wait("a run that could lose a partition", self._whole)
            wait_s = self._chance.uniform(0.0, 1.5 * self._snapshot_every_s)
            say(f"{self.line.name}: {turn} of {repeat}, in {wait_s:.1f} s")
            time.sleep(wait_s)
            harm()
            say(f"{self.line.name}: output after {(now_us() - self.since_us[-1]) / 1e6:.1f} s")
        self.run.stop()

    def _stop(self) -> None:
        self.stopping_s.append(self.run.stop())
        self.since_us.append(self.run.start())
        self._await_output("output of the next generation")

    def _power(self) -> None:
        self.since_us.append(self.run.lose_power())
        self.run.start()
        self._await_output("output after the loss of power")

    def _loss(self) -> None:
        before = self.run.wait("a run that could lose a partition", self._whole)
        partition = self._chance.choice(sorted({copy.rpartition(":")[0] for copy in before["seats"]}))
        restored = before["restored"].get(partition, 0)
        nodes = self.run.nodes_of(before, partition)
        say(f"{self.line.name}: kills {' and '.join(nodes)}, all that hold {partition}")
        self.since_us.append(self.run.kill_nodes(nodes))
        self.run.wait("the restored partition", lambda s: s["restored"].get(partition, 0) > restored)
        self._await_output("output after the loss of all copies", since=before["rows_out"])

    def _whole(self, status: dict[str, Any]) -> bool:
        """Whether every copy is active and every node there."""
        seats = status["seats"].values()
        nodes = self.line.nodes + self.line.standby
        return all(seat["status"] == "ACTIVE" for seat in seats) and len(status["members"]) == nodes

    def _await_output(self, what: str, since: int = 0) -> None:
        self.run.wait(what, lambda status: int(status["rows_out"]) >= since + ROWS_OUT_MIN)

    # --- what came of it ---------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        folder = self.run.folder
        verdict = against_truth(folder, self.line.flow, self.line.values)
        judged = judge(sorted((folder / "run" / "history").glob("*.jsonl")))
        records = _records(folder / "run" / "history")
        until_us = [*self.since_us[1:], now_us()]
        phases = [
            phases_of(records, since, until, goes_on=self.line.kind != "loss")
            for since, until in zip(self.since_us, until_us, strict=True)
        ]
        return {
            "policy": self.line.policy,
            "kind": self.line.kind,
            "nodes": self.line.nodes,
            "standby": self.line.standby,
            "turns": len(self.since_us),
            **verdict,
            "history_findings": [str(each) for each in (*judged.findings, *judged.damages)],
            "stopping_s": [round(each, 2) for each in self.stopping_s],
            "phases_s": phases,
        }


def _records(history: Path) -> list[Record]:
    found = [
        entry
        for parts in by_process(sorted(history.glob("*.jsonl"))).values()
        for entry in entries(parts)
        if isinstance(entry, BegunRecord | DeliveredRecord | InstalledRecord | ViewRecord)
    ]
    return sorted(found, key=lambda record: record.at_us)


def phases_of(
    records: Sequence[Record], since_us: int, until_us: int, *, goes_on: bool
) -> dict[str, float | None]:
    """When each phase was over, in seconds from the harm; None for one that did not happen.

    A run that loses a partition still delivers what is on its way: output is back after the longest gap.
    """
    within = [record for record in records if since_us <= record.at_us < until_us]
    up = next((r.at_us for r in within if isinstance(r, BegunRecord) and r.by == "gateway"), None)
    views = [r for r in within if isinstance(r, ViewRecord)]
    if not goes_on:
        views = [r for r in views if any(e == r.epoch and s == "ACTIVE" for *_, e, s in r.seats)]
    installed = [r.at_us for r in within if isinstance(r, InstalledRecord)]
    if goes_on:
        # What a gateway that was killed had delivered and not recorded, it records before it begins.
        outputs = [r.at_us for r in within if _has_rows(r) and up is not None and r.at_us > up]
        output = outputs[0] if outputs else None
    else:
        outputs = [since_us, *(r.at_us for r in within if _has_rows(r))]
        gaps = [(later - earlier, later) for earlier, later in pairwise(outputs)]
        output = max(gaps)[1] if gaps else None
    ends = (up, views[0].at_us if views else None, installed[0] if installed else None, output)
    return {
        name: None if at_us is None else round((at_us - since_us) / 1e6, 2)
        for name, at_us in zip(PHASES, ends, strict=True)
    }


def _has_rows(record: Record) -> bool:
    return isinstance(record, DeliveredRecord) and bool(record.buckets)


def harmed(line: Line, repeat: int, seed: int, snapshot_every_s: float, keep: bool) -> dict[str, Any]:
    trials = Trials(line, random.Random(f"{seed} {line.name}"), snapshot_every_s)
    good = False
    try:
        trials.all(repeat)
        result = trials.result()
        good = not result["history_findings"] and not any(result[name] for name in VERDICT)
        return result
    finally:
        trials.run.end()
        if good and not keep:
            remove(trials.run.folder)
        else:
            say(f"kept in {trials.run.folder}")


# --- plain ---


def plain(repeat: int, seed: int, snapshot_every_s: float, *options: str) -> dict[str, Any]:
    """The plain query, killed at random moments and started again at once from its checkpoint."""
    chance = random.Random(f"{seed} plain")
    seconds: list[float] = []
    with PlainQuery(*options) as query:
        query.wait_more(5)
        for turn in range(1, repeat + 1):
            time.sleep(chance.uniform(0.0, 1.5 * snapshot_every_s))
            at_us = query.kill()
            before = len(query.outputs())
            query.wait_more(5)
            seconds.append((query.times_us()[before] - at_us) / 1e6)
            say(f"plain {' '.join(options)}: {turn} of {repeat}, output after {seconds[-1]:.1f} s")
    return {"policy": "plain", "turns": repeat, "phases_s": [{"output": round(each, 2)} for each in seconds]}


# --- the table ---


def table(results: dict[str, dict[str, Any]]) -> str:
    header = f"{'':26} {'times':>5} {'lost':>5} {'twice':>5} {'wrong':>5} {'order':>5} {'history':>8}"
    header += f" {'up':>6} {'seated':>7} {'restored':>9} {'output':>7} {'least':>6} {'most':>6}"
    return "\n".join([header, *(_row(name, result) for name, result in results.items())])


def _row(name: str, result: dict[str, Any]) -> str:
    known = {
        phase: [each[phase] for each in result["phases_s"] if each.get(phase) is not None] for phase in PHASES
    }
    medians = {phase: f"{median(values):.1f}" if values else "-" for phase, values in known.items()}
    wrong = result["wrong"] + result["strange"] if "wrong" in result else "-"
    checked = [result.get("lost", "-"), result.get("duplicated", "-"), wrong, result.get("out_of_order", "-")]
    findings = len(result["history_findings"]) if "history_findings" in result else "-"
    least, most = (min(known["output"], default=0.0), max(known["output"], default=0.0))
    return (
        f"{name:26} {result['turns']:>5} {' '.join(f'{each:>5}' for each in checked)} {findings:>8} "
        f"{medians['up']:>6} {medians['seated']:>7} {medians['restored']:>9} {medians['output']:>7} "
        f"{least:>6.1f} {most:>6.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, help="how often each; 5 stops, 10 losses of power, 5 losses")
    parser.add_argument("--kinds", default=",".join(REPEAT), help="with commas")
    parser.add_argument("--policies", default=",".join(POLICIES), help="with commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--snapshot-every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    arguments = parser.parse_args()
    # Here, not only for the runs: the truth is worked out by the same files.
    os.environ |= {"FIREWALL_ROWS_PER_S": str(ROWS_PER_S), "TRAFFIC_ROWS_PER_S": str(ROWS_PER_S)}
    say(f"seed {arguments.seed}")
    results: dict[str, dict[str, Any]] = {}

    def note(name: str, result: dict[str, Any]) -> None:
        results[name] = result
        save("going_on", {"seed": arguments.seed, "snapshot_every_s": every_s, "lines": results})
        save_text("going_on", table(results))
        print(table(results), flush=True)

    every_s = arguments.snapshot_every
    policies, kinds = arguments.policies.split(","), arguments.kinds.split(",")
    if "plain" in policies:
        repeat = arguments.repeat or REPEAT["loss"]
        note("plain, as shipped", plain(repeat, arguments.seed, every_s, "--as-shipped"))
        note("plain, our start", plain(repeat, arguments.seed, every_s))
    for line in LINES:
        if line.policy in policies and line.kind in kinds:
            repeat = arguments.repeat or REPEAT[line.kind]
            note(line.name, harmed(line, repeat, arguments.seed, every_s, arguments.keep))
    bad = [n for n, r in results.items() if any(r.get(key) for key in (*VERDICT, "history_findings"))]
    if bad:
        raise SystemExit(f"not exact: {', '.join(bad)}")


if __name__ == "__main__":
    main()
