"""What a run leaves in a ZooKeeper that others use too, and how it goes.

Each generation of a run has a tree of its own there, and so has each version of its flow. Once this
generation has a view, nobody needs an earlier one: its processes have left (`going_on.await_departure`). Nor
does anyone need that of a version whose nodes have ended. A tree with members stays, for it is in use.

A late process of a tree that is gone finds no view in it and makes none: a mark in the run's folder shows
that there was one (`partitioning.require_view`). It can neither become a member nor report, and goes on with
what it knew, as if ZooKeeper were away. The seats that it knows have earlier epochs, so its peers refuse it.

The first tree keeps one entry, and with it the run's name: another run of that name would want later trees.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from understudy.core.host.places import GATEWAY
from understudy.core.view.view import View
from understudy.runtime.coordination.client import ROOT
from understudy.runtime.coordination.session import CONNECT_TIMEOUT_S, SESSION_TIMEOUT_MS, Session
from understudy.runtime.going_on import LEAVING_S
from understudy.runtime.settings import EPOCHS_MAX, RunSettings

log = logging.getLogger(__name__)

_POLL_S = 0.2


class FormerTrees:
    """Has them deleted, beside everything else. Belongs to one thread."""

    def __init__(self) -> None:
        self._done = 1, 1, 1

    def look(self, settings: RunSettings, status: Mapping[str, Any]) -> None:
        """Begin, if anything is over since it was last looked. Not while an upgrade goes on."""
        now = settings.generation, settings.version, settings.versions_tried
        if settings.own_zookeeper or now == self._done or status["epoch"] < settings.first_epoch:
            return
        self._done = now
        threading.Thread(target=_forget, args=(settings,), name="former trees", daemon=True).start()


def _forget(settings: RunSettings) -> None:
    try:
        forget_former(settings)
    except Exception as problem:
        log.warning("what is over of this run stays in ZooKeeper until its next start: %r", problem)


def forget_former(settings: RunSettings, wait_s: float = LEAVING_S) -> None:
    """Delete the trees of earlier generations, and of this one's other versions. Waits for their members to
    leave, all in all so long. Raises whatever the connection does.
    """
    session = Session(settings.zookeeper, SESSION_TIMEOUT_MS, CONNECT_TIMEOUT_S)
    try:
        deadline = time.monotonic() + wait_s
        for generation in range(settings.generation, 0, -1):
            trees = [
                replace(settings, generation=generation, version=version)
                for version in range(1, settings.versions_tried + 1)
            ]
            former = [tree for tree in trees if tree.coordinates != settings.coordinates]
            found = [_forget_tree(session.client, tree, deadline) for tree in former]
            if generation < settings.generation and not any(found):
                # What was before it went when that generation had begun.
                return
    finally:
        session.close()


def _forget_tree(client: KazooClient, tree: RunSettings, deadline: float) -> bool:
    """Whether there was one."""
    root = f"{ROOT}/{tree.coordinates}"
    if client.exists(root) is None:
        return False
    if not _is_ours(client, root, tree):
        log.warning("%s is another run's, so it stays in ZooKeeper", root)
        return False
    while _children(client, f"{root}/members"):
        if time.monotonic() > deadline:
            log.warning("%s is in use, so it stays in ZooKeeper", root)
            return True
        time.sleep(_POLL_S)
    if tree.coordinates != tree.run:
        client.delete(root, recursive=True)
        return True
    facts = f"{root}/facts"
    for folder, kept in ((root, "facts"), (facts, GATEWAY)):
        for name in _children(client, folder):
            if name != kept:
                client.delete(f"{folder}/{name}", recursive=True)
    return True


def _is_ours(client: KazooClient, root: str, tree: RunSettings) -> bool:
    """A run may have a name like that of another run's later generation; its epochs tell them apart."""
    with suppress(NoNodeError):
        epoch = View.from_json(client.get(f"{root}/view")[0]).epoch
        return tree.first_epoch <= epoch < tree.first_epoch + EPOCHS_MAX
    return True


def _children(client: KazooClient, path: str) -> list[str]:
    try:
        return sorted(client.get_children(path))
    except NoNodeError:
        return []
