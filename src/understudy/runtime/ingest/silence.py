"""How long a source has been silent, as far as this process can tell.

A source with an idle time must not hold the flow back while it has no rows: once it was silent for that long,
its event time goes on at the speed of the clock. Rows that arrive after that may be late, so silence counts
only while the gateway could have received a row. It begins anew after every moment in which the gateway could
not: while there was no room for the source, while a push waited or was being taken in, and while the process
was stopped, which shows as a gap between two ticks. A source with a reader is silent until the moment in
which the reader was last asked and had nothing: what came after that is not known yet. Silence begins with
the process, so the time that the process was down does not count either. The clock is monotonic: a step of
the wall clock is no silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from understudy.core.bucket import NOTHING, BucketId
from understudy.runtime.ingest.stamper import Stamper

# Ticks this far apart are ordinary on a busy machine.
_GAP_MIN_US = 100_000
_GAP_MAX_US = 1_000_000


class Silence:
    """The silence of one source with an idle time."""

    def __init__(self, stamper: Stamper, idle_us: int) -> None:
        self._stamper = stamper
        self._idle_us = idle_us
        self._gap_max_us = min(max(idle_us // 2, _GAP_MIN_US), _GAP_MAX_US)
        self._began_us: int | None = None
        self._ticked_us: int | None = None
        self._through_us = 0
        self._from_us: int | None = None

    def heard(self) -> None:
        """A push of the source arrived: silence begins anew."""
        self._began_us = None

    def tick(self, now_us: int, *, deaf: bool, asked_us: int | None = None) -> None:
        """The monotonic clock shows `now_us`. `deaf`: rows may have come unheard since the last tick.

        `asked_us` is when its reader was last asked, if it has one.
        """
        stopped = self._ticked_us is not None and now_us - self._ticked_us > self._gap_max_us
        self._ticked_us = now_us
        if self._began_us is None or deaf or stopped:
            self._began_us = now_us
            self._from_us = self._stamper.reached_us
        self._through_us = now_us if asked_us is None else min(now_us, asked_us)

    @property
    def long_enough(self) -> bool:
        """Whether the source was silent for its idle time."""
        return self._beyond_us is not None

    @property
    def boundary(self) -> BucketId:
        """The boundary that the silence justifies; it may be one already passed.

        Event time goes on from where it was, `idle_us` behind the clock, so that a source that resumes within
        that slack is not late.
        """
        beyond_us = self._beyond_us
        if beyond_us is None or self._from_us is None:
            return NOTHING
        return self._stamper.sealed_by(self._from_us + beyond_us)

    @property
    def _beyond_us(self) -> int | None:
        if self._began_us is None:
            return None
        beyond_us = self._through_us - self._began_us - self._idle_us
        return beyond_us if beyond_us >= 0 else None


class Deafness:
    """Which sources cannot be heard. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._reasons: Counter[str] = Counter()
        self._missed: set[str] = set()

    def begin(self, source: str) -> None:
        """One more reason not to hear this source."""
        with self._lock:
            self._reasons[source] += 1
            self._missed.add(source)

    def end(self, source: str) -> None:
        """One reason less."""
        with self._lock:
            self._reasons[source] -= 1

    @contextmanager
    def during(self, source: str) -> Iterator[None]:
        self.begin(source)
        try:
            yield
        finally:
            self.end(source)

    def since_last_asked(self) -> frozenset[str]:
        """The sources that could not be heard at some time since this was last asked."""
        with self._lock:
            deaf = frozenset(self._missed)
            self._missed = {source for source, reasons in self._reasons.items() if reasons > 0}
            return deaf
