"""The batch job that the demonstration is judged by, against sessions counted by hand."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest

from understudy.demo.sessions import SOURCE, build
from understudy.demo.truth import batch, generated

GAP_US, WINDOW_US = 400_000, 500_000
BEGAN_US = 1_700_000_000_123_456


def _stats_by_hand(rows: pa.Table) -> set[tuple[int, str, str, int, float, int]]:
    """(window's end, app, src, longest, average, sessions), one packet after the other."""
    of_pair: dict[tuple[str, str, str], list[tuple[int, str]]] = defaultdict(list)
    times = rows.column("ts").cast("int64").to_pylist()
    for at_us, row in zip(times, rows.drop_columns("ts").to_pylist(), strict=True):
        of_pair[row["src"], row["dst"], row["app"]].append((at_us, row["kind"]))
    durations: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for (src, _, app), packets in of_pair.items():
        session: list[tuple[int, str]] = []
        for at_us, kind in [*packets, (2**62, "")]:
            if session and at_us - session[-1][0] >= GAP_US:
                starts = [at for at, what in session if what == "start"]
                ends = [at for at, what in session if what == "end"]
                if starts and ends:
                    closed_us = session[-1][0] + GAP_US
                    window_end = (closed_us // WINDOW_US + 1) * WINDOW_US
                    durations[window_end, app, src].append(max(ends) - min(starts))
                session = []
            session.append((at_us, kind))
    return {(*key, max(all_), sum(all_) / len(all_), len(all_)) for key, all_ in durations.items()}


@pytest.mark.spark
def test_the_batch_job_gives_what_counting_by_hand_gives(tmp_path: Path) -> None:
    flow = build(rows_per_s=500, rows=6_000, output=tmp_path / "out")
    rows = generated(flow, SOURCE, BEGAN_US)
    made = batch(flow, rows, tmp_path / "batch", heap_mb=512).flatten()
    ends = made.column("window.end").cast("int64").to_pylist()
    others = [
        made.column(name).to_pylist() for name in ("app", "src", "longest_us", "average_us", "sessions")
    ]
    found = list(zip(ends, *others, strict=True))
    assert len(found) > 500
    assert len(set(found)) == len(found)
    assert set(found) == _stats_by_hand(rows)
