"""How engines that share cores take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from small_engine import SmallEngine

from understudy.core.bucket import Bucket
from understudy.core.replica.events import LimitGroups
from understudy.engine.interface import Snapshot
from understudy.runtime.node.pace import (
    BUCKETS,
    BUSY,
    BYTES,
    GROUPS_SEEN,
    HURRY_S,
    PERIOD_MAX_S,
    Measure,
    Pace,
    Stride,
)
from understudy.runtime.node.worker import Shares, Worker

BUCKET_S = 0.1


def rests(crowd: float, groups: Sequence[tuple[float, float, int]]) -> list[float]:
    """The rest after each group: when it began, how long it took and its last bucket."""
    pace = Pace(crowd, BUCKET_S)
    return [pace.rest_s(*group) for group in groups]


def test_an_engine_works_its_share_of_the_time() -> None:
    period_s = 0.25 * BUSY * 4
    rested = rests(4, [(0, 0.25, 0), (1, 0.25, 10), (2, 0.25, 20)])
    assert rested == [0, *[pytest.approx(period_s - 0.25)] * 2]


@pytest.mark.parametrize("crowd", [0.0, 0.5, 1.0])
def test_one_with_a_core_to_itself_never_rests(crowd: float) -> None:
    assert rests(crowd, [(0, 0.25, 0), (1, 0.25, 10), (2, 3.0, 20)]) == [0, 0, 0]


def test_a_single_slow_group_changes_nothing() -> None:
    usual = pytest.approx(0.2 * BUSY * 4 - 0.2)
    assert rests(4, [(0, 0.2, 0), (1, 0.2, 10), (2, 3.0, 20), (5, 0.2, 40)]) == [0, usual, 0, usual]


def test_groups_are_never_further_apart_than_a_few_seconds() -> None:
    slow = [(10.0 * n, 2.0, 100 * n) for n in range(GROUPS_SEEN)]
    assert rests(100, slow)[-1] == PERIOD_MAX_S - 2


def test_who_catches_up_does_not_rest_until_it_has() -> None:
    # It came in 30 s behind, and takes ten seconds' worth at a time.
    behind = [(0.0, 0.5, 0), (0.5, 0.5, 100), (1.0, 0.5, 200), (1.5, 0.5, 300), (2.0, 0.5, 305)]
    assert rests(4, behind) == [0, 0, 0, 0, pytest.approx(0.5 * BUSY * 4 - 0.5)]


def test_no_engine_rests_just_after_a_loss() -> None:
    pace = Pace(4, BUCKET_S)
    for began_s in (0.0, 1.0, 2.0):
        pace.rest_s(began_s, 0.25, round(10 * began_s))
    pace.hurry(2.5)
    rested = [pace.rest_s(began_s, 0.25, round(10 * began_s)) for began_s in (3.0, 4.0, 5.0, 2.5 + HURRY_S)]
    assert rested == [0, 0, 0, pytest.approx(0.25 * BUSY * 4 - 0.25)]


@pytest.mark.parametrize(
    ("groups", "buckets_max"),
    [
        ([], BUCKETS.first),
        ([(BUCKETS.group_s, 4)], 4),
        ([(BUCKETS.group_s * 10, 4)], 1),
        ([(0.0, 1)], BUCKETS.most),
        # One quick group does not make a long one of the next.
        ([(BUCKETS.group_s, 4), (BUCKETS.group_s, 40)], 4),
        ([(BUCKETS.group_s, 4), *[(BUCKETS.group_s, 40)] * GROUPS_SEEN], 40),
    ],
)
def test_buckets_that_are_taken_one_by_one_come_by_the_time_they_take(
    groups: list[tuple[float, int]], buckets_max: int
) -> None:
    stride = Stride(BUCKETS)
    for group in groups:
        stride.took(*group)
    assert stride.most == buckets_max


MB = 2**20


@pytest.mark.parametrize(
    ("groups", "bytes_max"),
    [
        ([], BYTES.first),
        ([(BYTES.group_s, 4 * MB)], 4 * MB),
        ([(BYTES.group_s / 2, 4 * MB)], 8 * MB),
        ([(0.1, 4 * MB)], BYTES.most),
        # A slow query is given little, and not nothing.
        ([(BYTES.group_s * 4, 4 * MB)], MB),
        ([(BYTES.group_s * 100, 4 * MB)], BYTES.least),
        # Small groups say nothing of large ones.
        ([(BYTES.group_s / 2, 4 * MB), *[(0.2, 1_000)] * GROUPS_SEEN], 8 * MB),
        ([(0.2, 0)], BYTES.first),
        # The first groups after a start are slow.
        ([(BYTES.group_s, 4 * MB), (0.1, 4 * MB)], 4 * MB),
        ([(BYTES.group_s, 4 * MB), (0.1, 4 * MB), (0.1, 4 * MB)], BYTES.most),
    ],
)
def test_a_quick_engine_that_is_behind_gets_large_groups(
    groups: list[tuple[float, int]], bytes_max: int
) -> None:
    stride = Stride(BYTES)
    for group in groups:
        stride.took(*group)
    assert stride.most == bytes_max


@pytest.mark.parametrize(
    ("measure", "sizes", "filled"),
    [
        (BUCKETS, [1] * BUCKETS.first, True),
        (BUCKETS, [1] * (BUCKETS.first - 1), False),
        (BYTES, [2 * MB, MB], True),
        (BYTES, [MB, MB], False),
        (BYTES, [0], False),
        (BYTES, [100 * MB], True),
    ],
)
def test_a_group_is_full_if_another_bucket_would_not_have_fitted(
    measure: Measure, sizes: list[int], filled: bool
) -> None:
    assert Stride(measure).is_filled_by(sizes) is filled


class Waiting:
    """An owner that waits for its worker."""

    def __init__(self) -> None:
        self.done = threading.Semaphore(0)

    def produced(self, shares: Shares) -> None:
        pass

    def limit_groups(self, limit: LimitGroups) -> None:
        pass

    def processed(self) -> None:
        self.done.release()

    def snapshot_taken(self, version: int, snapshot: Snapshot, pause_us: int) -> None:
        pass

    def snapshot_failed(self, version: int, why: Exception) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        raise error


class Restful(Pace):
    """Always rests for a minute."""

    def rest_s(self, began_s: float, took_s: float, through: int) -> float:
        return 60.0


def test_who_has_more_to_do_than_a_group_may_have_does_not_rest(tmp_path: Path) -> None:
    owner = Waiting()
    engine = SmallEngine(tmp_path, ())
    engine.stepwise = True
    worker = Worker(engine, owner, Restful(1, 1), stream_for=str, time_of={}, produced={})
    worker.process([Bucket(number) for number in range(BUCKETS.first)])
    assert owner.done.acquire(timeout=30)
    worker.process([Bucket(BUCKETS.first)])
    assert not owner.done.acquire(timeout=0.2)
    worker.end()
    worker.join(30)


@pytest.mark.parametrize("rouse", [Worker.wake, Worker.end])
def test_who_is_waited_for_does_not_go_on_resting(rouse: Callable[[Worker], None], tmp_path: Path) -> None:
    owner = Waiting()
    worker = Worker(
        SmallEngine(tmp_path, ()),
        owner,
        Restful(1, 1),
        stream_for=str,
        time_of={},
        produced={},
    )
    worker.process([Bucket(1)])
    assert not owner.done.acquire(timeout=0.2)
    rouse(worker)
    assert owner.done.acquire(timeout=30)
    worker.end()
    worker.join(30)
