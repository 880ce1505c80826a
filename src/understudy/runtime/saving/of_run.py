"""The store of a run, as its settings name it."""

from __future__ import annotations

from understudy.runtime.saving.store import SnapshotStore
from understudy.runtime.settings import RunSettings


def store_of(settings: RunSettings, shape: str = "") -> SnapshotStore:
    """The store of one version of a run; what is saved there gets the mark of this shape of the flow.

    Raises `UserError` or `EnvironmentFailed`, as `open_place` does.
    """
    name = settings.saved_as or settings.run
    kept, version = settings.snapshots_kept, settings.version
    return SnapshotStore.open(settings.store_url, name, keep=kept, version=version, shape=shape)
