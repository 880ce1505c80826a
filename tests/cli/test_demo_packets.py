"""The demonstration's packets: a pure function, and sessions as they are described."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from understudy.demo.packets import PAIRS_PER_LANE, lanes_for, packets

LANES = 20
ROWS = 20 * 10 * 60


@pytest.mark.parametrize(("first", "count"), [(0, 1), (7, 100), (1_999, 2), (5_000, 0), (11_000, 1_000)])
def test_any_stretch_is_the_same_as_cut_from_the_whole(first: int, count: int) -> None:
    whole = packets(3, 0, ROWS, lanes=LANES)
    assert packets(3, first, count, lanes=LANES).to_pylist() == whole.slice(first, count).to_pylist()


def test_another_seed_makes_other_packets() -> None:
    assert packets(1, 0, 1_000, lanes=LANES) != packets(2, 0, 1_000, lanes=LANES)


def test_a_pair_keeps_its_application_and_its_sessions_do_not_overlap() -> None:
    rows = packets(3, 0, ROWS, lanes=LANES).to_pylist()
    turns: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    apps: dict[tuple[str, str], set[str]] = defaultdict(set)
    for number, row in enumerate(rows):
        turns[row["src"], row["dst"]].append((number // LANES, row["kind"]))
        apps[row["src"], row["dst"]].add(row["app"])
    assert len(turns) == LANES * PAIRS_PER_LANE
    assert all(len(names) == 1 for names in apps.values())
    lengths = set()
    for packets_of_pair in turns.values():
        sessions = _sessions(packets_of_pair)
        for session in sessions:
            kinds = [kind for _, kind in session]
            # The stretch may cut the first and the last session of a lane.
            if kinds[0] == "start" and kinds[-1] == "end":
                assert set(kinds[1:-1]) <= {"data"}
                lengths.add(len(kinds))
    assert lengths == set(range(2, 9))


def _sessions(of_pair: list[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """Cut where two packets of the pair are more than a turn apart."""
    sessions = [[of_pair[0]]]
    for before, packet in pairwise(of_pair):
        if packet[0] - before[0] > 1:
            sessions.append([])
        sessions[-1].append(packet)
    return sessions


def test_lanes_follow_the_rate_so_that_a_turn_lasts_a_fifth_of_a_second() -> None:
    assert lanes_for(10_000) == 2_000
    assert lanes_for(1) == 1
