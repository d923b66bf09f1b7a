"""Steps against the reference: any chunks, page sizes, page orders, cache layouts and batches."""

import pytest
import torch

from sift_index.kernels import dispatch, paged
from sift_index.kernels.api import sparse_attention
from sift_index.kernels.paged import paged_attention
from tests.kernels.paging import LAYOUTS, empty_cache
from tests.serving.served import (
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    Data,
    Served,
    expected,
    layer_of,
    prompt,
)

PARTS = (300, -3, 129, 40, 520, 300)
CUTS = {
    "whole": [0, None],
    "of 256": [0, 256, 512, 768, 1024, 1280, None],
    "anywhere": [0, 1, 130, 333, 334, 700, 1111, None],
}


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def served(index, page_size=16, layout="two tensors", seed=0, more=0, parts=PARTS) -> Served:
    layer = layer_of(index, page_size)
    handle = layer.from_segments(prompt(index, *parts))
    assert handle.plan.hits == sum(n > 0 for n in parts)
    return Served(layer, handle, Data.of(handle.length + more), layout, seed)


def cuts_of(name: str, one: Served) -> list[int]:
    return [one.handle.length if at is None else at for at in CUTS[name]]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("page_size", [16, 64, 256])
@pytest.mark.parametrize("kind", ["index", "shared_index"])
def test_chunks_are_the_reference(kind, page_size, cuts, request):
    one = served(request.getfixturevalue(kind), page_size)
    close(one.run(cuts_of(cuts, one)), expected(one.handle, one.data))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_layouts_and_page_orders_change_nothing(index, layout, seed):
    plain, other = served(index), served(index, layout=layout, seed=seed)
    cuts = cuts_of("anywhere", plain)
    assert not torch.equal(plain.table, other.table)
    assert torch.equal(plain.run(cuts), other.run(cuts))


@pytest.mark.parametrize("cuts", ["whole", "anywhere"])
def test_new_rows_may_be_read_from_their_pages(index, cuts):
    one, other = served(index), served(index)
    found = one.run(cuts_of(cuts, one), keep_new=False)
    assert torch.equal(found, other.run(cuts_of(cuts, other)))


def test_lists_come_from_pages_where_kernels_run(index, monkeypatch):
    """The path of a GPU on a CPU: libraries' calls in plain torch, lists straight from pages."""
    monkeypatch.setenv(dispatch.VARIABLE, "library")
    firsts = []

    def watched(*arguments):
        found, first = paged_attention(*arguments)
        firsts.append(first)
        return found, first

    monkeypatch.setattr(paged, "paged_attention", watched)
    # Of one tile each: libraries take no span that is sparse in itself.
    one = served(index, parts=(128, 100, 128, 100))
    close(one.run([0, 60, 300, 350, 410, one.handle.length]), expected(one.handle, one.data))
    assert any(firsts) and not all(firsts)


@pytest.mark.parametrize("page_size", [1, 7])
def test_pages_of_any_size_and_a_range_that_goes_on_behind_the_prompt(index, page_size):
    one = served(index, page_size, more=6)
    length = one.handle.length
    cuts = [0, 100, 317, length - 2, length + 3, length + 6]
    close(one.run(cuts), expected(one.handle, one.data))


def test_two_ranges_of_one_request(index):
    one = served(index)
    step = one.layer.step([one.rows(0, 500), one.rows(500, one.handle.length)])
    for number, cache in enumerate(one.caches):
        q, k, v = (x[number] for x in (one.data.q, one.data.k, one.data.v))
        step.write(*cache, k, v)
        found = step.attend(number, q, *cache, new=(k, v))
        close(found, expected(one.handle, one.data)[number])


def test_a_prompt_of_no_tokens_is_decoded_densely(index):
    layer = layer_of(index)
    one = Served(layer, layer.from_ids([]), Data.of(4))
    close(one.run([0, 2, 4]), expected(one.handle, one.data))


def test_rows_of_a_beginning_that_is_cached(index):
    """A prefix cache gives an engine the keys of rows that it never runs."""
    one = served(index)
    for number, cache in enumerate(one.caches):
        one.layer.step([one.rows(0, 500)]).write(
            *cache, one.data.k[number, :500], one.data.v[number, :500]
        )
    close(one.run([500, one.handle.length]), expected(one.handle, one.data)[:, 500:])


def test_decoding_is_dense(index):
    one = served(index, more=5)
    length = one.handle.length
    found = one.run([0, length, length + 1, length + 2, length + 5])
    close(found, expected(one.handle, one.data))


def test_a_batch_is_its_requests(index):
    """Chunks of two prompts, one of them begun, a whole third, and a row of decoding."""
    layer = layer_of(index)
    handles = [
        layer.from_segments(prompt(index, *parts)) for parts in ((300, 129), (520,), (40, 300))
    ]
    handles.append(layer.from_ids(list(range(60))))
    data = [Data.of(handle.length + 1, seed) for seed, handle in enumerate(handles)]
    some = [Served(layer, handle, of, seed=9) for handle, of in zip(handles, data, strict=True)]
    # One cache for all: each request has pages of its own.
    pages = [len(one.table) for one in some]
    order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(4)).int()
    caches = [
        empty_cache("pages, k and v", sum(pages), 16, KV_HEADS, HEAD_DIM) for _ in range(LAYERS)
    ]
    for one, table in zip(some, order.split(pages), strict=True):
        one.table, one.caches = table, caches
    bounds = [(200, 420), (0, 300), (0, handles[2].length), (60, 61)]
    some[0].run([0, 200])
    some[3].run([0, 60])
    step = layer.step([one.rows(*of) for one, of in zip(some, bounds, strict=True)])
    assert step.positions.tolist() == [at for of in bounds for at in range(*of)]
    assert step.last_rows.tolist() == [219, 519, 519 + handles[2].length, 520 + handles[2].length]
    packed = [
        torch.cat(
            [getattr(one.data, name)[:, a:b] for one, (a, b) in zip(some, bounds, strict=True)], 1
        )
        for name in "qkv"
    ]
    for number, cache in enumerate(caches):
        q, k, v = (x[number] for x in packed)
        step.write(*cache, k, v)
        out = torch.full_like(q, float("nan"))
        found = step.attend(number, q, *cache, new=(k, v), out=out)
        assert found is out and torch.equal(found, step.attend(number, q, *cache))
        for one, (a, b), rows in zip(
            some, bounds, found.split([b - a for a, b in bounds]), strict=True
        ):
            close(rows, expected(one.handle, one.data)[number, a:b])


def test_a_scale_is_the_kernels(index):
    one = served(index)
    data, length = one.data, one.handle.length
    step = one.layer.step([one.rows(0, length)])
    step.write(*one.caches[1], data.k[1], data.v[1])
    found = step.attend(1, data.q[1], *one.caches[1], scale=0.07)
    q, k, v = (x[1].transpose(0, 1) for x in (data.q, data.k, data.v))
    other = sparse_attention(q, k, v, one.handle.sparse, 1, scale=0.07)
    close(found, other.transpose(0, 1))
