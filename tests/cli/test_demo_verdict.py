"""The demonstration's verdict: each kind of damage is counted as what it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from understudy.demo.figure import draw
from understudy.demo.truth import generated
from understudy.demo.verdict import (
    Comparison,
    DeliveredTogether,
    compare,
    deliveries,
    middle_and_p99,
    normal_intervals_ms,
    out_of_order,
    silence_ms,
)

EXPECTED = [{"window": {"end": 1}, "src": "a", "n": 1}, {"window": {"end": 2}, "src": "a", "n": 1}]


def _table(rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(rows)


def times(delivered: Sequence[DeliveredTogether]) -> list[int]:
    return [delivery.at_us for delivery in delivered]


@pytest.mark.parametrize(
    ("actual", "found"),
    [
        (EXPECTED, Comparison(0, 0, 0)),
        (EXPECTED[::-1], Comparison(0, 0, 0)),
        (EXPECTED[:1], Comparison(1, 0, 0)),
        ([*EXPECTED, EXPECTED[0]], Comparison(0, 1, 0)),
        ([EXPECTED[0], {**EXPECTED[1], "n": 9}], Comparison(1, 0, 1)),
    ],
    ids=["equal", "another order", "one missing", "one twice", "one changed"],
)
def test_damage_is_counted(actual: list[dict[str, object]], found: Comparison) -> None:
    assert compare(_table(EXPECTED), _table(actual)) == found


def test_no_output_at_all_is_all_lost() -> None:
    assert compare(_table(EXPECTED), pa.table({})) == Comparison(2, 0, 0)


def _at(at_ms: int, *numbers: int, sink: str = "stats") -> DeliveredTogether:
    return DeliveredTogether(at_ms * 1_000, sink, tuple((number, 10) for number in numbers))


def test_buckets_must_rise() -> None:
    assert out_of_order([]) == 0
    assert out_of_order([_at(0, 1, 2), _at(1, 5)]) == 0
    assert out_of_order([_at(0, 1, 5), _at(1, 3, 4), _at(2, 6, 6)]) == 3
    assert out_of_order([_at(0, 1, 5), _at(1, 3, 4, sink="other"), _at(2, 6)]) == 0


def test_the_longest_pause_that_a_failure_touches_is_its_silence() -> None:
    delivered = [_at(at, at) for at in (0, 1_000, 2_000, 2_100, 4_600, 5_000, 13_000, 99_000)]
    assert silence_ms(times(delivered), 2_050_000, within_s=2.9) == 2_500
    assert silence_ms(times(delivered), 2_050_000) == 8_000
    assert silence_ms(times(delivered), 4_700_000, within_s=0.1) == 400
    assert silence_ms(times(delivered), 99_500_000) == 0


def test_normal_intervals_leave_out_the_start_the_end_and_failures() -> None:
    delivered = [_at(at, at) for at in (0, 5_000, 6_000, 7_000, 9_500, 20_000, 21_000, 40_000)]
    assert normal_intervals_ms(times(delivered), 4_000_000, 30_000_000, [7_500_000]) == [1_000, 1_000, 1_000]


def test_latency_is_weighted_by_rows() -> None:
    delivery = DeliveredTogether(2_000_000, "stats", ((9, 1), (14, 3)))
    assert delivery.latency_ms(100_000) == pytest.approx((1_000 + 3 * 500) / 4)


def test_the_middle_of_nothing_is_zero() -> None:
    assert middle_and_p99([]) == (0.0, 0.0)
    assert middle_and_p99([1.0, 2.0, 9.0])[0] == 2.0


def test_only_deliveries_with_rows_are_read_from_a_history(tmp_path: Path) -> None:
    file = tmp_path / "gateway.jsonl"
    records = [
        {"kind": "begun", "at_us": 1, "by": "gateway"},
        {
            "kind": "delivered",
            "at_us": 2,
            "by": "gateway",
            "sink": "stats",
            "after": 0,
            "through": 5,
            "buckets": [],
            "version": 1,
        },
        {
            "kind": "delivered",
            "at_us": 3,
            "by": "gateway",
            "sink": "stats",
            "after": 5,
            "through": 8,
            "buckets": [[7, 4, "d"]],
            "version": 1,
        },
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert deliveries(file) == [DeliveredTogether(3, "stats", ((7, 4),))]


def test_the_input_is_made_again_with_its_times(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from understudy.demo.sessions import SOURCE, build

    flow = build(rows_per_s=1_000, rows=500, output=tmp_path)
    rows = generated(flow, SOURCE, 1_000_000)
    assert rows.schema.equals(flow.sources[SOURCE].arrow_schema)
    assert rows.num_rows == 500
    assert rows.column("ts").cast("int64").to_pylist()[:3] == [1_000_000, 1_001_000, 1_002_000]


def test_the_picture_is_drawn_even_of_a_short_run(tmp_path: Path) -> None:
    file = tmp_path / "demo.png"
    draw(
        file,
        [_at(1_000, 5), _at(2_000, 6)],
        width_us=100_000,
        begin_us=0,
        failures=[(1_500_000, "node-1")],
        catch_ups=[(1_800_000, "node-3")],
    )
    assert file.read_bytes().startswith(b"\x89PNG")
    draw(file, [], width_us=100_000, begin_us=0, failures=[], catch_ups=[])
