"""Pace: how long an engine rests after a group, and stride: how much it is given at once.

Even an empty micro-batch costs a good tenth of a second of a core. Many engines on few cores that start a
micro-batch for every bucket spend their time on fixed costs and fall behind; if each rests a little, the
buckets that arrive meanwhile go into one group. An engine that shares a core with others works its share of
the time, so it takes small groups often when there is little to do and larger ones as the load grows. That
settles by itself: a larger group takes longer, but less for each row. After a group that could not have been
larger an engine does not rest: the next one will be as large in any case.

Copies rest each in its own time, so one may be most of a period behind its partner. When a process is lost,
the surviving copies may have to take over for it: then no engine rests until they have reached its position.

Until a group ends, no output leaves and no state is lent. So an engine that is behind is given what it
manages in a few seconds, by what groups have taken lately: a fixed size would be seconds for one query and
minutes for another. It is counted in bytes, or in buckets where every bucket is a micro-batch of its own.
Quick queries gain most: with groups of up to 48 MB instead of 16, one that only counts took half as many
rows again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from understudy.core.bucket import BucketId

#: From the beginning of a group to that of the next, at most.
PERIOD_MAX_S = 5.0
#: Of the time that a group takes, so much is work; in the rest it waits for others.
BUSY = 0.7
#: A few slow groups say little: while a newcomer starts, everything takes longer for some seconds.
GROUPS_SEEN = 9
#: A group that spans more time than has passed since the last one began, by this factor, is catching up.
CATCHING_UP = 1.5
#: Without rest after a loss: a few groups, so that a level gets what the level below it hurried for.
HURRY_S = 4.0


@dataclass(frozen=True)
class Measure:
    """What a stride is counted in: so much is given before any group was timed, and within these bounds.

    A group is to take `group_s` at most. The slowest of the last `seen` groups counts.
    """

    first: int
    least: int
    most: int
    group_s: float
    seen: int


#: One group too long would be minutes.
BUCKETS = Measure(first=5, least=1, most=50, group_s=2.0, seen=GROUPS_SEEN)
#: Where many engines share few cores, groups of some seconds are usual, and shorter ones would cost more. An
#: engine that is behind is not to wait until its slow first groups are forgotten.
BYTES = Measure(first=4 * 2**20, least=2**18, most=64 * 2**20, group_s=10.0, seen=2)


class Stride:
    """How much an engine is given at once, in one measure."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._each_s: deque[float] = deque(maxlen=measure.seen)

    @property
    def most(self) -> int:
        """By the slowest of the last groups: shorter ones cost little, a long one delays everything."""
        if not self._each_s:
            return self._measure.first
        measure = self._measure
        return max(measure.least, min(measure.most, int(measure.group_s / max(self._each_s))))

    def is_filled_by(self, sizes: Sequence[int]) -> bool:
        """Whether a group whose buckets have these sizes had no room for another one like its largest."""
        return sum(sizes) + max(sizes) > self.most

    def took(self, group_s: float, amount: int) -> None:
        # A much smaller group says nothing: its time is the fixed cost of a micro-batch.
        if amount * 2 >= self._measure.least:
            self._each_s.append(max(group_s / amount, 1e-12))


class Pace:
    """The pace of one of `crowd` engines on a core. A bucket spans `bucket_s` of the input's time."""

    def __init__(self, crowd: float, bucket_s: float) -> None:
        self._crowd = crowd
        self._bucket_s = bucket_s
        self._took_s: deque[float] = deque(maxlen=GROUPS_SEEN)
        self._last: tuple[float, BucketId] | None = None
        self._hurry_until_s = -math.inf

    def hurry(self, now_s: float) -> None:
        """A process was lost."""
        self._hurry_until_s = now_s + HURRY_S

    def rest_s(self, began_s: float, took_s: float, through: BucketId) -> float:
        """How long to rest after a group, from its end. The group's last bucket was `through`."""
        last, self._last = self._last, (began_s, through)
        self._took_s.append(took_s)
        if last is None or began_s + took_s < self._hurry_until_s:
            return 0.0
        passed_s, span_s = began_s - last[0], (through - last[1]) * self._bucket_s
        if span_s > CATCHING_UP * passed_s:
            return 0.0
        return max(0.0, min(PERIOD_MAX_S, median(self._took_s) * BUSY * self._crowd) - took_s)
