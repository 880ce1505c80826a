"""One JVM for all tests that need Spark, and a count of what they compared."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from understudy.engine.session import session, stop_session

sys.path.insert(0, str(Path(__file__).parent))

_COMPARED: pytest.StashKey[Counter[str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_COMPARED] = Counter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    yield session(master="local[2]", stderr=tmp_path_factory.mktemp("jvm") / "stderr")
    stop_session()


@pytest.fixture(scope="session")
def compared(pytestconfig: pytest.Config) -> Counter[str]:
    """What was compared with the truth: rows, buckets, groupings, restores."""
    return pytestconfig.stash[_COMPARED]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash[_COMPARED]
    if counts:
        terminalreporter.section("engine against batch")
        terminalreporter.write_line(
            f"{counts['rows']} output rows in {counts['buckets']} buckets equal to the batch job's, "
            f"over {counts['groupings']} groupings in {counts['batches']} steps, "
            f"with {counts['restores']} restores"
        )
