"""Members: an ephemeral node for each process that takes part, with its kind and facts as JSON.

The name says which incarnation of which process it is, so it is used once. A process keeps its membership
through the loss of a session by creating the node again. A random token in the node tells that one from a
stranger's node under the same name.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.coordination.session import Session


@dataclass(frozen=True, slots=True)
class Member:
    """A process that takes part. `order` rises with the time of joining."""

    name: str
    kind: str
    facts: dict[str, Any]
    order: int


class Membership:
    """One member that this process keeps alive."""

    def __init__(self, session: Session, folder: str, kind: str, name: str, facts: dict[str, Any]) -> None:
        if not name or "/" in name:
            raise EnvironmentFailed(
                f"{name!r} cannot name a member: it must be non-empty and without a slash."
            )
        self.name = name
        self._session = session
        self._path = f"{folder}/{name}"
        fields = {"kind": kind, "facts": facts, "token": uuid.uuid4().hex}
        self._content = json.dumps(fields, sort_keys=True).encode()
        self._left = threading.Event()

    @property
    def kept(self) -> bool:
        """Whether the node is to be created again if it is missing."""
        return not self._left.is_set()

    def leave(self) -> None:
        """Ends the membership. Does not wait for a ZooKeeper that is away: the end of the session ends it."""
        self._left.set()
        self._session.briefly(self.remove)

    def put(self) -> None:
        """Creates the node unless it exists; a node that we left in an earlier session is replaced."""
        client = self._session.client
        for _ in range(3):
            try:
                client.create(self._path, self._content, ephemeral=True)
                return  # noqa: TRY300
            except NodeExistsError:
                owner = self._owner()
            if owner == self._session.id:
                return
            if owner is not None:
                self.remove()
        raise EnvironmentFailed(
            f"A member called {self.name} is already there ({self._path}). Give this one another name."
        )

    def remove(self) -> None:
        """Deletes the node if it is ours."""
        if self._owner() is not None:
            with contextlib.suppress(NoNodeError):
                self._session.client.delete(self._path)

    def _owner(self) -> int | None:
        """The session that holds our node; None if there is no node or it is not ours."""
        try:
            content, stat = self._session.client.get(self._path)
        except NoNodeError:
            return None
        return int(stat.ephemeralOwner) if content == self._content else None


def read_members(session: Session, folder: str, watch: Callable[[Any], None] | None) -> list[Member]:
    """The members, in joining order. Raises one of `AWAY` if ZooKeeper is."""
    names = session.client.get_children(folder, watch=watch)
    reads = [session.client.get_async(f"{folder}/{name}") for name in names]
    found: list[Member] = []
    for name, read in zip(names, reads, strict=True):
        try:
            content, stat = read.get()
        except NoNodeError:
            continue
        fields = json.loads(content)
        found.append(Member(name, fields["kind"], fields["facts"], stat.czxid))
    return sorted(found, key=lambda member: member.order)
