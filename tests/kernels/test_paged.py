"""Keys in pages of any size, order and layout give what contiguous keys give."""

import pytest
import torch

from sift_index.kernels import compaction, dispatch, paged
from sift_index.kernels import reference as truth
from sift_index.kernels.api import MaskLayout, device_plan
from sift_index.kernels.paged import PagedKV, Room, first_own_key, paged_attention
from tests.kernels.naive import random_plan
from tests.kernels.paging import LAYOUTS, empty_cache, table_of, write_from
from tests.kernels.paging import paged as in_pages

SIZES = [1, 16, 64, 256]
SEGMENTS = [
    ("glue", 21),
    ("span", 300),
    ("span", 40),
    ("glue", 3),
    ("span", 520),
    ("span", 129),
    ("glue", 17),
]
# Ranges of rows: all, from a cached beginning, across segments, inside one span, one first tile,
# one row, the query, and rows behind the plan.
RANGES = [(0, 1030), (16, 700), (330, 900), (500, 812), (364, 420), (700, 701), (1013, 1030)]
SHARED = MaskLayout(2, 4, 2, 32)


@pytest.fixture(params=["torch", "triton"])
def form(request, monkeypatch, device):
    """Torch and Triton copies; those of the other kind must not run."""
    monkeypatch.setattr(paged, "_in_triton", lambda device_type: request.param == "triton")
    for choice in (paged._compaction, paged._gather):
        choice.cache_clear()
    yield request.param
    for choice in (paged._compaction, paged._gather):
        choice.cache_clear()


def qkv(plan, device, dtype=torch.float32, dim=16, more=0):
    torch.manual_seed(3)
    heads = (plan.layout.heads, 2, 2)
    return [torch.randn(h, plan.length + more, dim).to(dtype).to(device) for h in heads]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_written_is_gathered(layout, size, form, device):
    k, v = (torch.randn(2, 333, 20, dtype=torch.float16).to(device) for _ in range(2))
    kv = in_pages(k, v, size, layout)
    room = Room.like(kv, 333)
    for start, stop in ((0, 333), (100, 101), (255, 300), (7, 7)):
        room.k.zero_(), room.v.zero_()
        paged._gather(device.type)(kv.k, kv.v, kv.table, start, stop, room.k, room.v)
        for x, rows in ((k, room.k), (v, room.v)):
            assert torch.equal(rows[start:stop].transpose(0, 1), x[:, start:stop])


def test_triton_writes_no_other_row(device):
    pytest.importorskip("triton")
    from sift_index.kernels import triton_paged

    k, v = (torch.randn(2, 64, 16, device=device) for _ in range(2))
    kv = in_pages(k, v, 16)
    room = Room(*(torch.full((64, 2, 16), -1.0, device=device) for _ in range(2)))
    triton_paged.gather(kv.k, kv.v, kv.table, 20, 23, room.k, room.v)
    for rows in (room.k, room.v):
        assert (rows[:20] == -1).all() and (rows[23:] == -1).all() and (rows[20:23] != -1).all()


def test_rows_are_written_where_the_table_says(device):
    cache = empty_cache("pages, k and v", 5, 16, 1, 4, device=device)
    kv = PagedKV(*cache, torch.tensor([3, 0], dtype=torch.int32, device=device))
    k, v = (torch.randn(20, 1, 4, device=device) for _ in range(2))
    write_from(kv, 5, k, v)
    assert torch.equal(kv.k[3, 5:], k[:11]) and torch.equal(kv.v[0, :9], v[11:])
    assert int(kv.k.isfinite().sum()) == k.numel()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("masks", [SHARED, MaskLayout(1, 4, 4, 128, levels=2)], ids=str)
def test_lists_are_those_of_contiguous_keys(masks, size, layout, dtype, form, device):
    plan = device_plan(random_plan(masks, SEGMENTS, seed=1), device)
    _, k, v = qkv(plan, device, dtype)
    kv = in_pages(k, v, size, layout)
    keys, pages = plan.source.spans[-1].start, plan.chunk(0, plan.length).pages
    for offsets in plan.offsets:
        some = (plan.page_start[:pages], offsets[:, : pages + 1])
        found = paged._compaction(device.type)(
            kv.k, kv.v, kv.table, *some, keys, keys, masks.page_size
        )
        expected = compaction.compact(k, v, some[0], plan.page_length, some[1], keys)
        for a, b in zip(found, expected, strict=True):
            for head, listed in enumerate(some[1][:, -1].tolist()):
                assert torch.equal(a[head, :listed], b[head, :listed])
                # What attention may read behind a list: kernels of ours want zeros there.
                behind = a[head, listed : listed + 256]
                assert behind.isfinite().all() and (form == "torch" or not behind.any())


@pytest.mark.parametrize("path", ["reference", "library", "triton"])
@pytest.mark.parametrize("size", [16, 256])
@pytest.mark.parametrize("rows", RANGES, ids=str)
def test_rows_anywhere_against_the_reference(path, size, rows, form, device, monkeypatch):
    if device.type == "cuda" and path == "library":
        pytest.skip("takes 16-bit types alone on a GPU: tests/gpu")
    monkeypatch.setenv(dispatch.VARIABLE, path)
    # Libraries take no span that is sparse in itself.
    plan = random_plan(SHARED, SEGMENTS, dense_la_up_to=99 if path == "library" else 2)
    q, k, v = qkv(plan, device)
    start, stop = rows
    # A whole prompt's worth of pages, of which those behind the rows were not written yet.
    kv = in_pages(k[:, :stop], v[:, :stop], size)
    room = Room.like(kv, stop)
    room.k.fill_(float("nan")), room.v.fill_(float("nan"))
    decoded = device_plan(plan, device)
    found, _ = paged_attention(q[:, start:stop], kv, decoded, 1, start, room)
    moved = plan.to(device)
    expected = truth.sparse_attention(q[:, start:stop], k[:, :stop], v[:, :stop], moved, 1, start)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("path", ["reference", "library", "triton"])
def test_decoding_is_dense(rows, path, form, device, monkeypatch):
    if device.type == "cuda" and path == "library":
        pytest.skip("takes 16-bit types alone on a GPU: tests/gpu")
    monkeypatch.setenv(dispatch.VARIABLE, path)
    plan = random_plan(SHARED, SEGMENTS, dense_la_up_to=99)
    q, k, v = qkv(plan, device, more=rows)
    kv = in_pages(k, v, 64)
    found, _ = paged_attention(q[:, -rows:], kv, device_plan(plan, device), 0, plan.length)
    expected = truth.sparse_attention(q[:, -rows:], k, v, plan.to(device), 0, plan.length)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_only_the_rows_a_chunk_needs_are_copied():
    plan = device_plan(random_plan(SHARED, SEGMENTS), "cpu")
    # In the third span (364 to 884): its own keys; with its first tile, the window of 128 before
    # it, moved back to the start of the first span's page.
    assert first_own_key(plan, 500, 812, "gluon") == 364
    assert first_own_key(plan, 364, 420, "gluon") == 236 - (236 - 21) % 32
    assert first_own_key(plan, 500, 812, "reference") == 0
    # Glue, and what is decoded, sees all.
    assert first_own_key(plan, 340, 400, "triton") == 0
    assert first_own_key(plan, 1100, 1101, "triton") == 0
    assert first_own_key(plan, 700, 700, "triton") == 700


def test_room_is_made_of_whole_pages():
    kv = PagedKV(*empty_cache("two tensors", 3, 16, 2, 8), table_of(33, 16, 3))
    assert Room.like(kv, 33).k.shape == (48, 2, 8)
