"""What it costs to send a parcel from one process to another: written, over loopback, read.

    python studies/parcel_cost.py

Both ends are in this process, so its processor time is that of both.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time

from understudy.core.bucket import Bucket
from understudy.core.edge.messages import Ack, Data, Message
from understudy.core.host.parcels import Parcel, Say
from understudy.core.shape.partition import Copy, Partition
from understudy.runtime.actor import Actor
from understudy.runtime.mesh import Mesh
from understudy.runtime.settings import RunSettings
from understudy.runtime.transport.endpoint import Endpoint
from understudy.runtime.transport.wire import Frame

PARCELS = 5_000
SENT: dict[str, Message] = {
    "an acknowledgement": Ack(17_947_473_988),
    "10 kB of rows": Data((Bucket(17_947_473_988, bytes(10_000), 10_000),)),
}


class End:
    """A process with nothing but its mesh, that counts what arrives."""

    def __init__(self, name: str, settings: RunSettings, addresses: dict[str, str]) -> None:
        self.name = name
        self.up = threading.Event()
        self.arrived = threading.Semaphore(0)
        self.endpoint = Endpoint(beat_s=settings.beat_s, silence_s=settings.silence_s)
        self.actor = Actor(name, print)
        self.mesh = Mesh(name, settings, self.actor, self, addresses.get)
        self.mesh.listen_on(self.endpoint)
        self.endpoint.ready()
        addresses[name] = self.endpoint.address

    def peer_up(self, node: str, serial: int) -> None:
        self.up.set()

    def peer_down(self, node: str, serial: int) -> None:
        pass

    def parcel_arrived(self, node: str, serial: int, parcel: Parcel, cause: int) -> None:
        self.arrived.release()

    def frame_arrived(self, node: str, frame: Frame) -> None:
        pass

    def end(self) -> None:
        self.actor.end()
        self.mesh.end()
        self.endpoint.end()


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = RunSettings("costs", "", folder, "")
        addresses: dict[str, str] = {}
        one, other = (End(name, settings, addresses) for name in ("node-1", "node-2"))
        for end, needed in ((one, other.name), (other, one.name)):
            end.actor.post(end.mesh.want, {needed})
        one.up.wait()
        other.up.wait()
        edge = Copy(Partition("f0", 1), 0), Copy(Partition("f1", 2), 1), 1
        for name, message in SENT.items():
            began_s = time.process_time()
            for _ in range(PARCELS):
                one.actor.post(one.mesh.send, other.name, Say(*edge, message), 1)
            for _ in range(PARCELS):
                other.arrived.acquire()
            used_s = time.process_time() - began_s
            print(f"{name}: {used_s / PARCELS * 1e6:.0f} us of processor time at both ends together")
        one.end()
        other.end()


if __name__ == "__main__":
    main()
