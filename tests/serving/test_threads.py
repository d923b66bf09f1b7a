"""One layer, handles shared between threads: results and sums of single runs."""

import sys

import torch

from sift_index.kernels import device_plan as device_plan_module
from sift_index.serving import decoded as decoded_module
from sift_index.serving.counters import ServingCounters, ServingSnapshot
from tests.serving.served import Data, Served, expected, in_threads, layer_of, prompt

THREADS = 4
PROMPTS = [(300, 129), (520, -3, 40), (40, 300, 1), (129, 520)]


def run(layer, handle, seed: int, cuts) -> torch.Tensor:
    return Served(layer, handle, Data.of(handle.length, seed), seed=seed).run(cuts)


def test_requests_of_their_own(index):
    alone, together = layer_of(index), layer_of(index)

    def serve(layer, number: int) -> torch.Tensor:
        parts = []
        for turn in range(3):
            handle = layer.from_segments(prompt(index, *PROMPTS[(number + turn) % 4]))
            cuts = [0, 100 + 50 * number, 200 + 60 * number, handle.length]
            parts.append(run(layer, handle, number, cuts).flatten())
        return torch.cat(parts)

    single = [serve(alone, number) for number in range(THREADS)]
    found = in_threads(lambda number: serve(together, number), THREADS)
    assert all(torch.equal(a, b) for a, b in zip(single, found, strict=True))
    assert together.counters() == alone.counters()
    assert together.counters().requests == 3 * THREADS


def test_one_handle_for_all(index, monkeypatch):
    decoded = []

    def counted(*arguments):
        decoded.append(1)
        return device_plan_module.device_plan(*arguments)

    monkeypatch.setattr(decoded_module, "device_plan", counted)
    layer = layer_of(index)
    handle = layer.from_segments(prompt(index, 300, 129, 520))
    cuts = [0, 256, 512, 700, handle.length]
    found = in_threads(lambda number: run(layer, handle, number, cuts), THREADS)
    assert len(decoded) == 1
    for number, out in enumerate(found):
        wanted = expected(handle, Data.of(handle.length, number))
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
        assert torch.equal(out, run(layer, handle, number, cuts))


def test_no_count_is_lost():
    counters, one = ServingCounters(), ServingSnapshot(requests=1, rows_dense=2)

    def count(_: int) -> None:
        for _ in range(1000):
            counters.add(one)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(count, THREADS)
    finally:
        sys.setswitchinterval(interval)
    assert counters.snapshot() == ServingSnapshot(requests=4000, rows_dense=8000)
