"""What `understudy upgrade` and the process that started the run tell each other: files in the run's folder.

    upgrade/request.json    a version that is to take over; removed once it was taken up or refused
    upgrade/cancelled       it is to be taken back
    upgrade/progress.json   what has happened so far, and how it ended

The command leaves the first two and reads the third. So it may be killed, and the upgrade goes on; and the
run may be killed, which the command sees by the lock on the run's folder.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.candidate import candidate_in
from understudy.runtime.durable import write_whole, written
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.settings import UNREADABLE, RunSettings

log = logging.getLogger(__name__)

FOLDER = "upgrade"
REQUEST, PROGRESS, CANCELLED = "request.json", "progress.json", "cancelled"
DONE, TAKEN_BACK = "done", "taken back"


@dataclass(frozen=True)
class Request:
    """A version that is to take over, and for how long it is on trial."""

    settings: RunSettings
    dataflow: Dataflow
    trial_s: float
    bucket_us: int

    @property
    def version(self) -> int:
        return self.settings.version

    def leave(self) -> None:
        """Leave it in the run's folder. Raises `EnvironmentFailed` if the disk does not take it."""
        folder = self.settings.path / FOLDER
        values = {
            "settings": self.settings.to_json(),
            "dataflow": self.dataflow.to_json(),
            "trial_s": self.trial_s,
            "bucket_us": self.bucket_us,
        }
        try:
            with written(folder / REQUEST):
                folder.mkdir(exist_ok=True)
                for old in (PROGRESS, CANCELLED):
                    (folder / old).unlink(missing_ok=True)
                text = json.dumps(values, indent=2) + "\n"
                write_whole(folder / REQUEST, text, private=self.settings.has_keys)
        except EnvironmentFailed as problem:
            # It may be there all the same.
            remove_request(self.settings.path)
            raise EnvironmentFailed(f"The upgrade cannot be asked for: {problem}") from problem

    def is_for(self, settings: RunSettings) -> bool:
        """Whether it was made for a run with these settings, of which it changes the version alone."""
        own = self.settings
        of_version = {"flow_path": own.flow_path, "version": own.version, "first_node": own.first_node}
        return replace(settings, **of_version, versions_tried=own.versions_tried) == own  # type: ignore[arg-type]


def request_in(folder: Path) -> Request | None:
    """The request that waits in a run's folder; None if none does. A damaged one is removed."""
    file = folder / FOLDER / REQUEST
    try:
        values = json.loads(file.read_text())
        dataflow = Dataflow.from_json(values["dataflow"])
        times = float(values["trial_s"]), int(values["bucket_us"])
        return Request(RunSettings.from_json(values["settings"]), dataflow, *times)
    except FileNotFoundError:
        return None
    except UNREADABLE as problem:
        log.warning("%s is no request for an upgrade: %s", file, problem)
        remove_request(folder)
        return None


def remove_request(folder: Path) -> None:
    """Once it was taken up or refused."""
    try:
        (folder / FOLDER / REQUEST).unlink(missing_ok=True)
    except OSError as problem:
        log.warning("a request for an upgrade cannot be removed: %s", problem)


def under_way(folder: Path) -> bool:
    """Whether a run is being upgraded now, or was asked to be. Also when the command that asked is gone."""
    # The launcher writes the candidate before it removes the request, so one of them is seen.
    return (folder / FOLDER / REQUEST).exists() or candidate_in(folder) is not None


@dataclass(frozen=True)
class Progress:
    """What has happened so far, in sentences, and how it ended: `DONE`, `TAKEN_BACK`, or not yet."""

    version: int
    sentences: tuple[str, ...] = ()
    outcome: str = ""

    def save(self, folder: Path) -> None:
        """Raises `OSError`."""
        values = {"version": self.version, "sentences": self.sentences, "outcome": self.outcome}
        write_whole(folder / FOLDER / PROGRESS, json.dumps(values) + "\n")


def progress_in(folder: Path) -> Progress | None:
    """How an upgrade of the run in that folder goes; None if none was taken up, or if it cannot be read."""
    try:
        values = json.loads((folder / FOLDER / PROGRESS).read_text())
        return Progress(int(values["version"]), tuple(map(str, values["sentences"])), str(values["outcome"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def cancel(folder: Path) -> None:
    """Have an upgrade taken back, if it is not finished by then."""
    mark = folder / FOLDER / CANCELLED
    try:
        mark.touch()
    except OSError as problem:
        raise EnvironmentFailed(
            f"{mark} cannot be made: {problem}. The upgrade goes on. Free the disk, and make that file."
        ) from problem


def is_cancelled(folder: Path) -> bool:
    return (folder / FOLDER / CANCELLED).exists()
