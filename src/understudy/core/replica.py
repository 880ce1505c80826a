"""A replica: S-Cons below, S-Prod above, and between them an engine that only the driver sees.

The paper lets the two call each other, since they are in one thread of control: S-Cons asks whether
take-over is done (`tk_done`), and starts S-Prod's part of the synchronisation (`sync`). Those calls are
made here, so that each machine stays one that can be tested alone.

A checkpoint is the engine's state, S-Cons's position and S-Prod's buffer at one moment. The buffer is
copied in the very step that sends `PSync`. So what egress got before that message is not in the copy, or
egress makes it good with its first cumulative acknowledgement to the newcomer; and what it gets after it is
acknowledged to both.
"""

from __future__ import annotations

from understudy.core.buffer import Acks
from understudy.core.errors import require
from understudy.core.instructions import Instruction, ShipState
from understudy.core.machine import Machine
from understudy.core.messages import (
    AboveChanged,
    Ack,
    EgressDown,
    EgressUp,
    Installed,
    Produced,
    Reverse,
    SeatConfirmed,
    SnapshotTaken,
    Sync,
)
from understudy.core.s_cons import SCons
from understudy.core.s_prod import SProd
from understudy.core.view import Status


class Replica(Machine):
    """One copy of the dataflow segment."""

    def __init__(
        self,
        name: str,
        status: Status,
        *,
        acks: Acks = Acks.CUMULATIVE,
        group_buckets_max: int = 1_000,
        group_bytes_max: int = 64 * 2**20,
        output_buckets_max: int = 100_000,
        output_bytes_max: int = 256 * 2**20,
    ) -> None:
        super().__init__(name)
        self.s_prod = SProd(acks=acks, buckets_max=output_buckets_max, bytes_max=output_bytes_max)
        self.s_cons = SCons(
            self.s_prod,
            status,
            acks=acks,
            group_buckets_max=group_buckets_max,
            group_bytes_max=group_bytes_max,
        )

    @property
    def status(self) -> Status:
        return self.s_cons.status

    def _handle(self, event: object) -> list[Instruction]:
        match event:
            case Ack() | Reverse() | EgressUp() | EgressDown() | Produced():
                return self.s_prod.handle(event) + self.s_cons.handle(AboveChanged())
            case Installed() | SeatConfirmed():
                require(
                    isinstance(event, SeatConfirmed) or self.status is Status.STDBY,
                    f"state was installed into a replica that is {self.status.name}",
                )
                return self.s_prod.handle(event) + self.s_cons.handle(event)
            case SnapshotTaken():
                version, through = self.s_cons.version, self.s_cons.handed
                below = self.s_cons.handle(event)
                above = self.s_prod.handle(Sync(version))
                return [*above, ShipState(self.s_prod.state_with(version, through)), *below]
            case _:
                return self.s_cons.handle(event)

    def check(self) -> None:
        self.s_cons.check()
        self.s_prod.check()
