"""A flow file that may have changed since its run was stopped: whether the run's state goes on under it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from understudy.engine.fitting import Fit, fit
from understudy.engine.flow_engines import FlowEngines
from understudy.flow.loading import load


def fit_of_file(
    path: str | Path,
    before: Mapping[str, Any],
    *,
    unit: str,
    partitions: int,
    spark: SparkSession | None = None,
) -> Fit:
    """Compare the flow in a file with `before`, which is the `FlowEngines.shape` that the run began with.

    Starts no query. Raises a FlowError if the flow cannot run at all as it is now.
    """
    return fit(before, FlowEngines(load(path), unit, partitions, spark=spark).shape)
