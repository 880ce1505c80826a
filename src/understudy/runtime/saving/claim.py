"""Who works with a run's saved state: one run at a time, wherever its processes are.

On one machine the lock on the run's folder keeps two starts of a run apart. A folder that was copied, or that
two machines share, has no such lock. Both would find the same snapshots in a store outside of it, and each
would delete the other's. So whoever starts a run claims its part of the store: a file there holds a token of
this start, the place where it runs, and a number that grows every `BEAT_S`.

A start that finds the claim of another place, or of one that may be another (`whereabouts`), watches it. If
the number grows, the run still runs there, and this start is refused. If it does not grow for `WATCH_S`,
nobody works there any more, as after a loss of power, and this start claims the store itself. A run that
finds another token in place of its own has lost its store, and ends. No clock is compared with another.

Between a claim and the next look of the run that has lost its store, both may save for `BEAT_S`. That can
only happen to a run whose launcher stood still for so long that it counted as dead.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from understudy.flow.errors import EnvironmentFailed, UserError
from understudy.runtime.saving.store import SnapshotStore
from understudy.runtime.saving.whereabouts import Whereabouts

log = logging.getLogger(__name__)

FILE = "claim.json"
BEAT_S = 5.0
WATCH_S = 15.0
_POLL_S = 0.5
#: An end never waits long for a store.
RELEASE_S = 3.0


@dataclass(frozen=True)
class Word:
    """What stands in the file. `at` is the wall time when the run was started, for people."""

    token: str
    where: str
    at: float
    beat: int = 0
    lock: str = ""
    boot: str = ""
    machine: str = ""

    @property
    def whereabouts(self) -> Whereabouts:
        return Whereabouts(self.where, self.lock, self.boot, self.machine)


class Claim:
    """The claim of one start of a run, which holds the run's folder. `take` comes first; `keep` then holds it
    in a thread of its own.
    """

    def __init__(self, store: SnapshotStore, folder: Path) -> None:
        self._store = store
        self._here = Whereabouts.of(folder)
        self._word = Word(secrets.token_hex(8), at=time.time(), **vars(self._here))
        self._over = threading.Event()
        self._taken = False
        self._thread: threading.Thread | None = None
        #: Why the store is not this run's any more; nothing while it is.
        self.lost = ""

    def take(self, say: Callable[[str], None]) -> None:
        """Claim the store. Raises `UserError` if the run still runs in another place, and
        `EnvironmentFailed` if the store cannot be used.
        """
        found = self._read()
        # Of the same place it is of a start that is over: this one holds the folder.
        if found is not None and not found.whereabouts.are_surely(self._here):
            alike = ", perhaps a copy or another machine" if found.where == self._here.where else ""
            look = f"looking for {WATCH_S:g} s whether it still is"
            say(f"the state was last used by {found.where}{alike}; {look}")
            self._require_silent(found)
        self._write()
        self._taken = True
        self._store.delete_half_notes()

    def _require_silent(self, first: Word) -> None:
        deadline = time.monotonic() + WATCH_S
        while time.monotonic() < deadline:
            time.sleep(_POLL_S)
            found = self._read()
            if found is None:
                return
            if found != first:
                raise UserError(
                    f"This run is still running, in {found.where}: its state in {self._store.shown} is in "
                    "use. Stop it there, or start a run of its own in a new folder."
                )

    def keep(self) -> None:
        """Hold it until it is released or lost."""
        self._thread = threading.Thread(target=self._keep, name="claim", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        troubled = False
        while not self._over.wait(BEAT_S):
            try:
                found = self._read()
                if found is not None and found.token != self._word.token:
                    self.lost = f"This run was begun again, in {found.where}, which has its saved state now"
                    log.error("%s", self.lost)
                    return
                self._word = replace(self._word, beat=self._word.beat + 1)
                self._write()
                troubled = False
            except Exception as problem:
                # Whatever it is: a run whose number stands still counts as dead elsewhere.
                if not troubled:
                    log.warning("the claim on the store cannot be renewed: %s", problem)
                    log.debug("the reason", exc_info=problem)
                troubled = True

    def release(self) -> None:
        """Let the next start have the store at once."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(RELEASE_S)
        if self._taken and not self.lost:
            self._taken = False
            with suppress(EnvironmentFailed):
                found = self._read(RELEASE_S)
                if found is not None and found.token == self._word.token:
                    self._store.delete_note(FILE, RELEASE_S)

    def _read(self, silence_s: float | None = None) -> Word | None:
        contents = self._store.read_note(FILE, silence_s)
        try:
            return None if contents is None else Word(**json.loads(contents))
        except (ValueError, TypeError):
            # Half written, or damaged: it keeps nobody away.
            return None

    def _write(self) -> None:
        self._store.write_note(FILE, json.dumps(vars(self._word)).encode())
