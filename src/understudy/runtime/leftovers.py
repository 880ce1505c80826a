"""What is left of a version of the flow that is over, and how it goes, so that upgrades leave no more behind
than the last one did.

    versions/<n>/, or flow.json, shape.json, former-shapes.json, code/
                                                     its code, and marks: gone when its nodes have ended
    ready/, pulse/, failed/, state/ of its nodes     the same
    its snapshots in the store                       the same. Adoption is without a copy, so what a later
                                                     version took over stays. What only fragments had that
                                                     the run has no more goes with them
    logs/ of its nodes                               stay until the next upgrade is done: to read why
    history/ of its nodes                            stays, for `understudy check`. What all versions that are
                                                     over have of it is as much as one process may have

A version ends beside everything else, and its gateway or its launcher may be killed meanwhile. So whatever
ends a version removes all earlier ones, too, and a run that goes on begins with that.
"""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.history.parts import parts_of_processes
from understudy.history.removing import keep_within
from understudy.runtime.candidate import candidate_in, remove_candidate
from understudy.runtime.pinning import known_shapes, unpin
from understudy.runtime.process import failure_file, ready_file, seated_file
from understudy.runtime.pulse import pulse_file
from understudy.runtime.saved_shapes import segments_of, shapes_that_count
from understudy.runtime.saving.needed import Needed
from understudy.runtime.saving.of_run import store_of
from understudy.runtime.settings import VERSIONS, RunSettings
from understudy.runtime.upgrade_files import FOLDER

log = logging.getLogger(__name__)

_NODE = re.compile(r"node-(\d+)(\.|$)")


def drop_nodes(settings: RunSettings, names: Iterable[str]) -> None:
    """What these nodes, which have ended, kept on disk for themselves, and their marks."""
    for name in names:
        for file in (ready_file, failure_file, pulse_file):
            with suppress(OSError):
                file(settings.path, name).unlink()
        for folder in (settings.path / "state").glob(f"{name}.*"):
            shutil.rmtree(folder, ignore_errors=True)


def drop_logs(settings: RunSettings, first_node: int) -> None:
    """The logs of the nodes before that one: of versions that were over when the last upgrade began."""
    for file in (settings.path / "logs").glob("node-*"):
        if _is_before(file.name, first_node):
            with suppress(OSError):
                file.unlink()


def bound_histories(settings: RunSettings) -> None:
    """Of the histories of nodes that the run will not have again, the oldest parts go beyond one bound."""
    over = parts_of_processes(
        settings.path / "history", lambda name, _: _is_before(name, settings.first_node)
    )
    bytes_max, part_bytes = settings.history_bytes_max, settings.history_part_bytes
    try:
        keep_within(over, bytes_max, part_bytes, settings.flow)
    except OSError as problem:
        log.warning("histories of versions that are over stay until the next upgrade, or start: %s", problem)


def _is_before(name: str, first_node: int) -> bool:
    """Whether this is of a node whose number is lower."""
    named = _NODE.match(name)
    return named is not None and int(named[1]) < first_node


def drop_code(settings: RunSettings, through: float = math.inf) -> None:
    """The code and the marks of every version through that one but the run's own."""
    for folder in (settings.path / VERSIONS).glob("*"):
        if folder.name.isdecimal() and settings.version != int(folder.name) <= through:
            shutil.rmtree(folder, ignore_errors=True)
    if settings.version > 1:
        first = replace(settings, version=1)
        with suppress(OSError):
            unpin(first)
            seated_file(first.version_path).unlink(missing_ok=True)
            Needed(first.version_path).drop()


def drop_states(settings: RunSettings) -> None:
    """The snapshots of every version that was begun but the run's own, and all that was saved of fragments
    that the run does not have any more: not by its code, and not by any code that made a snapshot it could
    go on from. Also while that code may change: a fragment that comes back has nothing to begin from then.
    """
    known = _shapes(settings)
    if not settings.saves or (not known and settings.versions_tried == 1):
        return
    try:
        store = store_of(settings)
        shapes = shapes_that_count(known, store)
        segments = {name for shape in shapes for name in segments_of(shape)}
        for version in sorted(store.versions()):
            # A later one is being begun.
            if version <= settings.versions_tried and version != settings.version:
                store.drop_version(version)
        if segments:
            Needed(settings.version_path).keep_only(segments)
            store.keep_only(segments, settings.versions_tried)
    except (EnvironmentFailed, UserError) as problem:
        log.warning("snapshots of versions that are over stay until the next upgrade, or start: %s", problem)


def _shapes(settings: RunSettings) -> list[dict[str, Any]]:
    """What the saved state may be made by; nothing if no node has come so far that it is known."""
    try:
        return known_shapes(settings)
    except EnvironmentFailed as problem:
        log.warning("%s", problem)
        return []


def drop_unfinished(settings: RunSettings) -> str | None:
    """Before a run goes on: what an upgrade that was cut off has left goes; a sentence if there was one.

    Only for the holder of the folder's lock. The run goes on with the version that its settings name. Raises
    `EnvironmentFailed` if the candidate cannot be removed: the run would take it up again.
    """
    try:
        candidate = candidate_in(settings.path)
    except EnvironmentFailed as problem:
        log.warning("%s", problem)
        candidate = None
    try:
        was_there = remove_candidate(settings.path)
    except OSError as problem:
        raise EnvironmentFailed(
            f"What an upgrade has left in {settings.path} cannot be removed: {problem}. Repair the disk."
        ) from problem
    shutil.rmtree(settings.path / FOLDER, ignore_errors=True)
    drop_code(settings)
    drop_states(settings)
    bound_histories(settings)
    if not was_there:
        return None
    if candidate is not None and candidate.version == settings.version:
        return f"an upgrade was done: the run goes on from the state of version {settings.version}"
    return (
        "an upgrade was not finished and is taken back: the run goes on from the state of version "
        f"{settings.version}"
    )
