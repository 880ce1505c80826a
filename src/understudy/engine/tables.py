"""Tables that do not stream: the files that a fragment reads beside its inputs.

Spark lists a table's files when a query is built and reads them again in every micro-batch, each replica for
itself. If they changed in between, replicas would differ, and so would two micro-batches of one replica. So
the files are *pinned*: found in the analysed plan, with size and digest. They are part of a state's identity
(see `identity`), so a replica with other files cannot take up a snapshot; and the engine checks them after
every micro-batch, before its output leaves.

Only files on this machine's file systems can be pinned, so tables that are read from anywhere else are
refused. Rows that the flow's own code makes (`createDataFrame`, `range`) are as much the flow's own as its
functions, and need nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame

from understudy.engine.storing import Digests
from understudy.flow.errors import EnvironmentFailed, FlowError

#: All of them are checked after every micro-batch.
FILES_MAX = 1_000

#: Leaves of a plan whose rows come from the inputs or from the flow's own code.
_OWN_ROWS = {
    "CTERelationRef",
    "ExternalRDD",
    "LocalRelation",
    "LogicalRDD",
    "OneRowRelation",
    "Range",
    "StreamingRelation",
    "StreamingRelationV2",
}

#: A large table is read through once in a process, not once for each engine.
_digests = Digests()


@dataclass(frozen=True)
class PinnedFile:
    path: Path
    size_bytes: int
    digest: str
    stamp: tuple[int, ...]
    """Changes whenever the file does."""


@dataclass(frozen=True)
class Tables:
    """All files of a fragment's tables, by the table's name and the file's name below it."""

    fragment: str
    files: Mapping[str, PinnedFile]

    def facts(self) -> dict[str, str]:
        """What the files are, to be compared with another replica's."""
        return {name: f"{file.size_bytes} bytes, {file.digest}" for name, file in self.files.items()}

    def require_unchanged(self) -> None:
        """Raise EnvironmentFailed if a file is not the one any more that was pinned."""
        for name, file in self.files.items():
            try:
                unchanged = _stamp_of(file.path) == file.stamp
            except OSError:
                unchanged = False
            if not unchanged:
                raise EnvironmentFailed(
                    f"fragment {self.fragment!r}: the file {file.path} of the table "
                    f"{name.partition('/')[0]} was changed while the flow runs, so replicas may have read "
                    "different rows. Leave a table's files alone during a run; rows that change belong in "
                    "a source of their own"
                )


def pinned_tables(fragment: str, frame: DataFrame) -> Tables:
    """The files of all tables in a fragment's plan. FlowErrors say which table cannot be pinned."""
    files: dict[str, PinnedFile] = {}
    pinned: set[Path] = set()
    for relation in _file_relations(fragment, frame._jdf.queryExecution().analyzed()):
        roots, paths = _paths_of(fragment, relation)
        if len(pinned) + len(paths) > FILES_MAX:
            raise FlowError(
                f"fragment {fragment!r} reads tables of more than {FILES_MAX} files ({roots[0]} ...). Each "
                "is looked at after every micro-batch: write the table in fewer files"
            )
        folder = os.path.commonpath([root.parent for root in roots])
        for path in paths:
            if path not in pinned:
                pinned.add(path)
                files[_free_name(os.path.relpath(path, folder), files)] = _pin(fragment, path)
    return Tables(fragment, files)


def _file_relations(fragment: str, plan: Any) -> Iterator[Any]:
    subqueries = plan.subqueriesAll()
    plans = [plan, *(subqueries.apply(index) for index in range(subqueries.size()))]
    for each in plans:
        leaves = each.collectLeaves()
        for index in range(leaves.size()):
            leaf = leaves.apply(index)
            kind = leaf.getClass().getSimpleName()
            if kind in _OWN_ROWS:
                continue
            relation = leaf.relation() if kind == "LogicalRelation" else leaf
            if relation.getClass().getSimpleName() != "HadoopFsRelation":
                raise _refusal(fragment, f"a table of the kind {relation.getClass().getSimpleName()}")
            yield relation


def _paths_of(fragment: str, relation: Any) -> tuple[list[Path], list[Path]]:
    """The table's folders or files as they were named, and all of its files."""
    location = relation.location()
    named = location.rootPaths()
    roots = [named.apply(index).toUri() for index in range(named.size())]
    for root in roots:
        if root.getScheme() not in (None, "file"):
            raise _refusal(fragment, f"the table {root.toString()}")
    return (
        [Path(root.getPath()) for root in roots],
        [Path(unquote(urlsplit(uri).path)) for uri in sorted(location.inputFiles())],
    )


def _refusal(fragment: str, what: str) -> FlowError:
    return FlowError(
        f"fragment {fragment!r} reads {what}. Every replica reads it for itself, and only for files on its "
        "own disks can Understudy check that all read the same. Write the table to files that every node has "
        "under the same path, or make it a source of the flow (Push, Files)"
    )


def _free_name(name: str, taken: Mapping[str, PinnedFile]) -> str:
    """Tables in different folders may have the same name."""
    table, slash, rest = name.partition("/")
    names = (name, *(f"{table} ({n}){slash}{rest}" for n in range(2, FILES_MAX + 2)))
    return next(each for each in names if each not in taken)


def _pin(fragment: str, path: Path) -> PinnedFile:
    try:
        stamp = _stamp_of(path)
        size_bytes, digest = _digests.of(path)
    except OSError as problem:
        raise EnvironmentFailed(
            f"fragment {fragment!r}: the table's file {path} cannot be read ({problem})"
        ) from problem
    return PinnedFile(path, size_bytes, digest, stamp)


def _stamp_of(path: Path) -> tuple[int, ...]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
