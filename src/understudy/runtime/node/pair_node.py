"""A node that runs the whole flow, in one of two seats (policies `none` and `pair`).

A node that is **fenced** (the view says that its seat is no longer its own) starts over as a new process
image, under the next incarnation of its name: the surest way to come back with nothing.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from typing import Any

from understudy.core.controller import Controller
from understudy.core.errors import Fenced, PeerError, require
from understudy.core.messages import Installed
from understudy.core.view import Slot, Status, View
from understudy.engine.segment import Segment
from understudy.engine.storing import open_snapshot
from understudy.runtime.coordination.controllers import pair_controller
from understudy.runtime.node.mover import PURPOSE, ActiveGone, fetch_state
from understudy.runtime.node.process import Node
from understudy.runtime.node.seat import SeatTaken
from understudy.runtime.transport.channel import Channel
from understudy.runtime.transport.endpoint import Accepted, NotYet

log = logging.getLogger(__name__)


class PairNode(Node):
    """A node with one seat, or none."""

    _segment: Segment

    def _prepare(self) -> None:
        self._seat: SeatTaken | None = None
        self._lock = threading.Lock()
        self._endpoint.handle(PURPOSE, self._admit_fetch)
        self._segment = Segment(self._flow, self._folder / "engine")
        self._segment.start()

    def _controller(self) -> Callable[[View | None], Controller]:
        return pair_controller(self._settings.policy)

    def _leave(self) -> None:
        with self._lock:
            seat = self._seat
        if seat is not None:
            seat.end()

    def _close_engines(self) -> None:
        self._segment.close()

    # --- views and seats ---------------------------------------------------------------------------------

    def _on_view(self, view: View) -> None:
        with self._lock:
            seat = self._seat
            if seat is None:
                slot = view.slot_of(self.name)
                if slot is None:
                    if view.declared_dead(self.name):
                        self._fence("the view calls it dead")
                    return
                self._take_seat(slot, view)
                return
        seat.on_view(view)

    def _take_seat(self, slot: Slot, view: View) -> None:
        log.info("takes the seat %s, epoch %d", slot.value, view.seats[slot].epoch)
        seat = SeatTaken(
            self._settings,
            self.name,
            slot,
            view,
            segment=self._segment,
            recorder=self._recorder,
            address=lambda: self._gateway,
            on_fenced=self._fence,
            on_failure=self._fail,
        )
        self._seat = seat
        if view.seats[slot].status is Status.STDBY:
            threading.Thread(target=self._catch_up, args=(seat,), name="catch-up", daemon=True).start()
        else:
            seat.begin()

    def _fence(self, why: str) -> None:
        # A node that is leaving anyway has nothing to start over for.
        if self.fenced is None and not self._ending.asked:
            self.fenced = why
            log.warning("fenced: %s", why)
            self._recorder.fenced()
            self._ending.ask()

    # --- catch-up: receiving -----------------------------------------------------------------------------

    def _catch_up(self, seat: SeatTaken) -> None:
        into = self._folder / "incoming"
        failed = {"slot": seat.slot.value, "epoch": seat.epoch}
        try:
            state = fetch_state(
                lambda: self._active_address(seat),
                {"slot": seat.slot.value, "node": self.name, "epoch": seat.epoch},
                into,
                self._settings,
                stopped_after=self._ending.wait,
            )
            if state is None:
                return
            require(isinstance(state, Installed), "the state of a partition came to a replica")
            assert isinstance(state, Installed)
            self._segment.restore(open_snapshot(into))
            seat.install(state)
            shutil.rmtree(into, ignore_errors=True)
            seat.begin()
        except ActiveGone:
            log.error("the active replica died before its state was here")  # noqa: TRY400
            self._coordination.report("move_failed", failed)
        except BaseException as error:
            log.exception("catch-up failed")
            self._coordination.report("move_failed", failed)
            self._fail(error)

    def _active_address(self, seat: SeatTaken) -> str | None:
        view = self._coordination.latest_view
        if not isinstance(view, View):
            return None
        other = view.seats.get(seat.slot.other)
        if other is not None and not other.alive and view.epoch >= seat.epoch:
            raise ActiveGone
        return None if other is None else self._address_of(other.node)

    # --- catch-up: sending -------------------------------------------------------------------------------

    def _admit_fetch(self, hello: Mapping[str, Any]) -> Accepted:
        seat = self._seat
        try:
            slot, node, epoch = Slot(hello["slot"]), str(hello["node"]), int(hello["epoch"])
        except (KeyError, ValueError, TypeError) as problem:
            raise PeerError(f"a standby must name slot, node and epoch: {problem}") from problem
        if seat is None or seat.view_epoch < epoch:
            raise NotYet("the view that seats this standby has not arrived here")
        if not seat.may_fetch(slot, node, epoch):
            raise Fenced(f"{node} does not hold {slot.value} as a standby since epoch {epoch}")
        box: list[Channel] = []

        def opened(channel: Channel) -> None:
            box.append(channel)
            seat.mover_met(channel)

        return Accepted(
            on_open=opened,
            on_frame=lambda _frame: None,
            on_closed=lambda _why: seat.mover_gone(box[0]) if box else None,
            name=f"state for {node}",
        )
