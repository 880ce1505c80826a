"""A flow file that may have changed since its run was stopped: its shape, to be compared with those by which
the run's state was made.
"""

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
    return fit(before, shape_of_file(path, unit=unit, partitions=partitions, spark=spark))


def shape_of_file(
    path: str | Path, *, unit: str, partitions: int, spark: SparkSession | None = None
) -> dict[str, Any]:
    """The shape of the flow in a file. Starts no query. Raises a FlowError if it cannot run at all."""
    return FlowEngines(load(path), unit, partitions, spark=spark).shape
