"""The newest save of each partition that any node has told of, also one that is dead by now.

Another copy may take the saving over at any time. It has saved nothing itself then, and the partition's state
is saved all the same. Which of two is newer is told by how much they hold: wall clocks step back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NewestSaves:
    """Takes in what nodes of one version tell of their copies. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._by_partition: dict[str, dict[str, Any]] = {}

    def note(self, facts: Mapping[str, Any]) -> None:
        """A node told this of all its copies."""
        for copy, stats in facts.get("copies", {}).items():
            through = stats.get("saved_through")
            if through is None:
                continue
            partition, at_s = copy.rpartition(":")[0], stats["saved_at_s"]
            known = self._by_partition.get(partition)
            if known is None or (through, at_s) >= (known["through"], known["at_s"]):
                save = {"through": through, "at_s": at_s, "bytes": stats["saved_bytes"]}
                self._by_partition[partition] = save

    def status(self) -> dict[str, dict[str, Any]]:
        """By partition: through which bucket, when, and how large the state is."""
        return dict(self._by_partition)
