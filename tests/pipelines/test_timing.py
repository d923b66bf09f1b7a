"""Times of units from receipts: exact on known numbers, tolerant of receipts that say less."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from sift_index.formats.packs import PackInfo
from sift_index.formats.receipts import Receipt
from sift_index.pipelines.timing import SLOWEST, build_timing, percentile, unit_time


def a_receipt(number: int, **stats: Any) -> Receipt:
    unit = f"{number:032x}"
    pack = PackInfo(f"{unit}-{'0' * 16}.arrow", 1, "0" * 64, 0)
    return Receipt(unit, "b" * 32, pack, (), 100, (), stats)


def test_percentiles_are_of_units() -> None:
    timing = build_timing([a_receipt(n, seconds=float(n)) for n in range(1, 101)])
    assert (timing.units, timing.seconds_p50) == (100, 50.0)
    assert (timing.seconds_p95, timing.seconds_max) == (95.0, 100.0)
    assert [unit.seconds for unit in timing.slowest] == [100.0 - n for n in range(SLOWEST)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_that_share_of_the_units_took_no_longer(count: int) -> None:
    times = [unit_time(a_receipt(n, seconds=float(n))) for n in reversed(range(count))]
    known = [time for time in times if time is not None]
    for share in (0.5, 0.95, 1.0):
        found = percentile(known, share)
        assert sum(time.seconds <= found for time in known) >= share * count - 1e-9


def test_the_slow_node_and_the_slow_device_come_first() -> None:
    fast: dict[str, Any] = {"device": "NVIDIA H200", "seconds": 1.0, "host": "a"}
    slow: dict[str, Any] = {"device": "NVIDIA L4", "seconds": 5.0, "host": "b"}
    timing = build_timing(
        [
            a_receipt(1, node="n1", **fast),
            a_receipt(2, node="n1", **fast),
            a_receipt(3, node="n2", **{**fast, "seconds": 2.0}),
            a_receipt(4, node="n3", **slow),
        ]
    )
    assert [(s.name, s.units, s.tokens_per_second) for s in timing.devices] == [
        ("NVIDIA L4", 1, 20.0),
        ("NVIDIA H200", 3, 75.0),
    ]
    assert [s.name for s in timing.nodes] == ["b n3", "a n2", "a n1"]


def test_receipts_of_earlier_releases_count_where_they_can() -> None:
    old: dict[str, Any] = {"seconds": 2.0, "host": "a", "device": "cpu"}
    timing = build_timing([a_receipt(1, **old), a_receipt(2), a_receipt(3, seconds="2")])
    assert timing.units == 1 and timing.read_seconds == timing.commit_seconds == 0
    assert [node.name for node in timing.nodes] == ["a"]
    assert build_timing([a_receipt(1, seconds=0.0)]).devices[0].name == "unknown"


def test_reading_and_committing_are_summed() -> None:
    stats: dict[str, Any] = {"seconds": 1.0, "read_seconds": 0.25, "commit_seconds": 0.5}
    timing = build_timing(a_receipt(n, **stats) for n in range(4))
    assert (timing.read_seconds, timing.commit_seconds) == (1.0, 2.0)


def test_no_units_no_times() -> None:
    timing = build_timing([])
    assert (timing.units, timing.seconds_max, timing.devices) == (0, 0.0, ())
    assert json.loads(json.dumps(asdict(timing)))["slowest"] == []
