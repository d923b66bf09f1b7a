"""Ranks of a tensor-parallel engine: together they are the whole, and each uploads its share."""

import pytest
import torch

from sift_index.errors import UsageError
from sift_index.kernels.api import MaskLayout
from sift_index.serving.shards import HeadSlice, Shard
from tests.kernels.naive import random_plan
from tests.serving.served import Data, Served, layer_of, prompt

CUTS = [0, 200, 450, 900]


def of_rank(index, shard: Shard | None, data: Data, cuts) -> tuple[torch.Tensor, int]:
    layer = layer_of(index, 16, shard)
    handle = layer.from_segments(prompt(index, 300, -3, 129, 520))
    found = Served(layer, handle, data.of_heads(layer)).run([*cuts, handle.length])
    return found, layer.counters().bytes_uploaded


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kind", ["index", "shared_index"])
def test_ranks_together_are_the_whole(kind, size, request):
    index = request.getfixturevalue(kind)
    length = layer_of(index).from_segments(prompt(index, 300, -3, 129, 520)).length
    data = Data.of(length)
    whole, uploaded = of_rank(index, None, data, CUTS)
    ranks = [of_rank(index, Shard(rank, size), data, CUTS) for rank in range(size)]
    assert torch.equal(torch.cat([found for found, _ in ranks], 2), whole)
    if size > 1:
        assert all(bytes_ < uploaded for _, bytes_ in ranks)


@pytest.mark.parametrize("mask_heads", [8, 2])
def test_bits_are_cut_before_they_are_uploaded(mask_heads):
    layout = MaskLayout(3, 8, mask_heads, 32, levels=2)
    plan = random_plan(layout, [("glue", 5), ("span", 700), ("span", 40)])
    for size, kept in ((2, mask_heads // 2), (4, max(1, mask_heads // 4))):
        for rank in range(size):
            some = HeadSlice.of(layout, 2, Shard(rank, size)).of_plan(plan)
            assert some.layout.mask_heads == kept and some.layout.heads == 8 // size
            first = rank * mask_heads // size
            for ours, span in zip(some.spans, plan.spans, strict=True):
                assert torch.equal(ours.ca, span.ca[:, first : first + kept])
                assert (ours.la is None) == (span.la is None)
                if span.la is not None and ours.la is not None:
                    assert torch.equal(ours.la, span.la[:, first : first + kept])


def test_one_rank_has_the_plan_itself():
    plan = random_plan(MaskLayout(1, 4, 2, 32), [("span", 50)])
    assert HeadSlice.of(plan.layout, 2, Shard()).of_plan(plan) is plan


@pytest.mark.parametrize(
    "heads, kv_heads, mask_heads, shard, expected",
    [
        (8, 2, 8, Shard(1, 2), (range(4, 8), range(1, 2), range(4, 8))),
        # More ranks than KV heads: two ranks hold a copy of the same one.
        (8, 2, 8, Shard(2, 4), (range(4, 6), range(1, 2), range(4, 6))),
        (8, 2, 2, Shard(2, 4), (range(4, 6), range(1, 2), range(1, 2))),
        (8, 4, 4, Shard(1, 2), (range(4, 8), range(2, 4), range(2, 4))),
        (8, 2, 4, Shard(7, 8), (range(7, 8), range(1, 2), range(3, 4))),
    ],
)
def test_heads_of_a_rank(heads, kv_heads, mask_heads, shard, expected):
    found = HeadSlice.of(MaskLayout(1, heads, mask_heads, 32), kv_heads, shard)
    assert (found.heads, found.kv_heads, found.mask_heads) == expected


@pytest.mark.parametrize(
    "heads, kv_heads, mask_heads, size, message",
    [
        (8, 2, 8, 3, "divides the 8 query heads, found 3"),
        (24, 6, 24, 4, "divides the 6 KV heads, found 4"),
        (24, 3, 24, 4, "multiple of the 3 KV heads, found 4"),
        (24, 2, 6, 4, "divides the 6 mask heads, found 4"),
    ],
)
def test_ranks_that_do_not_divide_heads(heads, kv_heads, mask_heads, size, message):
    with pytest.raises(UsageError, match=message):
        HeadSlice.of(MaskLayout(1, heads, mask_heads, 32), kv_heads, Shard(0, size))


@pytest.mark.parametrize("rank, size", [(2, 2), (-1, 2), (0, 0), ("0", 2), (0.0, 2), (0, 2.0)])
def test_ranks_that_do_not_exist(rank, size):
    with pytest.raises(UsageError, match=f"found rank {rank!r} of {size!r}"):
        Shard(rank, size)
