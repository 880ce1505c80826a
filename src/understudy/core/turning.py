"""Turning: which version of a flow each sink takes its output from, while two versions run side by side.

A changed flow goes live without a silence: its new version runs as a second dataflow beside the old one, with
nodes, seats and views of its own, fed by the same sources. Only the gateway knows of both. It hosts the ends
of each version, and for every sink one consumer of each version is awake and the others rest
(`core.replica.consumer`). To turn a sink is to let the one rest and then wake the other:

    Turn(2)              sink of version 1             sink of version 2
    Tell Rest  ───────▶  finishes its group
               ◀───────  Rests, through T
    Tell Wake(T)  ──────────────────────────────────▶  hands out what follows T
    Tell Passed(U)  ──▶  drops through U               Delivered through U

**Each bucket once.** A sink is awake in one version at most: the next is woken only when the one before has
said that it rests, and with the number of the last bucket that it handed out, which is delivered by then.
Both versions number their buckets by the same clock, the time of the rows, so that number means the same in
both. It does not matter how far the version that is woken has come: it goes on from that number when it gets
there.

**Nothing is lost in the other version.** A sink that rests acknowledges what was delivered and not more. So
the version that rests keeps all that follows, and can be turned to at any time. That is how a new version
is taken back.

**A gateway that begins again** knows from its disk which version was wanted, and how far each sink is
delivered; the rest follows from these. Whether the last turn had been finished makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from understudy.core.bucket import BucketId
from understudy.core.errors import require
from understudy.core.machine import Machine
from understudy.core.replica.events import Passed, Rest, Wake

# --- events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The ends of this version are hosted now, and all its sinks rest."""

    version: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The ends of this version are hosted no longer. No sink takes its output."""

    version: int


@dataclass(frozen=True, slots=True)
class Turn:
    """All sinks are to take the output of this version, once its ends are hosted."""

    version: int


@dataclass(frozen=True, slots=True)
class Rested:
    """A sink of this version, which was told to rest, has delivered everything through this number."""

    version: int
    sink: str
    through: BucketId


@dataclass(frozen=True, slots=True)
class Delivered:
    """A sink holds everything through this number."""

    sink: str
    through: BucketId


TurningEvent = Opened | Closed | Turn | Rested | Delivered

# --- instructions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TellSink:
    """Give this to the sink of this version."""

    version: int
    sink: str
    event: Rest | Passed | Wake


class Turning(Machine[TurningEvent, TellSink]):
    """`delivered` says through which number each sink holds its output. No version is open at first."""

    def __init__(self, wanted: int, delivered: Mapping[str, BucketId]) -> None:
        super().__init__("turning")
        #: The version that all sinks are to take.
        self.wanted = wanted
        self.delivered = dict(sorted(delivered.items()))
        self.open: set[int] = set()
        #: The version whose sink is awake, or was told to rest and has not said yet that it does.
        self.awake: dict[str, int] = {}
        #: The sinks that were told to rest.
        self._resting: set[str] = set()

    @property
    def turned(self) -> bool:
        """Whether every sink takes the version that is wanted."""
        taken = [self.awake.get(sink) for sink in self.delivered if sink not in self._resting]
        return taken == [self.wanted] * len(self.delivered)

    def takes(self, version: int) -> bool:
        """Whether some sink takes the output of this version, or may still deliver some."""
        return version in self.awake.values()

    def _handle(self, event: TurningEvent) -> list[TellSink]:
        match event:
            case Opened(version):
                require(version not in self.open, f"version {version} was opened twice")
                self.open.add(version)
                known = [TellSink(version, sink, Passed(n)) for sink, n in self.delivered.items()]
                return [*known, *self._wake()]
            case Closed(version):
                require(version in self.open, f"version {version} was closed and is not open")
                require(not self.takes(version), f"version {version} was closed, and a sink takes its output")
                self.open.discard(version)
                return []
            case Turn(version):
                self.wanted = version
                return self._lay_to_rest()
            case Rested(version, sink, through):
                require(
                    self.awake.get(sink) == version and sink in self._resting,
                    f"{sink} of version {version} rests and was not told to",
                )
                self._resting.discard(sink)
                del self.awake[sink]
                self.delivered[sink] = max(self.delivered[sink], through)
                return self._wake()
            case Delivered(sink, through):
                require(sink in self.delivered, f"{sink} is no sink")
                self.delivered[sink] = max(self.delivered[sink], through)
                others = sorted(self.open - {self.awake.get(sink)})
                return [TellSink(version, sink, Passed(through)) for version in others]

    def _lay_to_rest(self) -> list[TellSink]:
        """Let every sink rest that takes another version than the one that is wanted."""
        told = []
        for sink, version in self.awake.items():
            if version != self.wanted and sink not in self._resting:
                self._resting.add(sink)
                told.append(TellSink(version, sink, Rest()))
        return [*told, *self._wake()]

    def _wake(self) -> list[TellSink]:
        """Wake what rests in every version, in the one that is wanted."""
        told = []
        for sink, through in self.delivered.items() if self.wanted in self.open else ():
            if sink not in self.awake:
                self.awake[sink] = self.wanted
                told.append(TellSink(self.wanted, sink, Wake(through)))
        return told

    def check(self) -> None:
        require(self.awake.keys() <= self.delivered.keys(), "what is awake is no sink")
        require(set(self.awake.values()) <= self.open, "a sink is awake in a version that is not open")
        require(self._resting <= self.awake.keys(), "a sink was told to rest and is not awake")
        for sink, version in self.awake.items():
            going = version == self.wanted or sink in self._resting
            require(going, f"{sink} takes version {version}, and {self.wanted} is wanted")
