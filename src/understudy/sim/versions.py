"""A version of a flow, as a world of its own, and the gateway that all versions share.

Each version has its own nodes, store, views and saved states. The gateway process belongs to all of them: it
has one host for each, and one disk. So a crash of the gateway and a loss of power hit all versions at once,
and what the disk may let go of is the least that any version has done with (`Floors`).

The gateway hosts the *base*, the version that the run goes on with, whenever it lives. It opens the ends of
the *candidate* when it sees that version's first view. Sinks of either rest until they are woken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from understudy.core.bucket import NOTHING, BucketId
from understudy.core.host.parcels import Inside
from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Copy, Partition
from understudy.core.turning import TellSink
from understudy.sim.disk import Disk
from understudy.sim.observing import Observer
from understudy.sim.process import Action, Process
from understudy.sim.setup import Setup
from understudy.sim.world import Choice, World

if TYPE_CHECKING:
    from understudy.sim.upgrading import Upgrading


class Floors:
    """How much of each source's log every version has done with.

    A version whose ends are not hosted has said nothing, and as long as that is so the logs forget nothing.
    That is the pin under a candidate that is being prepared, or that waits for the gateway to begin again.
    """

    def __init__(self) -> None:
        self._said: dict[int, dict[str, tuple[BucketId, BucketId]]] = {}

    def add(self, version: int) -> None:
        self._said[version] = {}

    def drop(self, version: int) -> None:
        del self._said[version]

    def gateway_gone(self) -> None:
        for said in self._said.values():
            said.clear()

    def say(self, version: int, source: str, trimmed: BucketId, needed: BucketId) -> None:
        self._said[version][source] = trimmed, needed

    def trimmed(self, source: str) -> BucketId:
        """What all live copies have, of all versions that are hosted. The memory of a gateway that begins
        again begins there. That spares it to read again what some copy still lacks, and nothing else hangs on
        it: for more than memory holds there is the log.
        """
        return min(said[source][0] for said in self._said.values() if source in said)

    def needed(self, source: str) -> BucketId:
        """What no copy of any version will ask for again."""
        return min(said[source][1] if source in said else NOTHING for said in self._said.values())


class SharedDisk(Disk):
    """The gateway's disk, as one version sees it. The logs and what sinks hold are the same for all."""

    def __init__(self, disk: Disk, run: Upgrading, version: int) -> None:
        super().__init__(disk.sealed, disk.trimmed, disk.forgotten, disk.delivered)
        self._run = run
        self._version = version

    def begins_after(self, source: str) -> BucketId:
        return self._run.begins_after(self._version, source)

    def trim(self, source: str, trimmed: BucketId, needed: BucketId) -> None:
        floors = self._run.floors
        floors.say(self._version, source, trimmed, needed)
        super().trim(source, floors.trimmed(source), floors.needed(source))


class Version(World):
    """One version. It has no node before `seat` is called."""

    sinks_rest = True

    def __init__(
        self,
        run: Upgrading,
        number: int,
        setup: Setup,
        observers: Iterable[Observer],
        keep: Callable[[int], int],
    ) -> None:
        self.run = run
        self.number = number
        run.floors.add(number)
        super().__init__(setup, observers, keep=keep, disk=SharedDisk(run.disk, run, number))
        self.story, self.faults, self.happened = run.story, run.faults, run.happened

    @property
    def is_base(self) -> bool:
        return self.number == self.run.base_number

    @property
    def seated(self) -> bool:
        """Whether its nodes have joined, so that its controller may seat them."""
        return self.added > 0

    @property
    def hosted(self) -> bool:
        """Whether the gateway hosts its ends."""
        gateway = self.processes.get(GATEWAY)
        return gateway is not None and gateway.host.view is not None

    def seat(self, spares: int) -> None:
        for _ in range(self.setup.nodes + spares):
            self.add_node()

    # --- the gateway that is shared ----------------------------------------------------------------------

    @property
    def gateway_may_start(self) -> bool:
        return self.is_base or (self.view is not None and self.run.gateway_lives)

    def start_gateway(self) -> None:
        if self.gateway_may_start:
            super().start_gateway()
            self.run.gateway_started(self)

    def kill(self, name: str) -> None:
        if name == GATEWAY:
            self.run.crash()
        else:
            super().kill(name)

    def lose_gateway(self) -> None:
        if GATEWAY in self.processes:
            super().kill(GATEWAY)

    def tell(self, told: TellSink) -> None:
        self._act(GATEWAY, ("event", Inside(Copy(Partition(told.sink)), 0, told.event)))

    def let_go_of_logs(self) -> None:
        """Another version needs nothing any more."""
        if GATEWAY in self.processes:
            self.to_change(GATEWAY).trim_logs()
            self.check_kept()

    def lose_power(self) -> None:
        self.run.lose_power()

    def begin_after_power_failure(self) -> None:
        super().lose_power()

    def _may_feed(self, gateway: Process, source: str) -> bool:
        """The version that is live may seal the next bucket; the other follows the log at its own pace."""
        sealed = gateway.put[source] < self.disk.sealed[source]
        return (sealed or self.run.live is self) and super()._may_feed(gateway, source)

    # --- what the run hears of ---------------------------------------------------------------------------

    def _take(self, choice: Choice) -> None:
        super()._take(choice)
        self.run.check()

    def _act(self, name: str, action: Action) -> None:
        hosted = self.hosted
        super()._act(name, action)
        if self.hosted and not hosted:
            self.run.opened(self)

    def _rests(self, sink: Copy, through: BucketId) -> None:
        self.run.rests(self, sink.partition.name, through)

    def _delivered(self, sink: Copy, through: BucketId) -> None:
        self.run.delivered(self, sink.partition.name, through)

    def check_kept(self) -> None:
        """What one version lets go of, another one may need."""
        for version in self.run.versions:
            if version.seated:
                World.check_kept(version)

    def note(self, line: str) -> None:
        super().note(f"v{self.number}: {line}")
