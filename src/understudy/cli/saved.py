"""Saved state, as `understudy run` shows it: from where a run goes on, what was lost and came back, since
when nothing is saved, and the last snapshots before a stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from understudy.cli.interruption import Interruption
from understudy.cli.picture import plural, span
from understudy.cli.stored import copies_in, unsaved_in
from understudy.cli.view import RunView
from understudy.runtime.local import LocalRun
from understudy.runtime.saving.claim import Claim
from understudy.runtime.saving.needed import Needed, require_states
from understudy.runtime.saving.of_run import store_of
from understudy.runtime.saving.store import SnapshotStore
from understudy.runtime.settings import RunSettings

#: How long the last snapshots before a stop may take. What they lack is in the log.
LAST_SAVE_S = 60.0
_POLL_S = 0.2
_ASK_AGAIN_S = 1.0


def open_store(settings: RunSettings) -> SnapshotStore | None:
    """The run's store, which must answer before anything starts; None if nothing is saved."""
    if not settings.saves:
        return None
    store = store_of(settings)
    store.probe()
    return store


def claimed(store: SnapshotStore | None, settings: RunSettings, say: Callable[[str], None]) -> Claim | None:
    """The store, for this start of the run alone; it must hold what the run cannot go on without."""
    if store is None:
        return None
    claim = Claim(store, settings.path)
    claim.take(say)
    try:
        require_states(store, Needed(settings.version_path))
    except BaseException:
        claim.release()
        raise
    claim.keep()
    return claim


def goes_on_from(store: SnapshotStore | None) -> str:
    """Where a run goes on from, in a sentence."""
    newest = [] if store is None else [store.listed(p)[:1] for p in store.partitions()]
    found = [each[0] for each in newest if each]
    if not found:
        return "goes on from its log: no state was saved yet"
    oldest = datetime.fromtimestamp(min(each.saved_at for each in found))
    size_mb = sum(each.size_bytes for each in found) / 2**20
    return (
        f"goes on from the state of {plural(len(found), 'partition')}, {size_mb:.1f} MB, saved at "
        f"{oldest:%Y-%m-%d %H:%M:%S} or later, and from its log"
    )


def save_last(run: LocalRun, view: RunView, interruption: Interruption) -> bool:
    """Have every state saved before the end; whether that was done. A second Ctrl-C does without: the log has
    the rest.
    """
    if not run.save_and_hold():
        return False
    view.say("saving the state; press Ctrl-C again to do without")
    interruption.grant(LAST_SAVE_S)
    asked_at = time.monotonic()
    deadline = asked_at + LAST_SAVE_S
    while time.monotonic() < deadline and not interruption.asked_again:
        status = run.status()
        unsaved = unsaved_in(status) if status is not None else []
        if status is not None and not unsaved:
            view.say("every state is saved")
            return True
        if time.monotonic() - asked_at > _ASK_AGAIN_S:
            # A copy that was behind has taken more since its last snapshot.
            asked_at = time.monotonic()
            run.save_and_hold()
        time.sleep(_POLL_S)
    view.say("not every state was saved; the run goes on from the snapshots before and from its log")
    return False


class SavedNews:
    """Says what becomes of the state: lost and restored, not saved, saved again."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._down: dict[str, float] = {}
        self._restored: dict[str, int] = {}
        #: What is wrong with the store, by partition: its state is not "saved", or not "restored".
        self._missing: dict[str, str] = {}
        self._passed_over: set[str] = set()
        self._version: int | None = None

    def note(self, status: dict[str, Any]) -> None:
        begun: set[str] = set()
        version = status.get("version")
        if version != self._version and self._version is not None:
            # What became of these partitions while the version before was the run's is no news.
            self._restored = dict(status["restored"])
            self._down.clear()
        self._version = version
        for partition, stats in copies_in(status):
            if stats.get("begun") and stats.get("groups"):
                begun.add(partition)
            self._note_saving(partition, stats)
        for partition in {*status["down"], *self._news(status)}:
            if partition not in self._down:
                self._down[partition] = time.monotonic()
                self._view.say(f"every copy of {partition} is lost; it goes on from its saved state")
        for partition in [p for p in self._down if p in begun and p not in status["down"]]:
            took_ms = (time.monotonic() - self._down.pop(partition)) * 1e3
            self._view.say(f"{partition} goes on, {span(took_ms)} after the loss was noticed")

    def _news(self, status: dict[str, Any]) -> list[str]:
        """Partitions that were lost and seated anew between two looks."""
        before, self._restored = self._restored, status["restored"]
        return [p for p, epoch in status["restored"].items() if epoch > before.get(p, 0)]

    def _note_saving(self, partition: str, stats: dict[str, Any]) -> None:
        for sentence in stats.get("passed_over", ()):
            if sentence not in self._passed_over:
                self._passed_over.add(sentence)
                self._view.say(sentence)
        if "saved_through" not in stats:
            return
        trouble, since = stats["saving_trouble"], stats["not_saved_since_s"]
        missing = "" if not trouble else "restored" if since is None else "saved"
        before, self._missing[partition] = self._missing.get(partition, ""), missing
        if missing == before:
            return
        if missing == "saved":
            when = f"{datetime.fromtimestamp(since):%H:%M:%S}"
            self._view.say(f"the state of {partition} is not saved since {when}: {trouble}")
        elif missing == "restored":
            self._view.say(trouble)
        elif before == "saved":
            self._view.say(f"the state of {partition} is saved again")
