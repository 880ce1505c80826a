"""What outlives a gateway that is upgraded, without a disk: its log, and how far its sinks are delivered."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from boundary_kit import flow_of_two

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.host.limits import Limits
from understudy.core.shape.partition import Copy, Partition
from understudy.flow.errors import EnvironmentFailed
from understudy.flow.policy import policy_named
from understudy.runtime.candidate import Candidate
from understudy.runtime.ingest.buckets import SealedBucket
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.settings import RunSettings

ONE, BOTH = Copy(Partition("one")), Copy(Partition("both"))
#: Which copy feeds each sink, and which copies read each source.
FEEDS = {"first": ONE, "second": BOTH}
READS = {"fast": (ONE, BOTH), "slow": (BOTH,)}


def settings_of(folder: Path, version: int = 1, **limits: int) -> RunSettings:
    return RunSettings(
        "run",
        "f.py",
        str(folder),
        "",
        policy=policy_named("none"),
        nodes=1,
        history=False,
        version=version,
        limits=Limits(**limits),
    )


@dataclass
class Disk:
    """What outlives a gateway: the log, and how far each sink is delivered."""

    folder: Path
    log: list[SealedBucket] = field(default_factory=list)
    trimmed: dict[str, BucketId] = field(default_factory=lambda: dict.fromkeys(READS, NOTHING))
    forgotten: dict[str, BucketId] = field(default_factory=lambda: dict.fromkeys(READS, NOTHING))
    delivered: dict[str, BucketId] = field(default_factory=lambda: dict.fromkeys(FEEDS, NOTHING))
    #: What every sink was given, in order: the number, and the version that made it.
    output: dict[str, list[tuple[BucketId, int]]] = field(
        default_factory=lambda: {name: [] for name in FEEDS}
    )
    limits: dict[str, int] = field(default_factory=dict)

    def settings(self, version: int = 1) -> RunSettings:
        return settings_of(self.folder, version, **self.limits)

    def candidate(self, version: int = 2, *, live: bool = False) -> Candidate:
        settings = self.settings(version)
        return Candidate(settings, Dataflow.of(flow_of_two(), settings), live)


class Reader:
    """Gives the buckets of the log again, two at a time."""

    def __init__(self, disk: Disk, source: str, after: BucketId) -> None:
        self._disk = disk
        self._source = source
        self._after = after

    def read(self, _bytes_max: int) -> list[SealedBucket]:
        if self._after < self._disk.forgotten[self._source]:
            raise EnvironmentFailed(f"what follows {self._after} is forgotten")
        found = [b for b in self._disk.log if b.source == self._source and b.number > self._after][:2]
        self._after = found[-1].number if found else self._after
        return found

    def close(self) -> None:
        pass
