"""How long hosts are busy with one `Reverse`, by how many buckets the producer keeps.

    python studies/reverse.py

A consumer whose producer died asks another copy of it for everything that it has not received. That copy may
keep as many as 100,000 buckets, and its host does nothing else while it answers, nor does the consumer's
while it takes them: every other copy on the node waits. The aim is less than 50 ms. The study times the hosts
alone, without encoding and sending.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

from understudy.core.bucket import NOTHING, Bucket
from understudy.core.edge.messages import Data, Reverse
from understudy.core.host.host import Host
from understudy.core.host.parcels import (
    Attach,
    Began,
    Dispatch,
    Inside,
    ParcelFrom,
    PeerUp,
    Say,
    ViewSeen,
    Welcome,
    Work,
)
from understudy.core.host.places import GATEWAY
from understudy.core.replica.events import Produced
from understudy.core.shape.partition import Copy, Partition
from understudy.core.shape.topology import chain_of
from understudy.core.view.view import Seat, Seats, Status, View

KEPT = (1_000, 10_000, 100_000)
ROUNDS = 20
AIM_MS = 50
RESULT = Path(__file__).parent / "results" / "reverse.json"

SEGMENT = Partition("f")
SOURCE, CONSUMER = Copy(Partition("source")), Copy(SEGMENT)
ATTACH = Attach(CONSUMER, 1, SOURCE, 0, 1, NOTHING)
REVERSE = Say(CONSUMER, SOURCE, 1, Reverse(NOTHING))
FIRST_VIEW = View(1, {SEGMENT: Seats(1, (Seat("a", 1, Status.ACTIVE), Seat("b", 1, Status.ACTIVE)))})


def buckets(count: int) -> tuple[Bucket, ...]:
    return tuple(Bucket(number, b"rows", 4) for number in range(count))


def producer(count: int) -> Host:
    """A gateway whose source keeps so many buckets for a consumer that is attached and has asked for none."""
    host = Host(GATEWAY, chain_of(f=1))
    host.handle(ViewSeen(FIRST_VIEW))
    host.handle(PeerUp("a", 1))
    host.handle(ParcelFrom("a", 1, ATTACH))
    host.handle(Inside(SOURCE, 0, Produced(((SEGMENT, buckets(count)),))))
    return host


def consumer() -> Host:
    """A node whose copy has asked the source for everything."""
    host = Host("a", chain_of(f=1))
    host.handle(ViewSeen(FIRST_VIEW))
    host.handle(PeerUp(GATEWAY, 1))
    host.handle(Began(CONSUMER, 1))
    host.handle(ParcelFrom(GATEWAY, 1, Welcome(SOURCE, CONSUMER, 1, NOTHING)))
    return host


def busy_ms(host: Host, event: ParcelFrom, expected: type) -> float:
    """How long the host takes to handle this event, which must lead to an instruction of a kind."""
    gc.collect()
    began_s = time.perf_counter()
    done = host.handle(event)
    busy = (time.perf_counter() - began_s) * 1_000
    if not any(isinstance(each, expected) for each in done):
        raise SystemExit(f"{host.name} did not answer with a {expected.__name__}: {done!r:.200}")
    return busy


def measured(count: int) -> dict[str, float]:
    keeping = producer(count)
    data = Say(SOURCE, CONSUMER, 1, Data(buckets(count)))
    times_ms = {
        "answering": [busy_ms(keeping, ParcelFrom("a", 1, REVERSE), Dispatch) for _ in range(ROUNDS)],
        "taking": [busy_ms(consumer(), ParcelFrom(GATEWAY, 1, data), Work) for _ in range(ROUNDS)],
    }
    point: dict[str, float] = {"kept_buckets": count}
    for what, each_ms in times_ms.items():
        point[f"{what}_median_ms"] = round(statistics.median(each_ms), 3)
        point[f"{what}_longest_ms"] = round(max(each_ms), 3)
    return point


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(f"busy with one Reverse, in ms, {ROUNDS} times each; the aim is below {AIM_MS} ms")
    print(f"{'':>14} {'producer answers':>22} {'consumer takes':>22}")
    print(f"{'kept buckets':>14} {'median':>11}{'longest':>11} {'median':>11}{'longest':>11}")
    points = [measured(count) for count in KEPT]
    for count, *each_ms in (point.values() for point in points):
        shown = [f"{ms:>11.2f}" for ms in each_ms]
        print(f"{count:>14,} {shown[0]}{shown[1]} {shown[2]}{shown[3]}")
    result = {"aim_ms": AIM_MS, "rounds": ROUNDS, "points": points}
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
