"""Batches of random prompts on a Hopper GPU: one launch, and the bits of each prompt alone."""

from typing import Any

import numpy as np
import pytest
import torch

from sift_index.kernels import hopper_attention, hopper_kernel
from sift_index.kernels.api import DevicePlan, attend, attend_batch, device_plan, plan_batch
from sift_index.kernels.lists import attend_through_lists
from tests.gpu.layouts import Case, random_case
from tests.kernels.naive import random_plan

POISON = -77.0


class Batch:
    """Random prompts of one layout, rows of each from a random position on, with gaps between."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.bfloat16) -> None:
        draw = np.random.default_rng(seed)
        case = random_case(seed)
        self.case, self.sources = case, [case.plan]
        for number in range(int(draw.integers(1, 6))):
            segments = [
                (str(draw.choice(["span", "span", "glue"])), int(draw.integers(1, 2500)))
                for _ in range(int(draw.integers(0, 6)))
            ]
            self.sources.append(random_plan(case.plan.layout, segments, seed + number))
        self.plans = [device_plan(plan, "cuda") for plan in self.sources]
        stops = [plan.length + int(draw.integers(0, 150)) for plan in self.sources]
        self.starts = [int(draw.integers(0, stop + 1)) * int(draw.integers(2)) for stop in stops]
        self.counts = [stop - start for start, stop in zip(self.starts, stops, strict=True)]
        gap = int(draw.integers(0, 200))
        self.key_bases, self.row_bases = _bases(stops, gap), _bases(self.counts, gap)
        generator = torch.Generator("cuda").manual_seed(seed)
        heads = (case.plan.layout.heads, case.kv_heads, case.kv_heads)
        tokens = (sum(self.counts), sum(stops), sum(stops))
        room = gap * (len(stops) + 1)
        self.q, self.k, self.v = (
            torch.randn(n + room, h, case.dim, generator=generator, device="cuda")
            .to(dtype)
            .transpose(0, 1)
            for n, h in zip(tokens, heads, strict=True)
        )
        self.batch = plan_batch(
            self.plans, self.starts, self.counts, self.key_bases, self.row_bases
        )

    def prompts(self):
        """Yield each prompt's place in the result and the arguments of a call for it alone."""
        layer = self.case.plan.layout.layers - 1
        for at, plan in enumerate(self.plans):
            rows = slice(self.row_bases[at], self.row_bases[at] + self.counts[at])
            first = self.key_bases[at]
            keys = slice(first, first + self.starts[at] + self.counts[at])
            k, v = self.k[:, keys], self.v[:, keys]
            yield rows, (self.q[:, rows], k, v, plan, layer, self.starts[at])


def _bases(sizes: list[int], gap: int) -> list[int]:
    return [gap + sum(sizes[:at]) + gap * at for at in range(len(sizes))]


@pytest.fixture
def launches(monkeypatch) -> list[Any]:
    """The grids the Gluon kernel was launched with."""
    found: list[Any] = []
    kernel = hopper_kernel.attend_tiles

    class Counted:
        def __getitem__(self, grid: Any) -> Any:
            found.append(grid)
            return kernel[grid]

    monkeypatch.setattr(hopper_kernel, "attend_tiles", Counted())
    return found


