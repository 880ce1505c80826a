"""The journal of one sink's deliveries: the position, and the last range until it is reported.

Before a range is written, the journal notes which range it is; the sink's own position shows afterwards
whether the range got there. So after a crash the gateway knows exactly what was delivered, also for a range
whose rows were in place when the process died. A range behind the position is delivered, and perhaps not
reported.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from understudy.core.bucket import NOTHING, BucketId
from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.durable import make_path, sync


@dataclass(frozen=True)
class DeliveredRange:
    """Buckets (after, through], of which these had rows: number, rows, digest. One version made them."""

    after: BucketId
    through: BucketId
    buckets: tuple[tuple[BucketId, int, str], ...]
    version: int = 1


def journal_file(folder: Path, sink: str) -> Path:
    return folder / "delivery" / f"{sink}.json"


class Journal:
    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def exists(self) -> bool:
        return self.file.exists()

    def write(self, position: BucketId, last: DeliveredRange | None) -> None:
        """Keep this, on disk when it returns, in place of what was kept before."""
        range_ = None
        if last is not None:
            range_ = {
                "after": last.after,
                "through": last.through,
                "buckets": last.buckets,
                "version": last.version,
            }
        half = self.file.with_suffix(".half")
        try:
            make_path(self.file.parent)
            with half.open("w") as file:
                json.dump({"position": position, "intent": range_}, file)
                file.flush()
                os.fdatasync(file.fileno())
            half.replace(self.file)
            if last is None or last.through <= position:
                # Copies forget what is delivered, so a position must never fall back. An intent may get lost:
                # then nothing of it is delivered, or the sink itself knows how far it is.
                sync(self.file.parent)
        except OSError as problem:
            raise EnvironmentFailed(
                f"The delivery journal {self.file} cannot be written: {problem}. Free or repair the disk."
            ) from problem

    def read(self) -> tuple[BucketId, DeliveredRange | None]:
        """The position and the range that were written last."""
        if not self.file.exists():
            return NOTHING, None
        try:
            fields = json.loads(self.file.read_text())
            intent = fields["intent"]
            if intent is None:
                return int(fields["position"]), None
            buckets = tuple((int(number), int(rows), str(text)) for number, rows, text in intent["buckets"])
            numbers = int(intent["after"]), int(intent["through"])
            range_ = DeliveredRange(*numbers, buckets, int(intent.get("version", 1)))
            return int(fields["position"]), range_
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise EnvironmentFailed(
                f"The delivery journal {self.file} cannot be read: {problem}. Restore it from a copy, or "
                "start the run in a new folder."
            ) from problem
