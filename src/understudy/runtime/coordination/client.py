"""What the processes of a run share through ZooKeeper: members, the view, reports and facts.

    /understudy/<run>/members/<name>   ephemeral; a process, its kind and its facts (Flight address, pid)
    /understudy/<run>/view             the one versioned view; written by compare-and-set
    /understudy/<run>/reports/r-<n>    reports to the leader, in order; it deletes each after acting on it
    /understudy/<run>/facts/<name>     values that outlive the process that wrote them
    /understudy/<run>/leader           ephemeral; which process leads

**Level, not edge.** A ZooKeeper watch fires once and may be lost with a connection. So a watch, like a change
of the connection, only wakes one thread, the follower, which reads the current values and tells its listeners
what is new to them. Views that came and went between two readings are skipped; `core.view.changes` makes up
for that. All callbacks run on the follower, one at a time.

**ZooKeeper may go away.** Calls that ask or write wait until it is back, or until `close`. `report`,
`latest_view` and the callbacks never block: reports leave through an outbox with a thread of its own. So the
data path goes on with what was last read.

**A tree may be gone**, because the run goes on without this process, or because ZooKeeper lost its data. Then
the process goes on with what was last read, too. It reports to nobody and is no member any more.

**Sessions.** A session that expired took our members with it. The follower puts each back under its name. A
view declares seats dead, not names: a process that lost its seats meanwhile comes back as a standby.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from understudy.core.errors import PeerError
from understudy.core.view.view import View
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.coordination.members import Member, Membership, read_members
from understudy.runtime.coordination.session import (
    AWAY,
    CONNECT_TIMEOUT_S,
    GOODBYE_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
    Closed,
    Session,
)
from understudy.runtime.coordination.watched import Watch, Watched

log = logging.getLogger(__name__)

#: Distinct reports that may wait for ZooKeeper; beyond that the oldest give way.
OUTBOX_MAX = 1_000
#: Above the trees of all runs.
ROOT = "/understudy"

T = TypeVar("T")


class Superseded(PeerError):
    """Another leader published a view first. Read it and decide anew."""


@dataclass(frozen=True, slots=True)
class StoredView:
    view: View
    version: int


@dataclass(frozen=True, slots=True)
class Report:
    path: str
    kind: str
    facts: dict[str, Any]


@dataclass(slots=True)
class _ViewListener:
    callback: Callable[[View], None]
    epoch: int = 0


@dataclass(slots=True)
class _MembersListener:
    callback: Callable[[list[Member]], None]
    last: list[Member] | None = None


class Coordination:
    """The connection of one process to one run. `address` is host:port, or several with commas."""

    def __init__(
        self,
        address: str,
        run: str,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.run = run
        self.root = f"{ROOT}/{run}"
        self._lock = threading.Lock()
        self._memberships: list[Membership] = []
        self._view_listeners: list[_ViewListener] = []
        self._members_listeners: list[_MembersListener] = []
        self._latest: View | None = None
        self._outbox: deque[bytes] = deque()
        self._outgoing = threading.Condition(self._lock)
        self._said_gone = False
        self._wake = threading.Event()
        self.session = Session(address, session_timeout_ms, connect_timeout_s)
        self._client = self.session.client
        self._watched_view = Watched(self.session, self._read_view, self._wake.set)
        self._watched_members = Watched(self.session, self.read_members, self._wake.set)
        self.session.patiently(self._make_folders)
        self._threads = [
            threading.Thread(target=self._follow, name="coordination-follower", daemon=True),
            threading.Thread(target=self._send_reports, name="coordination-outbox", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._wake.set()

    @property
    def address(self) -> str:
        return self.session.address

    def close(self) -> None:
        """Ends the session: members of this process leave at once. Not to be called from a callback."""
        self.session.close()
        with self._outgoing:
            self._outgoing.notify_all()
        for thread in self._threads:
            thread.join(GOODBYE_TIMEOUT_S)

    def __enter__(self) -> Coordination:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_folders(self) -> None:
        for folder in ("members", "reports", "facts"):
            self._client.ensure_path(f"{self.root}/{folder}")

    def join(self, kind: str, name: str, facts: dict[str, Any]) -> Membership:
        """Makes this process a member until `leave`, `close` or its end. Names are unique within a run."""
        membership = Membership(self.session, f"{self.root}/members", kind, name, facts)
        self.session.patiently(membership.put)
        with self._lock:
            self._memberships.append(membership)
        self._wake.set()
        return membership

    def members(self) -> list[Member]:
        """The members now, in joining order."""
        return self.session.patiently(self.read_members)

    def read_members(self, watch: Watch | None = None) -> list[Member]:
        """As `members`, but raises one of `AWAY` if ZooKeeper is."""
        return read_members(self.session, f"{self.root}/members", watch)

    def watch_members(self, callback: Callable[[list[Member]], None]) -> None:
        """`callback` gets the members now, and all of them again whenever that changes."""
        with self._lock:
            self._members_listeners.append(_MembersListener(callback))
        self._wake.set()

    @property
    def latest_view(self) -> View | None:
        """The view last heard of. Never waits."""
        return self._latest

    def view(self) -> StoredView | None:
        """The view as it is stored now; None before the first one."""
        return self.session.patiently(self._read_view)

    def watch_view(self, callback: Callable[[View], None]) -> None:
        """`callback` gets the current view and each newer one that is seen, once, in order."""
        with self._lock:
            self._view_listeners.append(_ViewListener(callback))
        self._wake.set()

    def await_newest(self) -> None:
        """From here on this process reads nothing older than what any process wrote before this call."""
        self.session.patiently(lambda: self._client.sync(self.root))

    def publish(self, view: View, expected_version: int | None) -> int:
        """Stores `view` if the stored version is still the expected one (None: no view yet).

        Returns the new version, or raises `Superseded`.
        """
        path, content = f"{self.root}/view", view.to_json().encode()

        def attempt() -> int:
            try:
                if expected_version is None:
                    self._client.create(path, content)
                    return 0
                return int(self._client.set(path, content, version=expected_version).version)
            except (BadVersionError, NodeExistsError, NoNodeError) as error:
                # Our own write may have arrived although its answer did not.
                stored = self._read_view()
                expected = 0 if expected_version is None else expected_version + 1
                if stored is not None and stored.version == expected and stored.view == view:
                    return stored.version
                raise Superseded(f"view {view.epoch} was not published: the store holds {stored}") from error

        return self.session.patiently(attempt)

    def report(self, kind: str, facts: dict[str, Any]) -> None:
        """A report to the leader. Never waits; it arrives when ZooKeeper can be reached, perhaps twice."""
        content = _encoded({"kind": kind, "facts": facts})
        with self._outgoing:
            if content in self._outbox:
                return
            if len(self._outbox) >= OUTBOX_MAX:
                log.warning("more than %d reports wait for ZooKeeper; dropping the oldest", OUTBOX_MAX)
                self._outbox.popleft()
            self._outbox.append(content)
            self._outgoing.notify()

    def reports(self, watch: Watch | None = None) -> list[Report]:
        """The reports that wait for the leader, in order. Raises one of `AWAY` if ZooKeeper is."""
        folder = f"{self.root}/reports"
        found: list[Report] = []
        for name in sorted(self._client.get_children(folder, watch=watch)):
            try:
                content, _ = self._client.get(f"{folder}/{name}")
            except NoNodeError:
                continue
            fields = json.loads(content)
            found.append(Report(f"{folder}/{name}", fields["kind"], fields["facts"]))
        return found

    def drop_report(self, report: Report) -> None:
        """The leader has acted on it. Raises one of `AWAY` if ZooKeeper is."""
        with contextlib.suppress(NoNodeError):
            self._client.delete(report.path)

    def put_fact(self, name: str, value: Any) -> None:
        path, content = f"{self.root}/facts/{name}", _encoded(value)

        def attempt() -> bool:
            try:
                self._client.set(path, content)
            except NoNodeError:
                try:
                    self._client.create(path, content)
                except NodeExistsError:
                    # Another process was first, or our own answer was lost: now it can be set.
                    return False
            return True

        while not self.session.patiently(attempt):
            pass

    def get_fact(self, name: str) -> Any:
        """The value last put under this name; None if there is none."""

        def attempt() -> Any:
            try:
                return json.loads(self._client.get(f"{self.root}/facts/{name}")[0])
            except NoNodeError:
                return None

        return self.session.patiently(attempt)

    def drop_fact(self, name: str) -> None:
        """Forget the value under this name, if there is one."""

        def attempt() -> None:
            with contextlib.suppress(NoNodeError):
                self._client.delete(f"{self.root}/facts/{name}")

        self.session.patiently(attempt)

    def fact_names(self) -> list[str]:
        return self.session.patiently(lambda: sorted(self._client.get_children(f"{self.root}/facts")))

    def _read_view(self, watch: Watch | None = None) -> StoredView | None:
        path = f"{self.root}/view"
        try:
            content, stat = self._client.get(path, watch=watch)
        except NoNodeError:
            # Reading a node that is not there leaves no watch; asking for it does.
            if watch is None or self._client.exists(path, watch=watch) is None:
                return None
            return self._read_view(watch)
        return StoredView(View.from_json(content), stat.version)

    def _send_reports(self) -> None:
        path = f"{self.root}/reports/r-"
        while True:
            with self._outgoing:
                self._outgoing.wait_for(lambda: self._outbox or self.session.closed)
                if self.session.closed:
                    return
                content = self._outbox[0]
            try:
                self.session.patiently(lambda body=content: self._client.create(path, body, sequence=True))  # type: ignore[misc]
            except Closed:
                return
            except NoNodeError:
                self._say_gone()
            with self._lock:
                if self._outbox and self._outbox[0] == content:
                    self._outbox.popleft()

    def _follow(self) -> None:
        while not self.session.closed:
            self._wake.wait()
            self._wake.clear()
            if not self.session.connected:
                continue
            try:
                stored = self._watched_view.now()
                members = self._watched_members.now()
                self._latest = stored.view if stored else None
                self._tell(self._latest, members)
                self._keep_memberships(members)
            except AWAY:
                # The connection's return wakes us as well, but a slow server breaks no connection.
                self._wake.set()
                self.session.await_connection(1.0)
            except NoNodeError:
                self._say_gone()
            except EnvironmentFailed as error:
                _left_its_thread(error)
            except Exception:
                log.exception("following run %s failed; trying again at the next change", self.run)

    def _say_gone(self) -> None:
        # A process that only looks on need not know.
        if self._memberships and not self._said_gone:
            self._said_gone = True
            log.warning("ZooKeeper at %s has nothing of run %s any more", self.address, self.run)

    def _keep_memberships(self, members: list[Member]) -> None:
        there = {member.name for member in members}
        with self._lock:
            memberships = [membership for membership in self._memberships if membership.kept]
            self._memberships = memberships
        for membership in memberships:
            if membership.name not in there and membership.kept:
                membership.put()

    def _tell(self, view: View | None, members: list[Member]) -> None:
        with self._lock:
            view_listeners, members_listeners = list(self._view_listeners), list(self._members_listeners)
        for listener in view_listeners:
            if view is not None and view.epoch > listener.epoch:
                listener.epoch = view.epoch
                _shielded(listener.callback, view)
        for other in members_listeners:
            if members != other.last:
                other.last = members
                _shielded(other.callback, members)


def _shielded(callback: Callable[[T], None], value: T) -> None:
    """A listener's own failure must not keep the others from hearing, but ends a process of a run."""
    try:
        callback(value)
    except Exception as error:
        log.exception("a listener failed on %r", value)
        _left_its_thread(error)


def _left_its_thread(error: Exception) -> None:
    """Treat an error as if it had ended the follower, without ending it."""
    threading.excepthook(
        threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
    )


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
