"""Counted while serving, against what the plan says on the host and what was really moved."""

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch

from sift_index.kernels import dispatch
from sift_index.kernels.api import MaskLayout, SparsePlan, device_plan, plan_density
from sift_index.kernels.bits import unpack
from sift_index.kernels.ca_list import ca_list, glue_keys
from sift_index.serving import visits as visits_module
from sift_index.serving.counters import ServingCounters, ServingSnapshot
from sift_index.serving.ranges import RowRange
from sift_index.serving.visits import Visits
from tests.kernels.naive import naive_mask, random_plan
from tests.serving.served import HEAD_DIM, KV_HEADS, LAYERS, Data, Served, layer_of, prompt

SEGMENTS = [("glue", 21), ("span", 300), ("span", 40), ("glue", 3), ("span", 520), ("glue", 17)]
LAYOUTS = [
    MaskLayout(2, 4, 4, 32),
    MaskLayout(1, 4, 2, 16, levels=2),
    MaskLayout(1, 2, 2, 128, boundary=0, neighbour=False),
]
ROW_BYTES = 2 * KV_HEADS * HEAD_DIM * 4


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("level", [1, 3])
def test_cells_of_any_rows_are_those_of_the_mask(layout, level):
    if level >= 2**layout.levels:
        level = 1
    plan = replace(random_plan(layout, SEGMENTS), level=level)
    visits = Visits(device_plan(plan, "cpu"))
    masks = [naive_mask(plan, layer) for layer in range(layout.layers)]
    for start, stop in ((0, 901), (0, 0), (5, 6), (100, 400), (361, 380), (500, 501), (880, 901)):
        found = visits.cells(start, stop)
        assert found.visited == sum(int(mask[:, start:stop].sum()) for mask in masks)
        rows = sum(range(start + 1, stop + 1))
        assert found.causal == rows * layout.layers * layout.heads
    assert visits.cells(0, plan.length) == plan_density(plan).total


def test_bits_are_unpacked_some_at_a_time(monkeypatch):
    plan = random_plan(LAYOUTS[1], [("glue", 9), ("span", 2000), ("span", 40)])
    whole = Visits(device_plan(plan, "cpu")).cells(0, plan.length)
    sizes = []

    def watched(packed, entries, levels):
        sizes.append(packed.shape[0] * entries)
        return unpack(packed, entries, levels)

    monkeypatch.setattr(visits_module, "unpack", watched)
    monkeypatch.setattr(visits_module, "UNPACKED", 200)
    assert Visits(device_plan(plan, "cpu")).cells(0, plan.length) == whole
    assert sizes == [136, 136]  # a triangle of 16 tile rows, one of two heads after the other


def test_rows_behind_the_plan_see_all():
    plan = random_plan(LAYOUTS[0], SEGMENTS)
    visits = Visits(device_plan(plan, "cpu"))
    end = visits.cells(0, plan.length)
    for start, stop in ((plan.length, plan.length + 3), (plan.length + 10, plan.length + 11)):
        found = visits.cells(start, stop)
        assert found.visited == found.causal == 8 * sum(range(start + 1, stop + 1))
    both = visits.cells(0, plan.length + 3)
    assert both.visited == end.visited + 8 * sum(range(plan.length + 1, plan.length + 4))


def test_a_plan_without_spans_or_rows():
    visits = Visits(device_plan(SparsePlan(LAYOUTS[0], 0, ()), "cpu"))
    assert visits.cells(0, 2).visited == visits.cells(0, 2).causal == 3 * 8
    assert visits.listed(0, 0, 2) == 0


