"""Several prompts at once: each row as its prompt gives it alone, bit for bit, whatever is beside.

The plain torch form and the Triton kernel read the same tables; the rules cell by cell are the
truth of both.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sift_index.errors import PlanError, UsageError
from sift_index.kernels import batch_attention, dispatch, listed, ops
from sift_index.kernels import plan_batch as plan_batch_module
from sift_index.kernels.api import (
    MaskLayout,
    PlanBatch,
    SparsePlan,
    attend,
    attend_batch,
    device_plan,
    plan_batch,
    sparse_attention,
)
from sift_index.kernels.device_plan import DevicePlan, upload_tables
from sift_index.kernels.work import Work
from tests.kernels.naive import random_plan
from tests.kernels.test_triton_attention import cell_by_cell, close

# Layouts and KV heads.
LAYOUTS = {
    "heads": (MaskLayout(2, 2, 2, 32), 2),
    "levels 2": (MaskLayout(1, 4, 2, 16, levels=2, boundary=64), 1),
    "group of 4": (MaskLayout(1, 4, 1, 8, boundary=0, neighbour=False), 1),
}
# Prompts, and from which row on they are run; the last may be behind the plan's end.
MIXES: dict[str, list[tuple[list[tuple[str, int]], int, int]]] = {
    "different lengths": [
        ([("glue", 7), ("span", 390), ("glue", 3), ("span", 129), ("glue", 20)], 0, 549),
        ([("glue", 5), ("span", 30), ("span", 200), ("glue", 1)], 0, 236),
        ([("span", 140), ("span", 9)], 0, 149),
    ],
    "chunks": [
        ([("glue", 7), ("span", 390), ("span", 129), ("glue", 20)], 333, 120),
        ([("glue", 150), ("span", 40), ("glue", 14)], 0, 60),
        ([("glue", 9), ("span", 300), ("span", 70)], 350, 29),
    ],
    "glue alone, nothing, a row": [
        ([("glue", 140)], 0, 140),
        ([("glue", 9), ("span", 50)], 20, 0),
        ([], 130, 40),
        ([("glue", 9), ("span", 290), ("span", 50)], 340, 1),
        ([("glue", 1)], 0, 1),
    ],
    "behind the plan": [
        ([("glue", 9), ("span", 200), ("span", 20)], 100, 400),
        ([("glue", 3), ("span", 30)], 33, 1),
    ],
}


class Problem:
    """Prompts with tensors of their own, and the same packed with other memory in between."""

    def __init__(self, layout: MaskLayout, kv_heads: int, mix, gap=0, dtype=torch.float32) -> None:
        torch.manual_seed(len(mix))
        self.plans = [
            random_plan(layout, segments, seed=at, dense_la_up_to=at % 3)
            for at, (segments, _, _) in enumerate(mix)
        ]
        if layout.levels == 2:
            self.plans = [replace(plan, level=1 + at % 3) for at, plan in enumerate(self.plans)]
        self.starts, self.counts = ([part[at] for part in mix] for at in (1, 2))
        stops = [start + count for start, count in zip(self.starts, self.counts, strict=True)]
        heads = (layout.heads, kv_heads, kv_heads)
        # Token-major memory, as a model's projection leaves it.
        self.alone = [
            [torch.randn(stop, h, 16).to(dtype).transpose(0, 1) for h in heads] for stop in stops
        ]
        self.key_bases = self._bases(stops, gap)
        self.row_bases = self._bases(self.counts, gap)
        self.q = self._packed(0, self.row_bases, self.counts, gap)
        self.k, self.v = (self._packed(x, self.key_bases, stops, gap) for x in (1, 2))

    def _bases(self, sizes, gap):
        return [gap + sum(sizes[:at]) + gap * at for at in range(len(sizes))]

    def _packed(self, which: int, bases, sizes, gap) -> torch.Tensor:
        like = self.alone[0][which]
        tokens = sum(sizes) + gap * (len(sizes) + 1)
        packed = torch.full((tokens, like.shape[0], 16), 7.0, dtype=like.dtype).transpose(0, 1)
        for x, base, size in zip(self.alone, bases, sizes, strict=True):
            packed[:, base : base + size] = x[which][:, x[which].shape[1] - size :]
        return packed

    def batch(self, device: torch.device) -> PlanBatch:
        decoded = [device_plan(plan, device) for plan in self.plans]
        places = (self.key_bases, self.row_bases)
        return plan_batch(decoded, self.starts, self.counts, *places)

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the packed q, k and v."""
        return self.q.to(device), self.k.to(device), self.v.to(device)

    def results(self, packed: torch.Tensor):
        """Yield each prompt's number, rows alone and what a packed result holds for it."""
        for at, (base, count) in enumerate(zip(self.row_bases, self.counts, strict=True)):
            yield at, slice(self.starts[at], None), packed[:, base : base + count]


