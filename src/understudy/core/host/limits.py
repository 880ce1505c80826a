"""What bounds a host: how much may wait in it, and how long it waits for others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How much may wait: input at a source, output of a copy, and a group for an engine."""

    input_buckets_max: int = 100_000
    input_bytes_max: int = 256 * 2**20
    output_buckets_max: int = 100_000
    output_bytes_max: int = 128 * 2**20
    group_buckets_max: int = 1_000
    group_bytes_max: int = 64 * 2**20
    #: A copy that reads other copies saves its state after so much input at the latest: they keep it so long.
    save_bytes_max: int = 32 * 2**20


@dataclass(frozen=True)
class Timing:
    """How long a host waits before it acts on what does not happen."""

    #: For a broken connection to stand again.
    suspect_ms: int = 300
    #: For a connection that never stood, and before a suspicion is repeated.
    absent_ms: int = 4_000
    #: For an answer to a standby's request for its state.
    ask_ms: int = 500
    #: For any progress of a standby's catch-up.
    stuck_ms: int = 60_000
    #: Between two snapshots that an active copy ships to its backups; 0: there are no backups.
    ship_ms: int = 0
    #: Between two snapshots of a partition in the store; 0: the run saves no state.
    save_ms: int = 0
