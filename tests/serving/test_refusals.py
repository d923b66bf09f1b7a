"""What cannot be served is refused before anything is computed, and says what would do."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sift_index.errors import (
    FingerprintMismatchError,
    PlanError,
    SiftError,
    UnsupportedModelError,
    UsageError,
)
from sift_index.runtime.request import to_request
from sift_index.serving.cache import CacheSpec
from sift_index.serving.layer import ServingLayer
from sift_index.serving.ranges import RowRange
from sift_index.serving.shards import Shard
from tests.serving.served import HEAD_DIM, MODEL, Data, Served, layer_of, prompt

SPEC = CacheSpec(16, 2, HEAD_DIM, torch.float32)


@pytest.fixture
def one(index) -> Served:
    layer = layer_of(index)
    handle = layer.from_segments(prompt(index, 300))
    return Served(layer, handle, Data.of(handle.length))


@pytest.mark.parametrize(
    "changes, kind, message",
    [
        ({"page_size": 0}, UsageError, "page_size: expected a whole number from 1, found 0"),
        ({"head_dim": 16.0}, UsageError, "head_dim: expected a whole number"),
        ({"dtype": torch.float8_e4m3fn}, UsageError, "found torch.float8_e4m3fn; .* quantised"),
        ({"dtype": torch.int8}, UsageError, "found torch.int8; .* quantised"),
        ({"sliding_window": 4096}, UnsupportedModelError, "a sliding window of 4096"),
    ],
)
def test_caches_that_cannot_be_served(changes, kind, message):
    with pytest.raises(kind, match=message):
        replace(SPEC, **changes)


@pytest.mark.parametrize(
    "spec, shard, message",
    [
        (replace(SPEC, kv_heads=4), None, "kv_heads: expected 2, .* found 4"),
        (replace(SPEC, head_dim=32), None, "head_dim: expected 16, .* found 32"),
        (SPEC, Shard(0, 2), "kv_heads: expected 1, .* found 2"),
        (SPEC, Shard(0, 3), "divides the 4 query heads, found 3"),
    ],
)
def test_layers_that_do_not_fit_their_cache(index, spec, shard, message):
    with pytest.raises(UsageError, match=message):
        ServingLayer(index, spec, shard)


@pytest.mark.parametrize(
    "changes, kind, message",
    [
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            FingerprintMismatchError,
            "rope_theta",
        ),
        ({"num_hidden_layers": 3}, FingerprintMismatchError, "layers: index has 2, model has 3"),
        ({"vocab_size": 321}, FingerprintMismatchError, "vocab_size: index has 320, model has 321"),
        (
            {"model_type": "qwen2"},
            FingerprintMismatchError,
            "model_type: index has 'llama', model has 'qwen2'",
        ),
        ({"kv_lora_rank": 64}, UnsupportedModelError, "MLA"),
        ({"sliding_window": 64}, UnsupportedModelError, "sliding-window"),
    ],
)
def test_configs_of_other_models(index, changes, kind, message):
    layer, config = layer_of(index), MODEL.model.config
    layer.check_config(config)
    with pytest.raises(kind, match=message):
        layer.check_config(SimpleNamespace(**{**config.to_dict(), **changes}))


def attended(one: Served, **changes) -> None:
    rows = one.handle.length
    step = one.layer.step([one.rows(0, rows)])
    arguments = {
        "layer": 0,
        "q": one.data.q[0],
        "k_cache": one.caches[0][0],
        "v_cache": one.caches[0][1],
        **changes,
    }
    step.attend(**arguments)


def cache(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
@pytest.mark.parametrize(
    "wrong, kind, message",
    [
        (cache(60, 32, 2, 16), UsageError, r"\[pages, 16, 2, 16\], found \[60, 32, 2, 16\]"),
        (cache(60, 2, 16, 16), UsageError, r"\[pages, 16, 2, 16\], found \[60, 2, 16, 16\]"),
        (
            cache(960, 2, 16),
            UsageError,
            r"one row a token; pass ._cache.unflatten\(0, \(-1, 16\)\)",
        ),
        (cache(60, 16, 576), UnsupportedModelError, r"found \[60, 16, 576\], .* \(MLA\)"),
        (cache(60, 16, 2, 16, dtype=torch.uint8), UsageError, "float32 on cpu, found torch.uint8"),
        (cache(60, 16, 16, 2).transpose(2, 3), UsageError, "stride of 1 along head_dim, found 2"),
    ],
)
def test_caches_of_another_kind(one, name, wrong, kind, message):
    with pytest.raises(kind, match=f"{name}: .*{message}"):
        attended(one, **{name: wrong})
    step = one.layer.step([one.rows(0, 4)])
    arguments = {"k_cache": one.caches[0][0], "v_cache": one.caches[0][1], name: wrong}
    with pytest.raises(kind, match=message):
        step.write(**arguments, k=one.data.k[0, :4], v=one.data.v[0, :4])


def test_halves_of_two_caches(one):
    with pytest.raises(UsageError, match="as many KV pages for k as for v, found .* and 3"):
        attended(one, v_cache=cache(3, 16, 2, 16))


def test_rows_that_do_not_fit(one):
    q, k, v = (x[0] for x in (one.data.q, one.data.k, one.data.v))
    for changes, message in (
        ({"q": q[1:]}, "q: expected"),
        ({"q": q.half()}, "q: expected torch.float32"),
        ({"q": k}, "q: expected"),
        ({"q": q.transpose(1, 2).contiguous().transpose(1, 2)}, "q: expected a stride of 1"),
        ({"new": (k[1:], v)}, "new k: expected"),
        ({"new": (k, q)}, "new v: expected"),
        ({"out": q[1:]}, "out: expected"),
        ({"layer": 2}, "layer: expected 0 to 1, found 2"),
        ({"layer": -1}, "layer: expected 0 to 1, found -1"),
    ):
        with pytest.raises(UsageError, match=message):
            attended(one, **changes)
    with pytest.raises(UsageError, match="k: expected"):
        one.layer.step([one.rows(0, 4)]).write(*one.caches[0], k, v)


@pytest.mark.parametrize(
    "start, rows, table, message",
    [
        (0, 33, torch.zeros(9, 2, dtype=torch.int32)[:, 0], "a stride of 1, found 2; call .contig"),
        (-1, 4, torch.zeros(9, dtype=torch.int32), "from position 0 on, found 4 from -1"),
        (3, 0, torch.zeros(9, dtype=torch.int32), "at least one row .* found 0 from 3"),
        (0, 4, torch.zeros(9), r"page table int32 \[n\], found torch.float32"),
        (0, 4, torch.zeros(9, dtype=torch.int64), r"page table int32 \[n\], found torch.int64"),
        (0, 4, torch.zeros(1, 9, dtype=torch.int32), r"found torch.int32 \[1, 9\]"),
        (100, 45, torch.zeros(9, dtype=torch.int32), "at least 10 KV pages of 16 .* found 9"),
    ],
)
def test_ranges_that_cannot_be(one, start, rows, table, message):
    before = one.layer.counters()
    with pytest.raises(UsageError, match=f"range 1: .*{message}"):
        one.layer.step([one.rows(0, 4), RowRange(one.handle, start, rows, table)])
    assert one.layer.counters() == before


def test_a_page_table_of_just_enough_pages(one):
    table = torch.zeros(9, dtype=torch.int32)
    one.layer.step([RowRange(one.handle, 100, 44, table)])


def test_steps_of_nothing_or_of_another_rank(one, index):
    with pytest.raises(UsageError, match="at least one range of rows"):
        one.layer.step([])
    other = layer_of(index, 16, Shard(0, 2)).from_plan(one.handle.plan)
    with pytest.raises(PlanError, match="range 0: expected a handle of this rank's layer"):
        one.layer.step([RowRange(other, 0, 4, one.table)])
    elsewhere = RowRange(one.handle, 0, 4, one.table.to("meta"))
    with pytest.raises(UsageError, match="range 1: expected its page table on cpu, found meta"):
        one.layer.step([one.rows(0, 4), elsewhere])


def test_ids_of_another_prompt(one):
    handle = one.handle
    ids = list(handle.ids)
    handle.check(ids, 0)
    handle.check(ids[40:90], 40)
    handle.check([*ids[-2:], 7, 8], handle.length - 2)  # what was generated may be any
    handle.check([5], handle.length + 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (np.int32, np.int64):
            handle.check(np.array(ids[40:90], dtype=kind), 40)
            handle.check(torch.from_numpy(np.array(ids[40:90], dtype=kind)), 40)
    with pytest.raises(PlanError, match=f"token {ids[50] + 1} at position 50"):
        handle.check([*ids[40:50], ids[50] + 1], 40)
    with pytest.raises(PlanError, match="position from 0, found -1"):
        handle.check(ids, -1)


def test_plans_of_another_index(index, shared_index):
    plan = shared_index.compose(prompt(shared_index, 300))
    with pytest.raises(FingerprintMismatchError, match="another model or mask layout"):
        layer_of(index).from_plan(plan)
    with pytest.raises(FingerprintMismatchError):
        layer_of(index).from_request(to_request(plan))
    assert layer_of(index).counters().requests == 0


def test_levels_the_index_lacks(index, shared_index):
    with pytest.raises(SiftError, match="expected a level of 1 to 1"):
        layer_of(index).from_ids([1, 2], level=2)
    assert layer_of(shared_index).from_ids([1, 2], level=3).sparse.level == 3


def test_three_ways_to_the_same_handle(index):
    layer, segments = layer_of(index), prompt(index, 300, 129)
    ids = [i for part in segments for i in part.ids]
    by_segments = layer.from_segments(segments)
    for other in (layer.from_ids(ids), layer.from_request(to_request(by_segments.plan))):
        assert other.ids == by_segments.ids and other.length == len(ids)
        assert [(s.start, s.stop) for s in other.sparse.spans] == [
            (s.start, s.stop) for s in by_segments.sparse.spans
        ]
    assert layer.counters().requests == 3


@pytest.mark.parametrize("wrong", [0.0, "0", None])
def test_positions_that_are_no_whole_numbers(one, wrong):
    for name, values in {"row_start": (wrong, 3), "rows": (0, wrong)}.items():
        with pytest.raises(UsageError, match=f"{name}: expected a whole number, found"):
            RowRange(one.handle, *values, one.table)


@pytest.mark.parametrize("wrong", [None, [0, 1, 2]])
def test_a_page_table_that_is_no_tensor(one, wrong):
    message = f"expected a page table int32 .n., found {type(wrong).__name__}"
    with pytest.raises(UsageError, match=message):
        one.layer.step([RowRange(one.handle, 0, 3, wrong)])
