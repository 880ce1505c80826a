"""A world in virtual time, all of it made from one seed.

Every item that is posted gets a time at which it is due: now plus a delay drawn from the range of its
channel's pace, and never before what was posted to the same channel earlier. A seed also draws the ranges
themselves, over three orders of magnitude: in one run views crawl while engines fly, in the next it is the
other way round. That reaches odd interleavings far sooner than one plausible set of latencies.

A process that is stalled takes nothing until it wakes; what is due for it meanwhile waits in order.
"""

from __future__ import annotations

import heapq
from collections import deque
from random import Random

from understudy.core.errors import BrokenInvariant, PeerError
from understudy.sim.checkers import Reference, Violation
from understudy.sim.items import CONTROLLER, Channel, Item, Setup
from understudy.sim.world import World

#: For each pace the middle of its delays, in virtual microseconds.
PACES_US = {
    "link": 1_000,
    "view": 5_000,
    "report": 3_000,
    "engine": 4_000,
    "disk": 1_500,
    "mover": 20_000,
    "connect": 3_000,
    "silence": 40_000,
    "source": 2_500,
    "restart": 10_000,
}
RETRY_US = 2_000
#: After so many tries in a row of what is held back, with nothing else happening, nothing ever will.
HELD_MAX = 2_000
STORY_STEPS_MAX = 60


class TimedWorld(World):
    """Virtual time over a world; `run` lets it go on until nothing is due any more."""

    def __init__(self, setup: Setup, reference: Reference, seed: int, *, even: bool = False) -> None:
        super().__init__(setup, reference)
        self.seed = seed
        self.random = Random(seed)
        self.now_us = 0
        self.steps = 0
        self.stalled_until_us: dict[str, int] = {}
        self.story: deque[tuple[int, Channel, Item]] = deque(maxlen=STORY_STEPS_MAX)
        self.faults: list[str] = []
        self._due: list[tuple[int, int, Channel]] = []
        self._posted = 0
        self._last_due_us: dict[Channel, int] = {}
        self._pace_us = {
            pace: delay_us if even else int(delay_us * 10 ** self.random.uniform(-1.2, 1.2))
            for pace, delay_us in PACES_US.items()
        }

    # --- choices -----------------------------------------------------------------------------------------

    def post(self, channel: Channel, item: Item) -> None:
        super().post(channel, item)
        delay_us = int(self._pace_us[channel[0]] * (0.5 + self.random.random()))
        due_us = max(self.now_us + delay_us, self._last_due_us.get(channel, 0))
        self._last_due_us[channel] = due_us
        self._push(due_us, channel)

    def keep(self, count: int) -> int:
        return self.random.randint(0, count) if count else 0

    def commit_buckets(self, waiting: int) -> int:
        return self.random.randint(0, waiting) if waiting else 0

    @property
    def controller_answers(self) -> bool:
        return self.stalled_until_us.get(CONTROLLER, 0) <= self.now_us

    def stall(self, name: str, for_us: int) -> None:
        self.observe(name, "fault", what="stall", target=name)
        self.stalled_until_us[name] = max(self.now_us + for_us, self.stalled_until_us.get(name, 0))

    # --- running -----------------------------------------------------------------------------------------

    def next_step(self) -> tuple[Channel, Item] | None:
        """Make the next thing happen; None when nothing can happen any more."""
        held = 0
        while self._due and held < HELD_MAX:
            due_us, posted, channel = heapq.heappop(self._due)
            if channel not in self.channels:
                continue
            self.now_us = max(self.now_us, due_us)
            wakes_us = self.stalled_until_us.get(channel[1], 0)
            if wakes_us > self.now_us:
                heapq.heappush(self._due, (wakes_us, posted, channel))
                continue
            item = self.head(channel)
            if item is None:
                held += 1
                if self.process(channel[1]) is not None:
                    self._push(self.now_us + RETRY_US, channel)
                continue
            self._skip_views(channel)
            item = self.channels[channel][0]
            self.story.append((self.now_us, channel, item))
            self.steps += 1
            self.step(channel)
            return channel, item
        return None

    def _skip_views(self, channel: Channel) -> None:
        """Whoever is slow to look sees only the newest view."""
        queue = self.channels[channel]
        if channel[0] == "view" and len(queue) > 1 and self.random.random() < 0.3:
            self.channels[channel] = queue[-1:]

    def _push(self, due_us: int, channel: Channel) -> None:
        self._posted += 1
        heapq.heappush(self._due, (due_us, self._posted, channel))

    def explain(self, error: Violation | PeerError | BrokenInvariant) -> Violation:
        """The error as a violation that names the seed and tells what led to it."""
        invariant = error.invariant if isinstance(error, Violation) else "sound"
        what = error.what if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
        steps = [f"  {at_us:>9} us  {channel[1]:<10} took {item}" for at_us, channel, item in self.story]
        faults = ", ".join(self.faults) or "none"
        story = "\n".join(steps)
        return Violation(
            invariant, f"seed {self.seed}: {what}\nfaults so far: {faults}\nlast steps:\n{story}"
        )
