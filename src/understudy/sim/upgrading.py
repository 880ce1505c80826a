"""A run that is upgraded: for a while two versions of a flow side by side, on one gateway.

Both versions compute the same here, so that every checker and the reference hold for both, and what the sinks
get must not show which of them delivered it. What is new are the steps of an upgrade. The operator's, each a
decision on disk that the gateway is told of, or finds when it begins again:

    ("begin",)             the log is pinned, and the next version is prepared
    ("turn",)              all sinks are to take the candidate
    ("back",)              all sinks are to take the base again
    ("commit",)            the candidate becomes the base, and the former base is dropped, if no sink takes it
    ("discard",)           the candidate is dropped, if no sink takes it

Those that happen by themselves, as choices of their own beside those of each version:

    ("adopt", partition)   the newest saved state of a partition of the base becomes the candidate's only one.
                           Producers go first: what a producer's state has let go of, a consumer's state that
                           is adopted later, and is as new at least as any that was kept by then, has
    ("hear", kind)         the gateway's `Turning` hears of the next event of a kind. Different kinds come by
                           different ways, and overtake one another
    ("tell sink", version) a sink of a version is told what `Turning` said

The version's own `restart` stands for opening a candidate's ends. A crash of the gateway takes what was not
heard or told yet with it, and an adoption that was not finished begins anew. A loss of power takes the
candidate with it, unless it was committed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.errors import BrokenInvariant, PeerError
from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Partition
from understudy.core.shape.topology import Topology
from understudy.core.turning import (
    Closed,
    Delivered,
    Opened,
    Rested,
    TellSink,
    Turn,
    Turning,
    TurningEvent,
)
from understudy.sim.checkers import Violation, demand
from understudy.sim.disk import Disk
from understudy.sim.invariants import check_awake, check_converged
from understudy.sim.observing import Observer
from understudy.sim.setup import Setup
from understudy.sim.vault import begins_with
from understudy.sim.versions import Floors, Version
from understudy.sim.world import STORY_CHOICES, Choice

#: What `Turning` hears of, each by its own way.
KINDS = ("open", "turn", "rest", "deliver")


def adoption_order(topology: Topology) -> tuple[Partition, ...]:
    """Producers before their consumers."""
    return topology.partitions


class Upgrading:
    """A run in its first version, with its nodes. Only `take`, and the choices of its versions, change it."""

    def __init__(
        self,
        setup: Setup,
        observers: Iterable[Observer] = (),
        *,
        spares: int = 0,
        keep: Callable[[int], int] = lambda n: n,
    ) -> None:
        self.setup, self.spares, self.keep = setup, spares, keep
        self.observers = tuple(observers)
        topology = setup.flow.topology
        self.disk = Disk.empty(topology.sources, topology.sinks)
        self.floors = Floors()
        self.faults: Counter[str] = Counter()
        #: What saved states and upgrades led to.
        self.happened: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=STORY_CHOICES)
        # On disk, with the logs.
        self.base_number = 1
        self.wanted = 1
        # In the gateway's memory.
        self.turning: Turning | None = None
        self.unheard: dict[str, deque[TurningEvent]] = {kind: deque() for kind in KINDS}
        self.untold: dict[int, deque[TellSink]] = {}
        #: The partitions of the base that the candidate has yet to adopt.
        self.to_adopt: deque[Partition] = deque()
        #: Every version that there ever was.
        self.made: list[Version] = []
        self.own_steps = 0
        self.candidate: Version | None = None
        self.base = self._make()
        self.base.seat(spares)

    def _make(self) -> Version:
        made = self._version(len(self.made) + 1)
        self.made.append(made)
        return made

    def _version(self, number: int) -> Version:
        return Version(self, number, self.setup, self.observers, self.keep)

    # --- reading -----------------------------------------------------------------------------------------

    @property
    def versions(self) -> list[Version]:
        """Those that run or are prepared, the base first."""
        return [self.base] if self.candidate is None else [self.base, self.candidate]

    @property
    def live(self) -> Version:
        """The version whose pace the sources follow."""
        candidate = self.candidate
        wanted = candidate is not None and candidate.number == self.wanted and candidate.hosted
        return candidate if candidate is not None and wanted else self.base

    @property
    def gateway_lives(self) -> bool:
        return self.turning is not None

    @property
    def settled(self) -> bool:
        """Whether all sinks take the version that is wanted, and the gateway knows of no other wish."""
        turning = self.turning
        return turning is not None and turning.turned and turning.wanted == self.wanted

    @property
    def steps(self) -> int:
        return self.own_steps + sum(version.steps for version in self.made)

    @property
    def caught_up(self) -> int:
        return sum(version.caught_up for version in self.made)

    def begins_after(self, version: int, source: str) -> BucketId:
        """Where a version's memory of a source begins when the gateway opens its ends: for a candidate, where
        the base is just now. From there on it follows the log.
        """
        if version == self.base_number:
            return self.disk.trimmed[source]
        put = self.base.processes[GATEWAY].put[source]
        return self.setup.flow.inputs[source][put - 1].number if put else NOTHING

    # --- choices -----------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        """What happens by itself, beside the choices of each version."""
        found: list[Choice] = []
        if self.to_adopt and self.gateway_lives:
            found.append(("adopt", self.to_adopt[0]))
        found += [("hear", kind) for kind, events in self.unheard.items() if events]
        found += [
            ("tell sink", version.number)
            for version in self.versions
            if self.untold.get(version.number) and GATEWAY not in version.stalled
        ]
        return found

    def wishes(self) -> list[Choice]:
        """What the operator can do now."""
        candidate = self.candidate
        if candidate is None:
            return [("begin",)] if self.base.view is not None else []
        found: list[Choice] = []
        if self.wanted != self.base_number:
            found.append(("back",))
        elif candidate.view is not None:
            found.append(("turn",))
        if self._may_close(self.base):
            found.append(("commit",))
        if self._may_close(candidate):
            found.append(("discard",))
        return found

    def _may_close(self, version: Version) -> bool:
        """Whether no sink takes this version, and none will."""
        turning = self.turning
        if turning is None:
            # A gateway that begins again knows no more than what is on disk by then.
            return version is self.candidate or self.wanted != version.number
        never_open = version is self.candidate and version.number not in turning.open
        return self.wanted != version.number and (self.settled or never_open)

    def take(self, choice: Choice) -> None:
        """Let one choice happen, of the operator or of the run itself."""
        self.own_steps += 1
        self.story.append(" ".join(map(str, choice)))
        try:
            self._take(choice)
            self.check()
        except Violation as violation:
            raise Violation(violation.invariant, self.base.with_choices(violation.what)) from violation

    def _take(self, choice: Choice) -> None:
        match choice:
            case ("begin",):
                self.happened["upgrades"] += 1
                self.candidate = self._make()
                self.candidate.feed_max = self.base.feed_max
                self._begin_adopting()
            case "adopt", Partition() as partition, *rest:
                self._adopt(partition, damaged=len(rest))
            case ("turn",):
                assert self.candidate is not None
                self.happened["turns"] += 1
                self._want(self.candidate.number)
            case ("back",):
                self.happened["turns back"] += 1
                self._want(self.base_number)
            case ("commit",):
                self._commit()
            case ("discard",):
                self._discard()
            case "hear", str(kind):
                self._hear(self.unheard[kind].popleft())
            case "tell sink", int(number):
                (version,) = (each for each in self.versions if each.number == number)
                version.tell(self.untold[number].popleft())
            case _:
                raise TypeError(f"a run does not know {choice}")

    # --- the steps of an upgrade -------------------------------------------------------------------------

    def _begin_adopting(self) -> None:
        """What an attempt adopted that did not get to its end is older than what is adopted now."""
        candidate = self.candidate
        assert candidate is not None
        candidate.vault, candidate.adopted = {}, frozenset()
        self.to_adopt = deque(adoption_order(self.setup.flow.topology))

    def _adopt(self, partition: Partition, damaged: int) -> None:
        """A partition that was never saved begins with nothing, as it would in the base."""
        candidate = self.candidate
        assert candidate is not None
        self.to_adopt.remove(partition)
        kept = begins_with(self.base.vault, partition, damaged=damaged)
        if kept is not None:
            self.happened["adopted"] += 1
            self.happened["older states adopted"] += damaged
            candidate.vault = {**candidate.vault, partition: (kept,)}
            candidate.adopted |= {partition}
        if not self.to_adopt:
            candidate.seat(self.spares)
            candidate.check_kept()

    def _want(self, version: int) -> None:
        self.wanted = version
        if self.gateway_lives:
            self.unheard["turn"].append(Turn(version))

    def _commit(self) -> None:
        former, candidate = self.base, self.candidate
        assert candidate is not None
        self.happened["commits"] += 1
        self._close(former)
        self.base_number, self.base, self.candidate = candidate.number, candidate, None
        self.floors.drop(former.number)
        self.base.let_go_of_logs()

    def _discard(self) -> None:
        candidate = self.candidate
        assert candidate is not None
        self.happened["discards"] += 1
        self._close(candidate)
        self._drop_candidate()
        self.base.let_go_of_logs()

    def _drop_candidate(self) -> None:
        if self.candidate is not None:
            self.floors.drop(self.candidate.number)
            self.candidate, self.to_adopt = None, deque()
        self.wanted = self.base_number

    def _close(self, version: Version) -> None:
        """The ends of a version are hosted no longer, if they were."""
        if self.turning is None:
            return
        opening, number = self.unheard["open"], version.number
        self.unheard["open"] = deque(event for event in opening if event != Opened(number))
        self.untold.pop(number, None)
        if number in self.turning.open:
            self._hear(Closed(number))

    # --- the gateway -------------------------------------------------------------------------------------

    def gateway_started(self, version: Version) -> None:
        """The host of this version has seen no view yet."""
        if version.is_base:
            self.turning = Turning(self.wanted, dict(self.disk.delivered))
        else:
            self.happened["opens"] += 1

    def crash(self) -> None:
        """The gateway is gone, with its hosts of all versions."""
        self.turning = None
        self.unheard = {kind: deque() for kind in KINDS}
        self.untold = {}
        self.floors.gateway_gone()
        for version in self.versions:
            version.lose_gateway()
        if self.to_adopt:
            self.happened["adoptions begun anew"] += 1
            self._begin_adopting()

    def lose_power(self) -> None:
        """Everything is gone but what is on disk or saved. The run goes on in its base."""
        self.happened["power failures beside a candidate"] += self.candidate is not None
        self.crash()
        self._drop_candidate()
        self.base.begin_after_power_failure()

    def opened(self, version: Version) -> None:
        self.unheard["open"].append(Opened(version.number))

    def rests(self, version: Version, sink: str, through: BucketId) -> None:
        self.unheard["rest"].append(Rested(version.number, sink, through))

    def delivered(self, version: Version, sink: str, through: BucketId) -> None:
        self.happened["deliveries of the base" if version.is_base else "deliveries of a candidate"] += 1
        self.unheard["deliver"].append(Delivered(sink, through))

    def _hear(self, event: TurningEvent) -> None:
        assert self.turning is not None
        try:
            for told in self.turning.handle(event):
                self.untold.setdefault(told.version, deque()).append(told)
            self.turning.check()
        except (PeerError, BrokenInvariant) as error:
            raise Violation("sound", f"the gateway's turning on {event}: {error}") from error

    # --- what must hold ----------------------------------------------------------------------------------

    def check(self) -> None:
        """After every step."""
        check_awake(self.versions)

    def check_converged(self) -> None:
        """Everything is delivered, all versions have caught up, and the sinks take the one that is wanted."""
        versions = self.versions
        try:
            for version in versions:
                check_converged(version, beside=[each for each in versions if each is not version])
            demand(self.settled, "converged", f"not all sinks take version {self.wanted}")
        except Violation as violation:
            raise Violation(violation.invariant, self.base.with_choices(violation.what)) from violation