@pytest.mark.parametrize("seed", range(100))
def test_each_prompt_as_it_is_alone(seed, launches):
    made = Batch(seed, torch.float16 if seed % 4 == 0 else torch.bfloat16)
    layer = made.case.plan.layout.layers - 1
    arguments = (made.q, made.k, made.v, made.batch.work, layer)
    out, lse = hopper_attention.attend_to_work(*arguments, with_lse=True)
    assert len(launches) == (1 if sum(made.counts) else 0)
    for rows, (q, k, v, plan, layer, start) in made.prompts():
        if q.shape[1]:
            alone = hopper_attention.sparse_attention(q, k, v, plan, layer, start, with_lse=True)
            assert torch.isfinite(alone[0]).all()
            assert torch.equal(out[:, rows], alone[0]) and torch.equal(lse[:, rows], alone[1])


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_rows_of_nobody_are_left_as_they_are(seed, monkeypatch):
    made = Batch(seed)
    empty = torch.Tensor.new_empty

    def poisoned(x: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        filled = empty(x, *shape, **options)
        return filled.fill_(POISON) if filled.is_floating_point() else filled

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    layer = made.case.plan.layout.layers - 1
    out, lse = hopper_attention.attend_to_work(
        made.q, made.k, made.v, made.batch.work, layer, with_lse=True
    )
    nobody = torch.ones(made.q.shape[1], dtype=torch.bool, device="cuda")
    for rows, _ in made.prompts():
        nobody[rows] = False
    assert (out[:, nobody] == POISON).all() and (lse[:, nobody] == POISON).all()
    assert (out[:, ~nobody] != POISON).any(-1).all() and (lse[:, ~nobody] != POISON).all()


@pytest.mark.parametrize("path", ["auto", "library", "triton"])
def test_every_path(path, monkeypatch, launches):
    monkeypatch.setenv("SIFT_ATTENTION", path)
    layout = random_case(3).plan.layout
    sources = [
        random_plan(layout, [("glue", 70), ("span", n), ("glue", 20)], seed, dense_la_up_to=99)
        for seed, n in enumerate((900, 33, 2000))
    ]
    plans: list[DevicePlan] = [device_plan(plan, "cuda") for plan in sources]
    counts = [plan.length for plan in sources]
    kv = layout.mask_heads if layout.mask_heads < layout.heads else layout.heads
    q, k, v = (
        torch.randn(sum(counts), h, 128, device="cuda", dtype=torch.bfloat16).transpose(0, 1)
        for h in (layout.heads, kv, kv)
    )
    out = attend_batch(q, k, v, plan_batch(plans, [0] * 3, counts), 0)
    assert len(launches) == (path == "auto")
    for plan, base, count in zip(plans, _bases(counts, 0), counts, strict=True):
        mine = slice(base, base + count)
        assert torch.equal(out[:, mine], attend(q[:, mine], k[:, mine], v[:, mine], plan, 0))


def test_heads_that_overlap_in_one_view(launches):
    """Keys in a cache's memory: rows of the view belong to more than one head."""
    case: Case = random_case(5)
    layout, kv, dim = case.plan.layout, case.kv_heads, case.dim
    plans = [
        device_plan(random_plan(layout, [("glue", 20), ("span", n)], n), "cuda")
        for n in (300, 700, 1100)
    ]
    tokens, step = 1120, kv * 1120
    cache = torch.randn(2, 3, kv, tokens, dim, device="cuda", dtype=torch.bfloat16)
    shape, strides = (kv, 2 * step + tokens, dim), (tokens * dim, dim, 1)
    k, v = (x.as_strided(shape, strides) for x in cache)
    counts = [plan.length for plan in plans]
    pads = [tokens - count for count in counts]
    q = torch.randn(3 * tokens, layout.heads, dim, device="cuda", dtype=torch.bfloat16)
    q = q.transpose(0, 1)
    places = [[p * n + pad for p, pad in enumerate(pads)] for n in (step, tokens)]
    batch = plan_batch(plans, [0] * 3, counts, *places)
    out = attend_batch(q, k, v, batch, 0)
    assert len(launches) == 1
    for prompt, (plan, pad) in enumerate(zip(plans, pads, strict=True)):
        mine = slice(prompt * tokens + pad, (prompt + 1) * tokens)
        k, v = cache[:, prompt, :, pad:]
        alone = attend(q[:, mine], k, v, plan, 0)
        assert torch.equal(out[:, mine], alone)


def test_lists_of_many_prompts_are_one_compaction():
    made = Batch(11)
    copies: list[Any] = []

    def compact(*arguments: Any) -> Any:
        from sift_index.kernels import triton_compaction

        copies.append(arguments)
        return triton_compaction.compact(*arguments)

    arguments = (made.q, made.k, made.v, made.batch.work, 0, None, False)
    attend_through_lists(compact, hopper_attention.attend_to_lists, *arguments)
    assert len(copies) == 1
