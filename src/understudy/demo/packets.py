"""Packets at a firewall, as a pure function of their numbers.

Row i goes to lane i mod L, and is that lane's turn i div L. A lane is a line on which one session follows
another. Ten turns make a slot, and a slot holds two sessions; where the first ends and the second begins is
drawn by a hash of seed, lane and slot. So sessions last between one turn and seven, thousands of them are
open at any moment, and any row can be made from its number alone, without the rows before it.

A lane uses its own pairs of addresses, one after the other. A pair comes back after PAIRS_PER_LANE sessions,
long after its last session has ended, so a pause of two turns is enough to tell two sessions apart.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SCHEMA = "src string, dst string, app string, kind string, ts timestamp"
APPS = ("http", "ftp", "ssh", "gnutella")
SOURCES = 250
TURN_S = 0.2
SLOT_TURNS = 10
PAIRS_PER_LANE = 50

_KINDS = pa.array(["start", "data", "end"])
_APPS = pa.array(APPS)
_SOURCES = pa.array([f"10.0.{n // 256}.{n % 256}" for n in range(SOURCES)])

Numbers = npt.NDArray[np.int64]


def lanes_for(rows_per_s: float) -> int:
    """How many lanes make a turn last TURN_S."""
    return max(1, round(rows_per_s * TURN_S))


def packets(seed: int, first: int, count: int, *, lanes: int) -> pa.Table:
    """Rows `first` to `first + count` without their times."""
    number = np.arange(first, first + count, dtype=np.int64)
    lane = number % lanes
    # Lanes are out of step, or all sessions would begin and end at the same moments.
    turn = number // lanes + _hashed(seed, lane, 0) % SLOT_TURNS
    slot, at = turn // SLOT_TURNS, turn % SLOT_TURNS
    # Two turns at least for each of the two sessions: a start and an end.
    cut = 2 + _hashed(seed, lane, 1 + slot) % (SLOT_TURNS - 3)
    second = at >= cut
    starts = (at == 0) | (at == cut)
    ends = (at == cut - 1) | (at == SLOT_TURNS - 1)
    session = 2 * slot + second
    pair = lane * PAIRS_PER_LANE + session % PAIRS_PER_LANE
    return pa.table(
        {
            "src": _named(_SOURCES, _hashed(seed, pair, -1) % SOURCES),
            "dst": _addresses(pair),
            "app": _named(_APPS, _hashed(seed, pair, -2) % len(APPS)),
            "kind": _named(_KINDS, np.where(starts, 0, np.where(ends, 2, 1))),
        }
    )


def _hashed(seed: int, a: Numbers, b: Numbers | int) -> Numbers:
    """A number from 0 to 2**31 for each pair of numbers: two rounds of multiplying and folding."""
    mixed = a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(b, np.int64).astype(np.uint64)
    mixed = (mixed + np.uint64(seed % 2**32)) * np.uint64(0xD6E8FEB86659FD93)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(factor)
    return (mixed >> np.uint64(33)).astype(np.int64)


def _named(names: pa.Array, indices: Numbers) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), names).cast(pa.string())


def _addresses(pair: Numbers) -> pa.Array:
    distinct, indices = np.unique(pair, return_inverse=True)
    names = [f"172.{16 + (n >> 16) % 16}.{n >> 8 & 255}.{n & 255}" for n in distinct.tolist()]
    return _named(pa.array(names, pa.string()), indices.astype(np.int64))