Form = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def in_torch(q, k, v, work: Work, layer: int, scale, with_lse):
    return ops.sparse_attention(q, k, v, work, layer, scale, with_lse)


def in_triton(q, k, v, work: Work, layer: int, scale, with_lse):
    from sift_index.kernels import triton_attention

    return triton_attention.attend_to_work(q, k, v, work, layer, scale, with_lse)


FORMS = {"torch": in_torch, "triton": in_triton}


@pytest.mark.parametrize("name, gap", [("torch", 0), ("torch", 5), ("triton", 5)])
@pytest.mark.parametrize("layout, kv_heads", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_each_prompt_as_it_is_alone(mix, layout, kv_heads, name, gap, device):
    form = FORMS[name]
    problem, layer = Problem(layout, kv_heads, mix, gap), layout.layers - 1
    batch = problem.batch(device)
    q, k, v = problem.on(device)
    out, lse = form(q, k, v, batch.work, layer, 0.3, True)
    for at, rows, found in problem.results(out):
        q, k, v = (x.to(device) for x in problem.alone[at])
        plan = device_plan(problem.plans[at], device)
        work = plan.chunk(problem.starts[at], k.shape[1]).work
        alone, alone_lse = form(q[:, rows], k, v, work, layer, 0.3, True)
        assert torch.equal(found, alone)
        base = problem.row_bases[at]
        assert torch.equal(lse[:, base : base + problem.counts[at]], alone_lse)
        expected = sparse_attention(q[:, rows], k, v, problem.plans[at].to(device), layer,
                                    problem.starts[at], 0.3)  # fmt: skip
        close(found.cpu(), expected.cpu())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_rules_cell_by_cell(form, device):
    layout, kv_heads = LAYOUTS["heads"]
    problem = Problem(layout, kv_heads, MIXES["different lengths"])
    q, k, v = problem.on(device)
    out, _ = form(q, k, v, problem.batch(device).work, 1, None, False)
    for at, _, found in problem.results(out):
        q, k, v = problem.alone[at]
        close(found.cpu(), cell_by_cell(q, k, v, problem.plans[at], 1)[0])


def test_half_precision(device):
    problem = Problem(*LAYOUTS["heads"], MIXES["chunks"], gap=3, dtype=torch.float16)
    q, k, v = problem.on(device)
    out, _ = in_triton(q, k, v, problem.batch(device).work, 0, None, False)
    for at, rows, found in problem.results(out):
        q, k, v = (x.to(device) for x in problem.alone[at])
        work = device_plan(problem.plans[at], device).chunk(problem.starts[at], k.shape[1]).work
        assert torch.equal(found, in_triton(q[:, rows], k, v, work, 0, None, False)[0])


@pytest.mark.parametrize("seed", range(4))
def test_random_batches(seed, device):
    draw = np.random.default_rng(seed)
    mix = []
    for _ in range(int(draw.integers(1, 6))):
        segments = [
            (str(draw.choice(["span", "glue"])), int(draw.integers(1, 300)))
            for _ in range(int(draw.integers(0, 5)))
        ]
        length = sum(tokens for _, tokens in segments)
        start = int(draw.integers(0, length + 40))
        mix.append((segments, start, int(draw.integers(0, length + 40 - start))))
    layout, kv_heads = list(LAYOUTS.values())[seed % 3]
    problem = Problem(layout, kv_heads, mix, int(draw.integers(0, 150)))
    q, k, v = problem.on(device)
    out, _ = in_triton(q, k, v, problem.batch(device).work, 0, None, False)
    for at, rows, found in problem.results(out):
        q, k, v = (x.to(device) for x in problem.alone[at])
        work = device_plan(problem.plans[at], device).chunk(problem.starts[at], k.shape[1]).work
        assert torch.equal(found, in_triton(q[:, rows], k, v, work, 0, None, False)[0])


@pytest.mark.parametrize("form", ["torch", "triton"])
def test_rows_of_nobody_are_left_as_they_are(form, monkeypatch, device):
    from sift_index.kernels import triton_attention

    empty = torch.Tensor.new_empty

    def poisoned(x: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        made = empty(x, *shape, **options)
        return made.fill_(-9.0) if made.is_floating_point() else made

    problem = Problem(*LAYOUTS["heads"], MIXES["chunks"], gap=5)
    batch, (q, k, v) = problem.batch(device), (problem.q, problem.k, problem.v)
    module = triton_attention if form == "triton" else listed
    expected = FORMS[form](q.to(device), k.to(device), v.to(device), batch.work, 0, None, True)
    lists = ops.compact(
        k.to(device), v.to(device), batch.work.page_start, batch.work.page_length,
        batch.work.offsets[0], batch.work.capacity, 32,
    )  # fmt: skip
    work = batch.work
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    tables = (work.row_tiles, work.counts[0], work.starts[0], work.bits)
    out, lse = module.attend_to_lists(
        q.to(device), k.to(device), v.to(device), *lists, *tables, dense=work.dense,
        keys=work.keys, layer=0, levels=1, neighbour=True, scale=0.25, with_lse=True,
    )  # fmt: skip
    mine = torch.zeros(q.shape[1], dtype=torch.bool)
    for at, base in enumerate(problem.row_bases):
        mine[base : base + problem.counts[at]] = True
    for found, truth in ((out, expected[0]), (lse, expected[1])):
        assert torch.equal(found[:, mine], truth[:, mine])
        assert (found[:, ~mine] == -9.0).all() and bool((~mine).any())


# --- tables ------------------------------------------------------------------------------------


def test_lists_of_a_batch_hold_what_the_prompts_lists_do(device):
    problem = Problem(*LAYOUTS["levels 2"], MIXES["different lengths"], gap=4)
    batch = problem.batch(device)
    work = batch.work
    lists = ops.compact(
        problem.k.to(device), problem.v.to(device), work.page_start, work.page_length,
        work.offsets[0], work.capacity, 16,
    )  # fmt: skip
    slot = 0
    for part, tensors in zip(batch.parts, problem.alone, strict=True):
        one = part.plan.chunk(0, part.row_stop).work
        alone = ops.compact(
            tensors[1].to(device), tensors[2].to(device), one.page_start, one.page_length,
            one.offsets[0], one.capacity, 16,
        )  # fmt: skip
        for head, count in enumerate(one.offsets[0, :, -1].tolist()):
            start = int(work.starts[0, head, slot])
            for ours, theirs in zip(lists, alone, strict=True):
                assert torch.equal(ours[head, start : start + count], theirs[head, :count])
        slots = one.counts.shape[-1]
        assert torch.equal(work.counts[..., slot : slot + slots], one.counts)
        slot += slots


def test_the_host_never_waits_for_the_device():
    """On the meta device there are no values: any `.item()` or `nonzero` would raise."""
    problem = Problem(*LAYOUTS["levels 2"], MIXES["glue alone, nothing, a row"])
    real, shapes = problem.batch(torch.device("cpu")).work, problem.batch(torch.device("meta")).work
    for name in ("page_start", "page_length", "offsets", "counts", "starts", "row_tiles", "bits"):
        found, expected = getattr(shapes, name), getattr(real, name)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def test_one_upload(monkeypatch):
    uploads = []

    def counted(*arguments: Any) -> list[torch.Tensor]:
        uploads.append(arguments)
        return upload_tables(*arguments)

    monkeypatch.setattr(plan_batch_module, "upload_tables", counted)
    Problem(*LAYOUTS["heads"], MIXES["different lengths"]).batch(torch.device("cpu"))
    assert len(uploads) == 1


def test_dear_tiles_come_first_whatever_their_prompt():
    layout = MaskLayout(1, 2, 2, 32)
    plans = [random_plan(layout, [("glue", 9), ("span", n)]) for n in (300, 900)]
    batch = plan_batch([device_plan(plan, "cpu") for plan in plans], [0, 0], [309, 909])
    begins = batch.work.row_tiles[:, 0].tolist()
    assert sorted(begins[: batch.work.dense]) == [0, 309]
    position = [begin - (309 if begin >= 309 else 0) for begin in begins[batch.work.dense :]]
    assert position == sorted(position, reverse=True)


# --- the public call ---------------------------------------------------------------------------


@pytest.fixture
def problem() -> Problem:
    return Problem(*LAYOUTS["heads"], MIXES["chunks"], gap=2)


@pytest.mark.parametrize("path", ["reference", "triton"])
def test_every_path_gives_what_attend_gives(path, problem, monkeypatch, device):
    monkeypatch.setenv("SIFT_ATTENTION", path)
    q, k, v = problem.on(device)
    batch = problem.batch(device)
    out, lse = attend_batch(q, k, v, batch, 1, 0.2, return_lse=True)
    without = attend_batch(q, k, v, batch, 1, 0.2)
    for at, rows, found in problem.results(out):
        x, y, z = (x.to(device) for x in problem.alone[at])
        arguments = (x[:, rows], y, z, problem.plans[at], 1, problem.starts[at], 0.2)
        alone, alone_lse = attend(*arguments, return_lse=True)
        assert torch.equal(found, alone)
        mine = slice(problem.row_bases[at], problem.row_bases[at] + problem.counts[at])
        assert torch.equal(lse[:, mine], alone_lse)
        assert torch.equal(without[:, mine], alone)


def test_a_batch_is_one_launch_and_decoding_is_none(problem, monkeypatch, device):
    from sift_index.kernels import triton_attention

    monkeypatch.setenv("SIFT_ATTENTION", "triton")
    launches = []
    kernel = triton_attention._attend_tile

    class Counted:
        def __getitem__(self, grid: Any) -> Any:
            launches.append(grid)
            return kernel[grid]

    monkeypatch.setattr(triton_attention, "_attend_tile", Counted())
    q, k, v = problem.on(device)
    attend_batch(q, k, v, problem.batch(device), 0)
    assert len(launches) == 1
    mix = [(segments, 600, 1) for segments, _, _ in MIXES["chunks"]]
    decoding = Problem(*LAYOUTS["heads"], mix)
    q, k, v = decoding.on(device)
    out = attend_batch(q, k, v, decoding.batch(device), 0)
    assert len(launches) == 1
    for at, rows, found in decoding.results(out):
        x, y, z = (x.to(device) for x in decoding.alone[at])
        assert torch.equal(found, attend(x[:, rows], y, z, decoding.plans[at], 0, 600))


def test_libraries_take_one_prompt_at_a_time(problem, monkeypatch):
    asked: list[DevicePlan] = []

    def recorded(q, k, v, plan, *rest):
        asked.append(plan)
        return sparse_attention(q, k, v, plan.source, *rest)

    choice = dispatch.choose
    monkeypatch.setattr(
        batch_attention, "choose", lambda *a: replace(choice(*a), path="library", reason="")
    )
    monkeypatch.setattr(batch_attention, "attend", recorded)
    batch = problem.batch(torch.device("cpu"))
    attend_batch(problem.q, problem.k, problem.v, batch, 0)
    assert asked == [part.plan for part in batch.parts]


def decoded(layout: MaskLayout, device="cpu") -> DevicePlan:
    plan: SparsePlan = random_plan(layout, [("glue", 9), ("span", 50)])
    return device_plan(plan, device)


def test_plans_that_make_no_batch():
    layout = LAYOUTS["heads"][0]
    one, other = decoded(layout), decoded(replace(layout, page_size=8))
    with pytest.raises(UsageError, match="expected at least one plan"):
        plan_batch([], [], [])
    with pytest.raises(UsageError, match=r"row_counts: expected 2 numbers of 0 or more, .* \[3\]"):
        plan_batch([one, one], [0, 0], [3])
    with pytest.raises(UsageError, match=r"row_starts: expected 1 numbers .* found \[-1\]"):
        plan_batch([one], [-1], [3])
    with pytest.raises(UsageError, match="key_bases: expected 2 numbers"):
        plan_batch([one, one], [0, 0], [3, 3], [0])
    with pytest.raises(PlanError, match="plan 1: expected the layout of plan 0"):
        plan_batch([one, other], [0, 0], [3, 3])
    with pytest.raises(PlanError, match="plan 1: expected the device of plan 0, cpu, found meta"):
        plan_batch([one, decoded(layout, "meta")], [0, 0], [3, 3])


def test_calls_a_batch_was_not_made_for(problem):
    q, k, v = problem.q, problem.k, problem.v
    batch = problem.batch(torch.device("cpu"))
    with pytest.raises(UsageError, match=f"q's rows: expected at least {batch.rows}, found 20"):
        attend_batch(q[:, :20], k, v, batch, 0)
    with pytest.raises(UsageError, match=f"k's tokens: expected at least {batch.keys}, found 20"):
        attend_batch(q, k[:, :20], v[:, :20], batch, 0)
    with pytest.raises(UsageError, match="layer: expected 0 to 1, found 2"):
        attend_batch(q, k, v, batch, 2)
    with pytest.raises(PlanError, match="q's heads: expected the plans' 2, found 4"):
        attend_batch(q.repeat(2, 1, 1), k, v, batch, 0)
    with pytest.raises(PlanError, match=r"decode them with device_plan\(plan, 'cpu'\)"):
        attend_batch(q, k, v, problem.batch(torch.device("meta")), 0)


def test_more_bits_than_tables_can_point_into_are_refused(monkeypatch):
    plan = random_plan(MaskLayout(1, 2, 2, 32), [("span", 500)])
    decoded = device_plan(plan, "cpu")
    monkeypatch.setattr("sift_index.kernels.device_plan.LARGEST_BITS", decoded.bits.numel())
    device_plan(plan, "cpu"), plan_batch([decoded], [0], [500])
    with pytest.raises(PlanError, match="run fewer or shorter prompts at once"):
        plan_batch([decoded, decoded], [0, 0], [500, 500])
    monkeypatch.setattr("sift_index.kernels.device_plan.LARGEST_BITS", decoded.bits.numel() - 1)
    with pytest.raises(PlanError, match="bytes of packed bits in one call, found"):
        device_plan(plan, "cpu")
