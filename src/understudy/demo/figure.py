"""The picture of a run: output rate and latency over time, with failures and catch-ups marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from understudy.demo.verdict import DeliveredTogether

_STEP_S = 1.0


def draw(
    file: Path,
    delivered: Sequence[DeliveredTogether],
    *,
    width_us: int,
    begin_us: int,
    failures: Sequence[tuple[int, str]],
    catch_ups: Sequence[tuple[int, str]],
) -> None:
    """Write the picture as PNG. Times are counted from `begin_us`; marks are a time and a name."""
    seen = [delivery for delivery in delivered if delivery.at_us >= begin_us]
    at_s = np.array([(delivery.at_us - begin_us) / 1e6 for delivery in seen])
    rows = np.array([delivery.rows for delivery in seen])
    edges = np.arange(0.0, (at_s.max() if len(at_s) else 1.0) + 2 * _STEP_S, _STEP_S)
    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=(9, 5.5), layout="constrained")
        rate, latency = figure.subplots(2, 1, sharex=True)
        counts, _ = np.histogram(at_s, edges, weights=rows)
        rate.step(edges[:-1], counts / _STEP_S, where="post", linewidth=1)
        rate.set_ylabel("output, rows/s")
        latency.plot(at_s, [delivery.latency_ms(width_us) for delivery in seen], ".-", linewidth=0.8)
        latency.set_ylabel("latency, ms")
        latency.set_xlabel("time, s")
        for axes in (rate, latency):
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
            for at_us, name in failures:
                axes.axvline((at_us - begin_us) / 1e6, color="red", linewidth=1, label=f"{name} killed")
            for at_us, name in catch_ups:
                axes.axvline(
                    (at_us - begin_us) / 1e6,
                    color="green",
                    linestyle="--",
                    linewidth=1,
                    label=f"{name} caught up",
                )
        if failures or catch_ups:
            rate.legend(loc="upper right", fontsize=8)
        figure.savefig(file, dpi=130)
