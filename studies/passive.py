"""What a backup costs and what it gives: passive standby beside a pair.

    python studies/passive.py [--kills 5] [--watch-s 60] [--ship-ms 500 2000]

The traffic flow runs in one partition: with `passive` once for each interval of shipping, then with `pair`.
At steady state the process tree of the working copy is killed, a backup takes over, the killed node comes
back, the run is steady again, and the next kill follows, of the copy that has taken over. For each kill:

    silence     the gap between the last result before the kill and the first one after it
    replayed    rows that the new working copy took which the dead one had taken before
    shipped     bytes that the backup fetched in a time without kills, beside the size of a snapshot

At the end the output must equal the ground truth row by row, and the history must pass every checker.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

from harmed import outcome_of, traffic_trial
from harness import RESULTS, remove, save, say, steady
from understudy.history.reading import Damage, by_process, entries
from understudy.history.records import HandedRecord, Header, SealedRecord, SnapshotRecord
from understudy.runtime.trial import Trial


def measured(policy: str, kills: int, watch_s: float, ship_ms: int | None = None) -> dict[str, Any]:
    # Started again by hand: a JVM that starts in the moment of the kill would slow the take-over.
    chosen = {"policy": policy, "partitions": 1, "ship_ms": ship_ms}
    with traffic_trial(nodes=2, standby=0, respawn=False, **chosen) as (trial, folder):
        steady(trial)
        shipped = shipped_while(trial, watch_s) if policy == "passive" else None
        for turn in range(1, kills + 1):
            say(f"{policy} {ship_ms or ''}: kill {turn} of {kills}")
            dead = trial.kill("sender")
            trial.wait_output(1_000)
            trial.restart(dead)
            trial.wait_member(dead)
            steady(trial)
    outcome = outcome_of(trial, folder)
    harms = outcome.harms_us
    records = records_in(folder / "run" / "history")
    result = {
        "policy": policy,
        "ship_ms": ship_ms,
        "silences_s": [round(each, 2) for each in outcome.silences_s],
        # A replica of a pair has taken everything itself.
        "replayed_rows": replayed(records, harms) if policy == "passive" else [0] * len(harms),
        "snapshot_bytes": round(median([r.bytes for r in records if isinstance(r, SnapshotRecord)] or [0])),
        "snapshots": sum(isinstance(r, SnapshotRecord) for r in records),
        "shipped": shipped,
        **outcome.verdict,
    }
    remove(folder)
    return result


def shipped_while(trial: Trial, watch_s: float) -> dict[str, float]:
    """What backups have fetched in so many seconds."""

    def looked() -> tuple[float, int]:
        status = trial.wait("a status", lambda _status: True)
        copies = [facts for node in status["nodes"].values() for facts in node.get("copies", {}).values()]
        return time.monotonic(), sum(facts.get("shipped_bytes", 0) for facts in copies)

    began_s, before = looked()
    time.sleep(watch_s)
    ended_s, after = looked()
    return {"seconds": round(ended_s - began_s, 1), "bytes": after - before}


def records_in(history: Path) -> list[Any]:
    found = [
        entry
        for parts in by_process(sorted(history.glob("*.jsonl"))).values()
        for entry in entries(parts)
        if not isinstance(entry, Damage | Header)
    ]
    return sorted(found, key=lambda record: record.at_us)


def replayed(records: list[Any], harms_us: list[int]) -> list[int]:
    """Rows of input that were taken again, by the kill that they follow."""
    rows = {r.number: r.rows for r in records if isinstance(r, SealedRecord)}
    taken: set[int] = set()
    again = [0] * len(harms_us)
    for record in records:
        if not isinstance(record, HandedRecord):
            continue
        kill = sum(at <= record.at_us for at in harms_us) - 1
        if kill >= 0:
            again[kill] += sum(rows.get(number, 0) for number in record.numbers if number in taken)
        taken.update(record.numbers)
    return again


def table(results: list[dict[str, Any]]) -> str:
    heads = (
        "policy",
        "ship ms",
        "kills",
        "silence s",
        "replayed rows",
        "MB/min",
        "snapshot MB",
        "lost",
        "twice",
    )
    lines = [heads]
    for each in results:
        silences, again, shipped = each["silences_s"], each["replayed_rows"], each["shipped"]
        rate = "-" if shipped is None else f"{shipped['bytes'] / shipped['seconds'] * 60 / 1e6:.2f}"
        shown = (
            each["policy"],
            each["ship_ms"] or "-",
            len(silences),
            f"{median(silences):.2f} ({max(silences):.2f})",
            f"{median(again):.0f} ({max(again)})",
            rate,
            f"{each['snapshot_bytes'] / 1e6:.2f}",
            each["lost"],
            each["duplicated"],
        )
        lines.append(tuple(map(str, shown)))
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    shown_lines = ["  ".join(f"{x:>{w}}" for x, w in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*shown_lines, "(median, and the most in brackets)"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--watch-s", type=float, default=60.0)
    parser.add_argument("--ship-ms", type=int, nargs="+", default=[500, 2_000])
    arguments = parser.parse_args()
    kills, watch_s = arguments.kills, arguments.watch_s
    results = [measured("passive", kills, watch_s, ship_ms) for ship_ms in arguments.ship_ms]
    results.append(measured("pair", kills, watch_s))
    save("passive", {"kills": kills, "runs": results})
    text = table(results)
    (RESULTS / "passive.txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
