"""The leader: one process of a run drives the controller machine.

Any process may run a candidate. The candidate that creates the ephemeral node `leader` leads until its
session ends; the others watch that node. The leader recovers the stored view, reads members and reports,
feeds the machine and publishes what it decides. It reads levels, not edges: after each wake-up it compares
the members with those that it knew.

**Two leaders at once** are possible for a moment: a leader that sleeps does not notice that its session
expired. They do no harm, because a view is published by compare-and-set on the version of the view that it
was decided upon. The slower leader is refused, drops its machine and begins again from the stored view.

**Nothing is forgotten.** A report is deleted only after the views that reflect it are published. If the
leader dies in between, the next one reads the report again, and the machine finds that it is old news.

**Operators' wishes** come as reports and are answered, see `wishes`.

**A candidate that fails** gives up leading, so that another process leads, and stands again after a pause
that grows. It does not end its process, which may hold the only state: without a leader data still flows.
`failure` says what happened until it has led again.

**A member that comes back.** A session that expired while its process lives is made anew, with the member
under its old name and a higher order. The machine hears `MembersLeft`, if the absence was seen, and in any
case `MemberJoined` again.

**Patience at the start.** A new leader cannot tell a member that died with the old leader from one whose
session is just being made anew, after ZooKeeper itself was away for long. So it gives members that the view
names, and that it has not seen yet, one session timeout to appear. Suspicions are acted upon at once if a
member that it has seen holds the state too; others are repeated by those who suspect.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from understudy.core.errors import PeerError
from understudy.core.timers import SetTimer, TimerFired
from understudy.core.view.controller import Controller
from understudy.core.view.events import (
    ControllerEvent,
    Declined,
    MemberJoined,
    MembersLeft,
    MoveCopy,
    Publish,
)
from understudy.core.view.view import View
from understudy.runtime.coordination.client import Coordination, Report, Superseded
from understudy.runtime.coordination.members import Member
from understudy.runtime.coordination.reports import DrainWish, MoveWish, Wish, event_of
from understudy.runtime.coordination.session import AWAY, GOODBYE_TIMEOUT_S, Closed
from understudy.runtime.coordination.watched import Watched
from understudy.runtime.coordination.wishes import answer_to, meant, put_answer

log = logging.getLogger(__name__)

#: How long a candidate of priority 1 lets one of priority 0 go first when a run begins.
HOLD_BACK_S = 1.0
#: The pause of a candidate that failed: it doubles from the first to the second of these.
FAILED_PAUSE_S = 1.0
FAILED_PAUSE_S_MAX = 30.0


class Leadership:
    """A candidate for leadership, in a thread of its own from `start` to `stop`.

    `controller` makes the machine from the stored view, at the beginning of every term. Members of
    `seat_kind` can take seats. `priority` 0 stands for election at once; each step above it waits
    `HOLD_BACK_S` longer before its first attempt, so that the gateway leads if it is up at the start.
    """

    def __init__(
        self,
        coordination: Coordination,
        name: str,
        controller: Callable[[View | None], Controller],
        seat_kind: str = "node",
        priority: int = 0,
    ) -> None:
        self.name = name
        #: Why this candidate last gave up leading; None once it has led since.
        self.failure: Exception | None = None
        self._failures = 0
        self._coordination = coordination
        self._session = coordination.session
        self._path = f"{coordination.root}/leader"
        self._controller = controller
        self._seat_kind = seat_kind
        self._priority = priority
        self._grace_s = self._session.timeout_ms / 1000
        self._stopped = threading.Event()
        self._leading = threading.Event()
        self._wake = threading.Event()
        self._members = Watched(self._session, coordination.read_members, self._wake.set)
        self._reports = Watched(self._session, coordination.reports, self._wake.set)
        self._thread = threading.Thread(target=self._run, name=f"leadership-{name}", daemon=True)

    @property
    def leading(self) -> bool:
        """Whether this candidate leads, as far as it knows."""
        return self._leading.is_set() and self._session.connected

    def await_leading(self, timeout_s: float) -> bool:
        return self._leading.wait(timeout_s)

    def start(self) -> Leadership:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Steps down, so that another candidate leads at once. Does not wait for a ZooKeeper that is away."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2 * GOODBYE_TIMEOUT_S)

    def _run(self) -> None:
        self._stopped.wait(self._priority * HOLD_BACK_S)
        while not self._stopped.is_set():
            try:
                self._stand()
            except Closed:
                return
            except Exception as error:
                self._give_up(error)
        self._step_down()

    def _give_up(self, error: Exception) -> None:
        """Let another candidate lead, and wait before standing again."""
        pause_s = min(FAILED_PAUSE_S * 2**self._failures, FAILED_PAUSE_S_MAX)
        log.error("%s gives up leading and stands again in %g s", self.name, pause_s, exc_info=error)
        self.failure = error
        self._failures = min(self._failures + 1, 10)
        self._step_down()
        self._stopped.wait(pause_s)

    def _stand(self) -> None:
        """One candidacy: lead, or wait until the leader is gone."""
        self._wake.clear()
        if self._stopped.is_set():
            # Said just before the clearing, which must not swallow it.
            return
        try:
            elected = self._session.patiently(self._elected)
            if elected is not None:
                self._lead(elected)
            else:
                self._wake.wait()
        except Superseded as other:
            log.warning("%s leads on from the stored view: %s", self.name, other)
        finally:
            self._leading.clear()

    def _elected(self) -> int | None:
        """The session in which we lead; None while another process does, with a watch on the end of that."""
        client = self._session.client
        with contextlib.suppress(NodeExistsError):
            client.create(self._path, self.name.encode(), ephemeral=True)
        try:
            _, stat = client.get(self._path, watch=self._on_watch)
        except NoNodeError:
            self._wake.set()
            return None
        return int(stat.ephemeralOwner) if stat.ephemeralOwner == self._session.id else None

    def _on_watch(self, _: Any) -> None:
        self._wake.set()

    def _lead(self, session: int) -> None:
        stored = self._coordination.view()
        term = _Term(self._coordination, self._controller(stored.view if stored else None))
        term.version = stored.version if stored else None
        patient_until = time.monotonic() + self._grace_s
        self._leading.set()
        while not self._stopped.is_set() and self._session.id == session:
            self._wake.clear()
            if self._stopped.is_set():
                return
            patience_s = max(0.0, patient_until - time.monotonic())
            try:
                reports = self._reports.now()
                # Read after them: every member that wrote a report is known when the report is acted on.
                processes = self._members.again() if reports else self._members.now()
                members = [member for member in processes if member.kind == self._seat_kind]
                waiting = term.follow_members(members, patient=patience_s > 0)
                term.act_on(reports)
                next_s = term.fire_timers()
                self.failure, self._failures = None, 0
            except AWAY:
                self._session.await_connection(1.0)
                continue
            waits_s = [each for each in (patience_s if waiting else None, next_s) if each is not None]
            self._wake.wait(min(waits_s, default=None))

    def _step_down(self) -> None:
        # If ZooKeeper is away, the end of the session does it.
        self._session.briefly(self._release)

    def _release(self) -> None:
        with contextlib.suppress(NoNodeError):
            _, stat = self._session.client.get(self._path)
            if stat.ephemeralOwner == self._session.id:
                self._session.client.delete(self._path)


class _Term:
    """One term of office: the machine, the version of the stored view it knows, the members it has seen."""

    def __init__(self, coordination: Coordination, controller: Controller) -> None:
        self.version: int | None = None
        self._coordination = coordination
        self._controller = controller
        self._seen: dict[str, int] = {}
        self._known_left: set[str] = set()
        self._due: dict[Hashable, float] = {}

    def follow_members(self, members: list[Member], patient: bool) -> bool:
        """Tells the machine which members left and joined. True while some of the view may still appear."""
        there = {member.name: member.order for member in members}
        named = self._named
        unseen = [node for node in named if node not in there and node not in self._seen]
        gone = [node for node in self._seen if node not in there]
        # A member that left and keeps its seat is missing at every look; the machine hears of it once.
        left = [node for node in (gone if patient else gone + unseen) if node not in self._known_left]
        if left:
            self._known_left.update(left)
            self._handle(MembersLeft(tuple(left)))
        # Members without a seat first: the machine acts once it knows of every node with a seat.
        for node in sorted(there, key=lambda each: (each in named, there[each])):
            if self._seen.get(node) != there[node]:
                self._known_left.discard(node)
                self._handle(MemberJoined(node, there[node]))
        self._seen = there
        self._known_left &= self._named
        return patient and bool(unseen)

    @property
    def _named(self) -> frozenset[str]:
        """The nodes whose coming and going matters to the view."""
        return self._controller.view.nodes_named if self._controller.view is not None else frozenset()

    def act_on(self, reports: list[Report]) -> None:
        for report in reports:
            try:
                self._act_on(report)
            except Superseded:
                raise
            except PeerError:
                log.exception("a report was not understood; it is dropped")
            self._coordination.drop_report(report)

    def _act_on(self, report: Report) -> None:
        event = event_of(report)
        if not isinstance(event, MoveWish | DrainWish):
            known = self._controller.view.epoch if self._controller.view is not None else 0
            if event.epoch > known:
                # A former leader's last view was stored after this one had read: it must be read first.
                raise Superseded(f"a report is about epoch {event.epoch}, this leader knows {known}")
            self._handle(event)
        elif answer_to(self._coordination, event.id) is None:
            put_answer(self._coordination, event.id, self._granted(event))

    def _granted(self, wish: Wish) -> dict[str, Any]:
        """The answer to a wish, after doing what it asks for."""
        controller = self._controller
        event = meant(wish, controller)
        if isinstance(event, Declined):
            return {"ok": False, "why": event.why}
        declined = self._handle(event)
        if declined is not None:
            return {"ok": False, "why": declined.why}
        epoch = controller.view.epoch if controller.view else 0
        answer = {"ok": True, "epoch": epoch, "node": event.node}
        return {**answer, "copy": str(event.copy)} if isinstance(event, MoveCopy) else answer

    def _handle(self, event: ControllerEvent) -> Declined | None:
        """Do what the event leads to; what the machine says if it declines."""
        declined = None
        for decision in self._controller.handle(event):
            match decision:
                case Publish(view):
                    self.version = self._coordination.publish(view, self.version)
                    log.info("%s: %s", event, view.to_json())
                case SetTimer(key, delay_ms):
                    self._due[key] = time.monotonic() + delay_ms / 1_000
                case Declined():
                    declined = decision
        return declined

    def fire_timers(self) -> float | None:
        """Tell the machine of the timers whose time has come; the seconds until the next one."""
        now_s = time.monotonic()
        for key in [key for key, due_s in self._due.items() if due_s <= now_s]:
            del self._due[key]
            self._handle(TimerFired(key))
        return min((due_s - now_s for due_s in self._due.values()), default=None)
