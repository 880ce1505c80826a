"""What there is in a simulated world: processes, the connections between them, a store with its leader, the
gateway's disk and the vault of saved states.

Faults change it by these methods: processes start and die, connections break, everything loses its power.
What can happen without a fault is a choice of the `World`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from understudy.core.host.places import GATEWAY
from understudy.core.shape.partition import Partition
from understudy.core.view.events import Report
from understudy.core.view.view import View
from understudy.sim.connections import Connection
from understudy.sim.disk import Disk
from understudy.sim.observing import Observer
from understudy.sim.process import Process
from understudy.sim.setup import Setup
from understudy.sim.store import Store
from understudy.sim.vault import Vault


class Fleet:
    """Every process runs as soon as it is added. The gateway is there from the beginning."""

    #: Whether the sinks of a gateway that starts rest until they are woken.
    sinks_rest = False

    def __init__(
        self,
        setup: Setup,
        observers: Iterable[Observer] = (),
        *,
        keep: Callable[[int], int] = lambda n: n,
        disk: Disk | None = None,
    ) -> None:
        self.setup = setup
        self.observers = tuple(observers)
        #: How much of a queue of this length still arrives when its connection breaks.
        self.keep = keep
        self.processes: dict[str, Process] = {}
        self.connections: dict[int, Connection] = {}
        self.calls: dict[tuple[str, str], int] = {}
        self.serial = 0
        self.store = Store.begin(setup.controller)
        self.reports: dict[str, tuple[Report, ...]] = {}
        topology = setup.flow.topology
        self._disk = disk or Disk.empty(topology.sources, topology.sinks)
        self.vault: Vault = {}
        #: The partitions whose first snapshot is known to be whole, so that no copy begins with nothing.
        self.adopted: frozenset[Partition] = frozenset()
        self.added = 0
        # What has failed for a while.
        self.stalled: set[str] = set()
        self.refusing: set[str] = set()
        self.away: set[str] = set()
        self.leaderless = False
        self._needed: dict[str, tuple[View | None, frozenset[str]]] = {}
        self.start_gateway()

    # --- processes ---------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        return [name for name in self.processes if name != GATEWAY]

    @property
    def view(self) -> View | None:
        return self.store.view

    @property
    def disk(self) -> Disk:
        """The gateway's, whether it lives or not."""
        gateway = self.processes.get(GATEWAY)
        return self._disk if gateway is None or gateway.disk is None else gateway.disk

    def start_gateway(self) -> None:
        disk = self._disk
        host = self.setup.host(
            GATEWAY,
            dict(disk.delivered),
            {source: disk.begins_after(source) for source in disk.sealed},
            dict(disk.forgotten),
            rests=self.sinks_rest,
        )
        self.processes[GATEWAY] = Process(host, self.setup.flow, self.observers, self._disk)

    def add_node(self) -> str:
        self.added += 1
        name = f"n{self.added:02}"
        self.processes[name] = Process(self.setup.host(name), self.setup.flow, self.observers)
        self.store.join(name)
        return name

    def kill(self, name: str) -> None:
        """The process is gone. The gateway's disk stays; a node's session ends later."""
        self._disk = self.disk
        del self.processes[name]
        self._needed.pop(name, None)
        self.reports.pop(name, None)
        self.stalled.discard(name)
        self.refusing.discard(name)
        self.away.discard(name)
        for connection in list(self.connections.values()):
            if name in (connection.caller, connection.callee):
                self._close(connection.serial, gone=name)
        self.calls = {ends: serial for ends, serial in self.calls.items() if ends[0] != name}
        self.check_kept()

    def lose_power(self) -> None:
        """Every process is gone at one moment, and what the store knew of them. Disks and the vault stay, and
        everything starts again, under the first names.
        """
        for name in list(self.processes):
            self.kill(name)
        self.connections, self.calls, self.reports = {}, {}, {}
        self.store = Store.begin(self.setup.controller_that_goes_on)
        self.leaderless = False
        self.added = 0
        self.start_gateway()
        for _ in range(self.setup.nodes):
            self.add_node()

    # --- connections -------------------------------------------------------------------------------------

    def sever(self, serial: int) -> None:
        """The connection breaks; both ends live on."""
        self._close(serial)

    def _close(self, serial: int, gone: str | None = None) -> None:
        connection = self.connections[serial]
        if connection.open:
            connection = connection.broken(self.keep)
        if gone is not None:
            connection = connection.with_queue(gone, ())
        self._put_connection(connection)
        for end in (connection.caller, connection.callee):
            if connection.queue(end):
                self._queued(connection, end)

    def _put_connection(self, connection: Connection) -> None:
        if connection.open or connection.to_caller or connection.to_callee:
            self.connections[connection.serial] = connection
        else:
            del self.connections[connection.serial]

    def needed(self, name: str) -> frozenset[str]:
        """The processes that this one calls, or would if it were the one to call."""
        host = self.processes[name].host
        known = self._needed.get(name)
        if known is None or known[0] is not host.view:
            known = self._needed[name] = (host.view, frozenset(host.needed))
        return known[1]

    # --- for subclasses ----------------------------------------------------------------------------------

    def check_kept(self) -> None:
        """A process is gone, and what it kept."""

    def _next_serial(self, caller: str, callee: str) -> int:
        self.serial += 1
        return self.serial

    def _queued(self, connection: Connection, to: str) -> None:
        """Something was put in the queue to this end."""
