"""Paged KV on a Hopper GPU: the kernels' answer to contiguous keys, bit for bit, in any pages."""

import pytest
import torch

from sift_index.kernels import paged
from sift_index.kernels.api import MaskLayout, attend, device_plan
from sift_index.kernels.paged import Room, first_own_key, paged_attention
from tests.gpu.layouts import random_case
from tests.gpu.test_sparse_attention import qkv
from tests.kernels.naive import random_plan
from tests.kernels.paging import LAYOUTS
from tests.kernels.paging import paged as in_pages

SIZES = (16, 32, 64, 128, 256)


@pytest.mark.parametrize("path", ["auto", "triton"])
@pytest.mark.parametrize("seed", range(60))
def test_chunks_from_pages_are_those_of_contiguous_keys(seed, path, monkeypatch):
    monkeypatch.setenv("SIFT_ATTENTION", path)
    case = random_case(seed)
    q, k, v = qkv(case.plan, case.kv_heads, case.dim, seed=seed)
    plan, layer = device_plan(case.plan, "cuda"), case.plan.layout.layers - 1
    kv = in_pages(k, v, SIZES[seed % 5], LAYOUTS[seed % 4], seed)
    room = Room.like(kv, case.plan.length)
    for start, stop in zip(case.cuts, case.cuts[1:], strict=False):
        if start == stop:
            continue
        # What the chunk did not ask for must not count.
        room.k.fill_(3e4), room.v.fill_(3e4)
        found, first = paged_attention(q[:, start:stop], kv, plan, layer, start, room)
        expected = attend(q[:, start:stop], k[:, :stop], v[:, :stop], plan, layer, start)
        assert torch.equal(found, expected)
        assert first == first_own_key(plan, start, stop, "triton")


@pytest.mark.parametrize("path", ["auto", "library", "triton"])
def test_a_chunk_inside_spans_takes_lists_from_pages(path, monkeypatch):
    monkeypatch.setenv("SIFT_ATTENTION", path)
    segments = [("glue", 70), ("span", 900), ("span", 800), ("span", 1000), ("glue", 30)]
    source = random_plan(MaskLayout(1, 8, 8, 32), segments, dense_la_up_to=99)
    q, k, v = qkv(source, 2, 128)
    plan, kv = device_plan(source, "cuda"), in_pages(k, v, 64, "pages, k and v")
    for start, stop in ((1200, 1700), (1770, 2000), (2000, 2770)):
        room = Room.like(kv, stop)
        room.k.fill_(3e4), room.v.fill_(3e4)
        found, first = paged_attention(q[:, start:stop], kv, plan, 0, start, room)
        expected = attend(q[:, start:stop], k[:, :stop], v[:, :stop], plan, 0, start)
        assert first > 0 and torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_copies_are_those_in_torch(size, dtype):
    source = random_plan(MaskLayout(1, 8, 4, 32), [("glue", 70), ("span", 900), ("span", 300)])
    plan, keys = device_plan(source, "cuda"), source.length
    k, v = (torch.randn(2, keys, 80, device="cuda").to(dtype) for _ in range(2))
    kv = in_pages(k, v, size, "head-major")
    rooms = [Room.like(kv, keys) for _ in range(2)]
    for gather, room in zip((paged.gather, paged._gather("cuda")), rooms, strict=True):
        gather(kv.k, kv.v, kv.table, 333, keys - 5, room.k, room.v)
    for a, b in ((rooms[0].k, rooms[1].k), (rooms[0].v, rooms[1].v)):
        assert torch.equal(a[333 : keys - 5], b[333 : keys - 5])
    arguments = (kv.k, kv.v, kv.table, plan.page_start, plan.offsets[0], keys, keys)
    ours = paged._compaction("cuda")(*arguments, 32)
    for a, b in zip(ours, paged.compact(*arguments), strict=True):
        for head, listed in enumerate(plan.offsets[0, :, -1].tolist()):
            assert torch.equal(a[head, :listed], b[head, :listed])
