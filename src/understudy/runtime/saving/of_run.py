"""The store of a run, as its settings name it."""

from __future__ import annotations

from understudy.runtime.saving.store import SnapshotStore
from understudy.runtime.settings import RunSettings


def store_of(settings: RunSettings) -> SnapshotStore:
    """The store of one version of a run. Raises `UserError` or `EnvironmentFailed`, as `open_place` does."""
    name = settings.saved_as or settings.run
    return SnapshotStore.open(
        settings.store_url, name, keep=settings.snapshots_kept, version=settings.version
    )
