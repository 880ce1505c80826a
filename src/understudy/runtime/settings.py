"""What every process of one run must agree on: a small JSON file in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from understudy.core.errors import BrokenInvariant
from understudy.core.host.limits import Limits
from understudy.flow.errors import EnvironmentFailed, FlowError
from understudy.flow.policy import POLICIES, Policy
from understudy.runtime.durable import make_path, write_whole

FILE = "run.json"
#: The folder of what belongs to later versions of the flow.
VERSIONS = "versions"
#: Another version of the program may keep other fields, or mean other things by them.
FORMAT = 5
#: More views than a run of one generation ever has.
EPOCHS_MAX = 1_000_000
#: What reading a file of the run's folder raises if it is gone, damaged, or of other contents.
UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError),
    *(FlowError, BrokenInvariant),
)


def node_names(count: int, first: int = 1) -> list[str]:
    """So many nodes, counted from the first."""
    return [f"node-{number}" for number in range(first, first + count)]


@dataclass(frozen=True)
class RunSettings:
    """One run of one flow. Paths are absolute, so that processes may stand anywhere."""

    run: str
    flow_path: str
    folder: str
    zookeeper: str
    #: The policy with its parameters, as it was when the run was created.
    policy: Policy = field(default_factory=lambda: POLICIES["pair"])
    #: The nodes that have a place at the start; more may wait.
    nodes: int = 2
    #: The nodes that wait to take a place, as many as were started.
    standby: int = 0
    #: How many partitions a fragment has that may be split; 0: as many as there are nodes for one dataflow.
    partitions: int = 0
    host: str = "127.0.0.1"
    gateway_port: int = 0
    master: str = "local[2]"
    heap_mb: int = 640
    #: How much may wait in one process. The file keeps them beside the other settings.
    limits: Limits = field(default_factory=Limits)
    history: bool = True
    #: What the histories of one name may take on disk, all incarnations together, and the size of one part.
    history_bytes_max: int = 512 * 2**20
    history_part_bytes: int = 16 * 2**20
    #: Whether the ZooKeeper is the run's own, started with it.
    own_zookeeper: bool = False
    #: The name of the flow: a run goes on with this one only.
    flow: str = ""
    #: How often the state is saved; 0: never, and a run that loses all copies of a partition is lost.
    snapshot_every_ms: int = 10_000
    #: Where it is saved: a folder or a URL of a file system; nothing: in the run's folder.
    store: str = ""
    #: The name under which it is saved there. No other run has it, even if its folder has that name.
    saved_as: str = ""
    #: How many snapshots of each partition are kept.
    snapshots_kept: int = 2
    #: How often this run was begun or gone on with. Views of a later one have greater epochs.
    generation: int = 1
    #: Which code of the flow it runs: an upgrade begins the next version. And how many were ever begun, those
    #: that were taken back included.
    version: int = 1
    versions_tried: int = 1
    #: The number of its first node: a version that runs beside another has nodes of its own.
    first_node: int = 1
    #: So many engines share a core, and each rests so that all get their turn; 0: none ever rests; None: the
    #: process that starts the others decides.
    crowd: float | None = None
    #: Java compiles quickly and lightly, not for the best code: for machines with more nodes than cores.
    light_compiler: bool = False

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def partition_count(self) -> int:
        return self.partitions or self.policy.partitions_for(self.nodes)

    @property
    def saves(self) -> bool:
        """Whether the state is saved. Isolated replicas are a baseline, which does not."""
        return self.snapshot_every_ms > 0 and not self.policy.isolated

    @property
    def store_url(self) -> str:
        return self.store or str(self.path / "saved")

    @property
    def has_keys(self) -> bool:
        """Whether keys of the store may be among them. Files with them are for their owner alone then."""
        return "://" in self.store and ("@" in self.store or "?" in self.store)

    @property
    def coordinates(self) -> str:
        """The name under which the processes meet in ZooKeeper: what an earlier generation left is void, and
        versions that run side by side know nothing of each other.
        """
        name = self.run if self.generation == 1 else f"{self.run}~{self.generation}"
        return name if self.version == 1 else f"{name}@{self.version}"

    @property
    def version_path(self) -> Path:
        """Where that is kept which belongs to one version: its code, and what its state was made by."""
        return self.path if self.version == 1 else self.path / VERSIONS / str(self.version)

    @property
    def node_names(self) -> list[str]:
        """The nodes that have a place at the start, then those that wait for one."""
        return node_names(self.nodes + self.standby, self.first_node)

    @property
    def first_epoch(self) -> int:
        return 1 + (self.generation - 1) * EPOCHS_MAX

    @property
    def silence_s(self) -> float:
        return self.policy.silence_ms / 1_000

    @property
    def beat_s(self) -> float:
        """How often a connection gives a sign: eight signs must fail to come before it counts as broken."""
        return min(0.25, self.silence_s / 8)

    def log_file(self, process: str) -> Path:
        return self.path / "logs" / f"{process}.log"

    def history_file(self, process: str) -> Path:
        return self.path / "history" / f"{process}.jsonl"

    def save(self) -> None:
        make_path(self.path)
        write_whole(self.path / FILE, json.dumps(self.to_json(), indent=2) + "\n", private=self.has_keys)

    def to_json(self) -> dict[str, Any]:
        values = {"format": FORMAT, **asdict(self), **asdict(self.limits), "policy": self.policy.to_json()}
        del values["limits"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunSettings:
        """What `to_json` made. Anything else raises one of several errors."""
        policy = Policy.from_json(values["policy"])
        given = {name: value for name, value in values.items() if name != "policy"}
        return cls(**_of(cls, given), policy=policy, limits=Limits(**_of(Limits, given)))

    @classmethod
    def load(cls, folder: str | Path) -> RunSettings:
        """The settings of the run in that folder. Raises `EnvironmentFailed` if there is none."""
        file = Path(folder) / FILE
        try:
            values = json.loads(file.read_text())
            if values.get("format") != FORMAT:
                raise EnvironmentFailed(
                    f"The run in {folder} was made by another version of Understudy: {file} has format "
                    f"{values.get('format', 1)}, and this version reads {FORMAT}. Use the one that made it."
                )
            return cls.from_json(values)
        except FileNotFoundError:
            raise EnvironmentFailed(f"There is no run in {folder}: {file} is missing.") from None
        except UNREADABLE as problem:
            raise EnvironmentFailed(f"{file} cannot be read: {problem}") from None


def _of(kind: type[RunSettings] | type[Limits], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that this class has a field for."""
    known = {each.name for each in fields(kind)}
    return {name: value for name, value in values.items() if name in known}
