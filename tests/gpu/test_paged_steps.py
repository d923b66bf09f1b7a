"""Steps of the serving layer on a GPU: no waiting for the device, and streams that share a plan."""

from typing import Any

import pytest
import torch

from sift_index.kernels.api import MaskLayout, attend, device_plan
from sift_index.serving.cache import CacheSpec
from sift_index.serving.counters import ServingCounters
from sift_index.serving.handle import RequestHandle
from sift_index.serving.ranges import RowRange
from sift_index.serving.step import Step
from tests.kernels.naive import random_plan
from tests.kernels.paging import table_of

LAYOUT = MaskLayout(2, 8, 8, 32)
SPARSE = random_plan(LAYOUT, [("glue", 70), ("span", 1500), ("span", 900), ("glue", 40)])
SPEC = CacheSpec(32, 2, 128, torch.bfloat16)
PAGES = -(-SPARSE.length // SPEC.page_size) + 1
CHUNKS = ((0, 1000), (1000, 1400), (1400, SPARSE.length))


class Plan:
    """What a handle asks of a composed prompt."""

    ids, length = tuple(range(SPARSE.length)), SPARSE.length


def handle_of(counters: ServingCounters) -> RequestHandle:
    plan: Any = Plan()
    return RequestHandle(plan, SPARSE, counters)


@pytest.fixture
def data() -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    return [
        torch.randn(SPARSE.length, heads, 128, generator=generator, device="cuda").bfloat16()
        for heads in (8, 2, 2)
    ]


class Request:
    """A request with a cache of its own, for one layer of data in all layers."""

    def __init__(self, handle: RequestHandle, counters: ServingCounters, seed: int) -> None:
        self.handle, self.counters = handle, counters
        self.cache = torch.zeros(2, 2 * PAGES, 32, 2, 128, device="cuda", dtype=torch.bfloat16)
        self.table = table_of(SPARSE.length, 32, 2 * PAGES, seed, "cuda")

    def run(self, data: list[torch.Tensor], chunks=CHUNKS) -> list[torch.Tensor]:
        """Return the last layer's rows [rows, heads, D] of each chunk."""
        found = []
        for start, stop in chunks:
            rows = RowRange(self.handle, start, stop - start, self.table)
            step = Step(SPEC, LAYOUT, self.counters, [rows])
            q, k, v = (x[start:stop] for x in data)
            for layer in range(LAYOUT.layers):
                step.write(self.cache[0], self.cache[1], k, v)
                out = step.attend(layer, q, self.cache[0], self.cache[1], new=(k, v))
            found.append(out)
        return found


def expected(data: list[torch.Tensor]) -> list[torch.Tensor]:
    plan = device_plan(SPARSE, "cuda")
    q, k, v = (x.transpose(0, 1) for x in data)
    return [
        attend(q[:, a:b], k[:, :b], v[:, :b], plan, LAYOUT.layers - 1, a).transpose(0, 1)
        for a, b in CHUNKS
    ]


def same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_nobody_waits_for_the_device(data):
    counters, wanted = ServingCounters(), expected(data)
    assert same(Request(handle_of(counters), counters, 0).run(data), wanted)  # compiles
    request = Request(handle_of(counters), counters, 1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = request.run(data)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert same(found, wanted)
    assert 0 < counters.snapshot().density < 1


def test_streams_share_a_handle(data):
    """Decoded behind a long queue on one stream, used on others, dropped before they are done."""
    counters, wanted = ServingCounters(), expected(data)
    busy = torch.randn(8192, 8192, device="cuda")
    for turn in range(10):
        handle = handle_of(counters)
        requests = [Request(handle, counters, seed) for seed in range(3)]
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                busy = (busy @ busy).clamp(-1, 1)
            handle.prepare("cuda")
        found = []
        for request in requests:
            with torch.cuda.stream(torch.cuda.Stream()):
                found.append(request.run(data))
        del handle
        for request in requests:
            del request.handle
        junk = [torch.full((1 << 16,), -1, dtype=torch.int32, device="cuda") for _ in range(50)]
        torch.cuda.synchronize()
        assert all(same(of, wanted) for of in found), f"turn {turn}"
        del junk
