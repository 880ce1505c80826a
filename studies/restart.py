"""How long a gateway takes to begin again, by what its run has left behind.

    python studies/restart.py

For each case a run's folder is made as a gateway leaves it when it is killed: a history of so many lines and
a log with so many buckets that no replica has acknowledged, both written by what writes them in a run. Then a
real gateway process is started beside a real ZooKeeper, and timed until it answers for its status and until
it is at work (its `begun` record). `check` is timed on the same history and that of one replica. One case has
a damaged line in the middle of every part.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa

from harness import TRAFFIC, save, say
from understudy.core.bucket import NOTHING
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.loading import load
from understudy.history.judging import judge
from understudy.history.parts import older_parts
from understudy.history.reading import records_of
from understudy.history.records import (
    BegunRecord,
    DeliveredRecord,
    ProducedRecord,
    Record,
    SealedRecord,
    parts_text,
)
from understudy.history.writing import PartedFile
from understudy.runtime.coordination.server import ZooKeeperServer
from understudy.runtime.gateway.journal import Journal
from understudy.runtime.ingest.ingest import Ingest
from understudy.runtime.settings import RunSettings
from understudy.runtime.status import status_of

TIMEOUT_S = 300.0
TIMES = 3
ROWS_PER_BUCKET = 100
#: How many lines are written together; how many rows are pushed together.
LINES_TOGETHER = 1_000
ROWS_TOGETHER = 10_000
FIRST_BUCKET = 17_900_000_000


@dataclass(frozen=True)
class Case:
    lines: int
    buckets: int
    damaged: bool = False


@dataclass(frozen=True)
class Measured:
    case: Case
    history_mb: float
    answers_s: float
    at_work_s: float
    check_s: float
    check_us_per_line: float


CASES = [
    Case(0, 100),
    Case(10_000, 100),
    Case(100_000, 100),
    Case(1_000_000, 100),
    Case(1_000_000, 100, damaged=True),
    Case(1_000_000, 10_000),
]


def write_history(settings: RunSettings, lines: int) -> None:
    """Three lines for a bucket: it was sealed, left its source, and its output was delivered.

    One line for it in the history of the copy that made the output.
    """
    numbers = range(FIRST_BUCKET, FIRST_BUCKET + lines // 3)
    write_lines(settings, "gateway", chain.from_iterable(of_gateway(number) for number in numbers))
    write_lines(settings, "node-1.1", (of_copy(number) for number in numbers))


def of_gateway(number: int) -> tuple[Record, Record, Record]:
    at_us = number * 100_000
    after = NOTHING if number == FIRST_BUCKET else number - 1
    parts = parts_text({"counts/0": f"counts:{number:032x}"})
    return (
        SealedRecord(at_us, "gateway", "packets", number, 1_000),
        ProducedRecord(at_us, "gateway", number, 1_000, f"packets:{number:032x}", "packets/0:0", "counts/0"),
        DeliveredRecord(at_us, "gateway", "counts", after, number, ((number, 100, parts),), 1),
    )


def of_copy(number: int) -> Record:
    facts = number, 100, f"counts:{number:032x}", "counts/0:0", "sink:counts/0"
    return ProducedRecord(number * 100_000, "node-1.1", *facts)


def write_lines(settings: RunSettings, process: str, records: Iterator[Record]) -> None:
    file = PartedFile(
        settings.history_file(process),
        "traffic",
        process,
        part_bytes=settings.history_part_bytes,
        total_bytes=settings.history_bytes_max,
    )
    while together := list(islice(records, LINES_TOGETHER)):
        file.write(together)
    file.close()


def damage_history(settings: RunSettings) -> None:
    """Spoil one line in the middle of every part."""
    newest = settings.history_file("gateway")
    for part in [*older_parts(newest).values(), newest]:
        with part.open("r+b") as file:
            file.seek(part.stat().st_size // 2)
            file.write(b"rubbish")


def write_log(settings: RunSettings, buckets: int) -> None:
    """Buckets that were sealed after those in the history, and that no replica has acknowledged."""
    flow = load(settings.flow_path)
    source = next(iter(flow.sources.values()))
    ingest = Ingest(flow, settings.path / "log", sync=False)
    ingest.recover()
    begin_us = (FIRST_BUCKET + 10_000_000) * flow.bucket_us
    step_us = flow.bucket_us // ROWS_PER_BUCKET
    for sequence, first in enumerate(range(0, (buckets + 1) * ROWS_PER_BUCKET, ROWS_TOGETHER)):
        numbers = range(first, min(first + ROWS_TOGETHER, (buckets + 1) * ROWS_PER_BUCKET))
        columns = {
            "src": ["10.0.0.1"] * len(numbers),
            "app": ["http"] * len(numbers),
            "size": [100] * len(numbers),
            "ts": [begin_us + number * step_us for number in numbers],
        }
        rows = pa.table(columns).cast(source.arrow_schema)
        ingest.push(source.name, rows, "study", sequence, now_us=begin_us)
    ingest.commit()
    ingest.close()
    for sink in flow.sinks:
        # A log that has taken rows in has journals beside it.
        Journal(settings.path / "delivery" / f"{sink}.json").write(NOTHING, None)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answered_s(settings: RunSettings, gateway: subprocess.Popen[bytes], began_s: float) -> float:
    while time.monotonic() < began_s + TIMEOUT_S:
        if gateway.poll() is not None:
            raise RuntimeError(f"the gateway ended: {settings.log_file('gateway').read_text()[-2_000:]}")
        try:
            status_of(settings, 1.0)
        except EnvironmentFailed:
            time.sleep(0.02)
        else:
            return time.monotonic() - began_s
    raise TimeoutError(f"the gateway did not answer within {TIMEOUT_S} s")


def started(settings: RunSettings) -> tuple[float, float]:
    """Start a gateway, kill it once it is at work; how long it took to answer and to be at work."""
    began_us, began_s = time.time_ns() // 1_000, time.monotonic()
    command = [sys.executable, "-m", "understudy.runtime.main", "gateway", settings.folder, "--with-parent"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as gateway:
        try:
            answers_s = answered_s(settings, gateway, began_s)
            while time.monotonic() < began_s + TIMEOUT_S:
                begun = [r.at_us for r in last_records(settings) if isinstance(r, BegunRecord)]
                if begun and begun[-1] > began_us:
                    return answers_s, (begun[-1] - began_us) / 1e6
                time.sleep(0.1)
            raise TimeoutError(f"the gateway was not at work within {TIMEOUT_S} s")
        finally:
            gateway.kill()


def last_records(settings: RunSettings) -> list[Record]:
    """Of the newest part only: the gateway has just begun."""
    alone = settings.path / "newest.jsonl"
    shutil.copy(settings.history_file("gateway"), alone)
    return list(records_of(alone))


def measured(case: Case) -> Measured:
    folder = Path(tempfile.mkdtemp(prefix="understudy-study-"))
    os.environ["TRAFFIC_OUTPUT"] = str(folder / "out")
    server = ZooKeeperServer(folder / "zookeeper")
    try:
        server.start()
        settings = RunSettings(
            run=folder.name,
            flow_path=str(TRAFFIC),
            folder=str(folder / "run"),
            zookeeper=server.address,
            gateway_port=free_port(),
        )
        settings.save()
        write_history(settings, case.lines)
        if case.damaged:
            damage_history(settings)
        write_log(settings, case.buckets)
        parts = list(settings.history_file("gateway").parent.glob("*.jsonl"))
        began_s = time.monotonic()
        verdict = judge(parts)
        check_s = time.monotonic() - began_s
        if verdict.clean is case.damaged or verdict.findings:
            raise AssertionError(f"the history is not what it was to be: {verdict}")
        times = [started(settings) for _ in range(TIMES)]
        return Measured(
            case,
            round(sum(part.stat().st_size for part in parts) / 2**20, 1),
            round(min(answers for answers, _ in times), 2),
            round(min(at_work for _, at_work in times), 2),
            round(check_s, 2),
            round(check_s / max(1, verdict.records) * 1e6, 1),
        )
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    found: list[Measured] = []
    for case in CASES:
        say(f"history of {case.lines:,} lines, log of {case.buckets:,} buckets, damaged: {case.damaged}")
        found.append(measured(case))
    print(f"\n{'lines':>10} {'MB':>6} {'log buckets':>12} {'damaged':>8} {'answers s':>10} {'at work s':>10}")
    for each in found:
        print(
            f"{each.case.lines:>10,} {each.history_mb:>6} {each.case.buckets:>12,} "
            f"{'yes' if each.case.damaged else 'no':>8} {each.answers_s:>10} {each.at_work_s:>10}   "
            f"check: {each.check_s} s, {each.check_us_per_line} us a line"
        )
    say(f"written to {save('restart', {'best_of': TIMES, 'cases': [asdict(each) for each in found]})}")


if __name__ == "__main__":
    main()
