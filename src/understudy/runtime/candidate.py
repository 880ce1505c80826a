"""The candidate: a version of a run's flow that runs beside the one before and is to take over from it.

Two files in the run's folder say all there is to know, and only the process that started the run writes them:

    run.json         the version that the run goes on with, whatever happens
    candidate.json   the version beside it, if there is one, and whether the sinks are to take its output

    candidate.json is written         the gateway and nodes of the candidate begin
    it says `live`                    the sinks turn to the candidate
    run.json names the candidate      the upgrade is done: from here on the run goes on with the candidate
    candidate.json is removed         before that: the candidate is taken back; after it: all is tidied up

The gateway looks at both from time to time and makes what it does agree with them. So it needs no messages
that could get lost, and one that was killed begins again where it was. Each file is replaced whole, and the
moment at which `run.json` is replaced decides: a run that loses its power goes on with the version that this
file names, from that version's saved states.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed
from understudy.runtime.durable import sync, write_whole, written
from understudy.runtime.partitioning import Dataflow
from understudy.runtime.settings import FILE as RUN_FILE
from understudy.runtime.settings import FORMAT, UNREADABLE, RunSettings

log = logging.getLogger(__name__)

FILE = "candidate.json"
#: How often both files are read anew because one of them was replaced meanwhile.
_ROUNDS_MAX = 10


@dataclass(frozen=True)
class Candidate:
    """`live` says that the sinks are to take its output."""

    settings: RunSettings
    dataflow: Dataflow
    live: bool = False

    @property
    def version(self) -> int:
        return self.settings.version

    def save(self) -> None:
        """Raises `EnvironmentFailed` if that fails, although the file may be there then."""
        values = {
            "live": self.live,
            "dataflow": self.dataflow.to_json(),
            "settings": self.settings.to_json(),
        }
        file = _file(self.settings.path)
        with written(file):
            write_whole(file, json.dumps(values, indent=2) + "\n", private=self.settings.has_keys)


def candidate_in(folder: Path) -> Candidate | None:
    """The candidate of the run in that folder; None if there is none.

    One of another version of the program is none: its `run.json` is of that version, too, and says so.
    """
    file = _file(folder)
    try:
        values = json.loads(file.read_text())
        if values["settings"].get("format") != FORMAT:
            return None
        settings = RunSettings.from_json(values["settings"])
        return Candidate(settings, Dataflow.from_json(values["dataflow"]), bool(values["live"]))
    except FileNotFoundError:
        return None
    except UNREADABLE as problem:
        raise EnvironmentFailed(f"{file} cannot be read: {problem}") from problem


def remove_candidate(folder: Path) -> bool:
    """There is no candidate any more; whether there was one. Raises `OSError`."""
    try:
        _file(folder).unlink()
    except FileNotFoundError:
        return False
    sync(folder)
    return True


class Wanted:
    """What the two files say. Reads them only when they were replaced. Belongs to one thread.

    `base` is the version that its process was started for.
    """

    def __init__(self, base: RunSettings) -> None:
        self._folder = base.path
        self._seen: tuple[tuple[int, int] | None, ...] = ()
        self.base = base
        self.candidate: Candidate | None = None
        self.changed()
        if self.base.version != base.version:
            # It would work for a version that is over, and let the log go by that one's saved states.
            raise EnvironmentFailed(
                f"The run went on with version {self.base.version} while this process, of version "
                f"{base.version}, was starting. It has to be started again."
            )

    def changed(self) -> bool:
        """Whether something else is wanted than when this was last asked."""
        before = self.base, self.candidate
        for _ in range(_ROUNDS_MAX):
            files = self._stamps()
            if files == self._seen:
                break
            base = RunSettings.load(self._folder) if files[0] is not None else self.base
            candidate = candidate_in(self._folder)
            if self._stamps() != files:
                # The two may not belong together: a candidate that is gone was made the base, or taken back.
                continue
            if base.version != self.base.version and not self._is_durable():
                # A loss of power could still undo it, and the log goes by it.
                break
            self._seen = files
            self.base = base
            done = candidate is not None and candidate.version == base.version
            self.candidate = None if done else candidate
        return (self.base, self.candidate) != before

    def _is_durable(self) -> bool:
        """Whether what the two files say outlives a loss of power: who writes them may not have seen to that
        yet. If not, that is asked again.
        """
        try:
            sync(self._folder)
        except OSError as problem:
            log.warning("the run's settings may not be on disk yet: %s", problem)
            return False
        return True

    def _stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(map(_stamp, (self._folder / RUN_FILE, _file(self._folder))))


def _stamp(file: Path) -> tuple[int, int] | None:
    """Another one whenever the file was replaced; None if there is none."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def settings_of(folder: str | Path, version: int | None) -> RunSettings:
    """The settings of one version of the run in that folder; None: of the one that the run goes on with."""
    settings = RunSettings.load(folder)
    if version in (None, settings.version):
        return settings
    candidate = candidate_in(Path(folder))
    if candidate is None or candidate.version != version:
        raise EnvironmentFailed(f"The run in {folder} has no version {version} any more.")
    return candidate.settings


def _file(folder: Path) -> Path:
    return folder / FILE
