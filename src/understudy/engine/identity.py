"""Whose state a snapshot is: fragment, partition, shape, tables that were read, consumers of held rows.

A state goes on only where it belongs. In another partition it would hold keys that never come there and lack
those that do; under another number of partitions, or other columns, the same number means other keys. And
rows that are held say which partition of a consumer they go to, so a consumer must be split as it was.
The state was made with certain files of tables that do not stream, and goes on with the same ones only.
None of that could be noticed later, so every snapshot says it and every restore asks.

The fragment's code may have changed since, as far as its state goes on under it: `fitting` says how far. What
comes and goes with that is no part of the identity: sinks, consumers as a whole, columns of the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from understudy.engine.dealing import Dealt
from understudy.engine.fitting import refusals
from understudy.flow.errors import EnvironmentFailed, FlowError


@dataclass(frozen=True)
class Share:
    """Which partition of how many, and by which columns rows are dealt out to these. By itself: all rows."""

    index: int = 0
    count: int = 1
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        by = f" by {', '.join(self.keys)}" if self.keys else ""
        return f"partition {self.index} of {self.count}{by}"


WHOLE = Share()


@dataclass(frozen=True)
class Identity:
    """The identity of the state that an engine keeps."""

    fragment: str
    share: Share
    dealt_to: Mapping[str, Dealt]
    tables: Mapping[str, str] = field(default_factory=dict)
    """The files of tables that do not stream: what each of them is, by table and file."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """See `state_shape`; empty for a fragment that never changes."""

    def facts(self) -> dict[str, Any]:
        """What the manifest of a snapshot says of it."""
        share = {"index": self.share.index, "count": self.share.count, "keys": self.share.keys}
        return {
            "fragment": self.fragment,
            "partition": share,
            "dealt_to": dict(self.dealt_to),
            "tables": dict(self.tables),
            "shape": dict(self.shape),
        }

    def require_own(self, directory: Path, manifest: Mapping[str, Any]) -> None:
        """Raise EnvironmentFailed unless the snapshot in `directory` is of this very state.

        Raises a FlowError if it is, but the fragment has changed so that the state does not fit.
        """
        if manifest["fragment"] != self.fragment:
            raise EnvironmentFailed(
                f"snapshot {directory} is of fragment {manifest['fragment']!r}, not {self.fragment!r}"
            )
        said = manifest["partition"]
        share = Share(said["index"], said["count"], tuple(said["keys"]))
        if share != self.share:
            raise EnvironmentFailed(
                f"snapshot {directory} of fragment {self.fragment!r} is of {share}, not of {self.share}. "
                "Restore from one of this partition"
            )
        kept = manifest["dealt_to"].items()
        dealt_to = {consumer: (tuple(keys), count) for consumer, (keys, count) in kept}
        if any(self.dealt_to.get(consumer, dealt) != dealt for consumer, dealt in dealt_to.items()):
            raise EnvironmentFailed(
                f"snapshot {directory} of fragment {self.fragment!r} was taken while its output was "
                f"dealt out to {_shown(dealt_to)}, not to {_shown(self.dealt_to)}. Restore from one of "
                "this run"
            )
        require_same_tables(f"fragment {self.fragment!r}", self.tables, manifest["tables"])
        if reasons := refusals(self.fragment, manifest["shape"], self.shape):
            raise FlowError("\n".join(reasons))


def require_same_tables(what: str, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Raise EnvironmentFailed unless the files of tables are the same here and where the state comes from."""
    for name in sorted({*here, *there}):
        if here.get(name) != there.get(name):
            table, _, file = name.partition("/")
            raise EnvironmentFailed(
                f"{what} reads the table {table}, and its file {file or table} differs between replicas: "
                f"{here.get(name, 'missing')} here, {there.get(name, 'missing')} where the state comes from. "
                "Give every node the same files and leave them alone during a run, or start the run anew"
            )


def _shown(dealt_to: Mapping[str, Dealt]) -> str:
    shown = [f"{name} (by {', '.join(keys)} into {n})" for name, (keys, n) in sorted(dealt_to.items())]
    return ", ".join(shown) or "no partitions"
