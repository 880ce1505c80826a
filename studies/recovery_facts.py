"""What a run with a kill in it shows: its input and output, the moves of state, the silence of partitions.

Read from the run's history and from what was seen of it. Times are microseconds of the machine's clock;
`began_us` is when the run was steady, `killed_us` when a node was killed, `whole_us` when every partition had
two copies again, `until_us` when the recovery can no longer show in the output.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from understudy.demo.verdict import DeliveredTogether
from understudy.history.reading import Damage, by_process, entries
from watching import Sample


def input_facts(
    inputs: list[tuple[int, float]], samples: list[Sample], rate: float, killed_us: int, whole_us: int
) -> dict[str, Any]:
    """Rows a second taken in, second by second: usually, and while a partition lacked a copy.

    `samples` are of the time in which the source had rows.
    """
    during = [r for at, r in inputs if killed_us <= at <= whole_us] or [0.0]
    usual = [r for at, r in inputs if at < killed_us] or [0.0]
    below = sum(r < 0.95 * rate for at, r in inputs)
    # A source that is held back catches up later, so how far it ever was behind says more than its rates.
    ahead = [sample.rows_in - rate * (sample.at_us - killed_us) / 1e6 for sample in samples]
    behind_s = (max(ahead) - min(ahead)) / rate
    return {
        "target": rate,
        "usual_median": round(median(usual)),
        "usual_least": round(min(usual)),
        "recovery_median": round(median(during)),
        "recovery_least": round(min(during)),
        "seconds_below_95_percent": below,
        "seconds": len(inputs),
        "behind_max_s": round(behind_s, 2),
    }


def output_facts(
    delivered: list[DeliveredTogether], width_us: int, began_us: int, killed_us: int, until_us: int
) -> dict[str, Any]:
    """Rows a second delivered and latency: before the kill, and from it until the recovery is over."""
    spans = {"before": (began_us, killed_us), "during": (killed_us, until_us)}
    out: dict[str, Any] = {}
    for name, (begin_us, end_us) in spans.items():
        within = [d for d in delivered if begin_us <= d.at_us < end_us]
        latency_ms = [d.latency_ms(width_us) for d in within] or [0.0]
        out[name] = {
            "rows_per_s": round(sum(d.rows for d in within) / ((end_us - begin_us) / 1e6)),
            "latency_ms": round(median(latency_ms)),
            "latency_max_ms": round(max(latency_ms)),
        }
    return out


def _records(history: Path, *kinds: str) -> list[dict[str, Any]]:
    found = []
    for parts in by_process(sorted(history.glob("*.jsonl"))).values():
        for entry in entries(parts):
            if not isinstance(entry, Damage) and entry.kind in kinds:
                found.append({"kind": entry.kind, **asdict(entry)})
    return sorted(found, key=lambda record: record["at_us"])


def moves(history: Path, killed_us: int) -> list[dict[str, Any]]:
    """Every state that was moved after the kill: whose, how much, the pause it cost, how long it took."""
    records = [r for r in _records(history, "snapshot", "installed") if r["at_us"] >= killed_us]
    taken = {_partition(r): r for r in records if r["kind"] == "snapshot"}
    moves = []
    for installed in records:
        snapshot = taken.get(_partition(installed))
        if installed["kind"] == "installed" and snapshot is not None:
            moves.append(
                {
                    "partition": _partition(installed),
                    "bytes": snapshot["bytes"],
                    "pause_ms": round(snapshot["pause_us"] / 1e3, 1),
                    "after_kill_s": round((snapshot["at_us"] - killed_us) / 1e6, 2),
                    "moved_s": round((installed["at_us"] - snapshot["at_us"]) / 1e6, 2),
                }
            )
    return moves


def _partition(record: dict[str, Any]) -> str:
    return str(record["of"]).rpartition(":")[0]


def silences(history: Path, began_us: int, killed_us: int, until_us: int) -> dict[str, dict[str, float]]:
    """By partition: usual times between outputs, and the longest after the kill; in seconds."""
    arrivals: dict[str, list[int]] = {}
    for record in _records(history, "arrived"):
        arrivals.setdefault(record["partition"], []).append(record["at_us"])
    out = {}
    for partition, times in sorted(arrivals.items()):
        gaps = [((b - a) / 1e6, a, b) for a, b in pairwise(times)]
        usual = sorted(gap for gap, a, b in gaps if began_us <= a and b <= killed_us) or [0.0]
        after = [gap for gap, a, b in gaps if b > killed_us and a < until_us] or [0.0]
        out[partition] = {
            "usual_median_s": round(median(usual), 2),
            "usual_p95_s": round(usual[int(0.95 * (len(usual) - 1))], 2),
            "usual_max_s": round(usual[-1], 2),
            "after_kill_max_s": round(max(after), 2),
        }
    return out