def listed(plan: SparsePlan, layer: int, stop: int) -> int:
    """Entries of a layer's lists, per mask head, in front of position `stop`."""
    kept = ca_list(plan, layer).kept | glue_keys(plan, torch.device("cpu"))
    per_mask_head = kept[:: plan.layout.heads // plan.layout.mask_heads, :stop]
    return int(per_mask_head.sum())


@pytest.mark.parametrize("kind", ["index", "shared_index"])
def test_what_a_request_counts(kind, request):
    index = request.getfixturevalue(kind)
    layer = layer_of(index)
    handle = layer.from_segments(prompt(index, 300, -3, 129, 520))
    assert layer.counters() == ServingSnapshot(requests=1, hits=3)
    handle.prepare("cpu")
    decoded = handle.on(torch.device("cpu"))
    tables = 4 * (
        6 * len(decoded.pages.start) + decoded.counts.shape[2] + 19 * len(decoded.row_tiles)
    )
    uploaded = layer.counters().bytes_uploaded
    assert uploaded == decoded.bits.numel() + tables

    length, spans = handle.length, 300 + 129 + 520
    Served(layer, handle, Data.of(length + 1)).run([0, 400, length, length + 1])
    found, density = layer.counters(), plan_density(handle.sparse).total
    assert (found.rows_sparse, found.rows_dense) == (spans, length + 1 - spans)
    assert found.cells_causal == 8 * sum(range(1, length + 2))
    assert found.cells_visited == density.visited + 8 * (length + 1)
    assert 0 < found.density == found.cells_visited / found.cells_causal < 1
    assert found.bytes_uploaded == uploaded  # decoded once
    # The first chunk had its keys at hand; the reference wants all keys of later ones.
    assert found.bytes_gathered == LAYERS * ROW_BYTES * (length + length + 1)


def test_bytes_of_lists_and_own_rows(index, monkeypatch):
    """Where kernels run, a chunk inside spans copies its own rows, and lists from pages."""
    monkeypatch.setenv(dispatch.VARIABLE, "library")
    layer = layer_of(index)
    # Of one tile each: libraries take no span that is sparse in itself.
    handle = layer.from_segments(prompt(index, 128, 100, 128))
    one = Served(layer, handle, Data.of(handle.length))
    last = handle.sparse.spans[2]
    start, stop = last.start + 10, last.stop - 10
    one.run([0, start, stop])
    window = handle.sparse.window_start(2)
    assert 0 < window < last.start
    own = stop - window
    entries = sum(listed(handle.sparse, number, last.start) for number in range(LAYERS))
    lists = entries * 2 * HEAD_DIM * 4
    assert lists > 0
    assert layer.counters().bytes_gathered == LAYERS * own * ROW_BYTES + lists


def test_misses_and_requests_without_documents(index):
    layer = layer_of(index)
    layer.from_segments([*prompt(index, 300)[:2], list(range(90, 130)), [7, 8]])
    layer.from_ids([1, 2, 3])
    assert layer.counters() == ServingSnapshot(requests=2, hits=1, misses=2)
    assert layer.counters().density == 0.0


class Late:
    """Sums that arrive when they are told to."""

    here = False

    def ready(self) -> bool:
        return self.here


def test_nobody_waits_but_for_a_snapshot():
    counters, late = ServingCounters(), Late()
    asked = []

    def amount() -> ServingSnapshot:
        asked.append(late.here)
        return ServingSnapshot(cells_visited=5)

    counters.add_later(late, amount)
    counters.add(ServingSnapshot(requests=1))
    assert not asked
    late.here = True
    counters.add_later(late, amount)
    assert asked == [True, True]
    late.here = False
    counters.add_later(late, amount)
    assert asked == [True, True]
    assert counters.snapshot() == ServingSnapshot(requests=1, cells_visited=15)
    assert asked == [True, True, False]


def test_positions_of_numpy_do_not_overflow(index):
    layer = layer_of(index)
    handle = layer.from_segments(prompt(index, 40))
    table = torch.zeros(8192, dtype=torch.int32)
    start: Any = np.int32(100_000)
    rows: Any = np.int32(3)
    layer.step([RowRange(handle, start, rows, table)])
    counted = layer.counters()
    assert counted.cells_visited == counted.cells_causal == 300_006 * LAYERS * 4
    assert json.dumps(asdict(counted))
