"""Both forms of compaction against boolean indexing with the reference's keys."""

import pytest
import torch

from sift_index.kernels.api import MaskLayout
from sift_index.kernels.ca_list import ca_list, glue_keys
from sift_index.kernels.compaction import compact
from sift_index.kernels.device_plan import device_plan
from tests.kernels.naive import random_plan

SEGMENTS = {
    "mixed": [("glue", 7), ("span", 170), ("glue", 3), ("span", 29), ("span", 1), ("glue", 20)],
    "no glue": [("span", 90), ("span", 70)],
    "glue only": [("glue", 75)],
}
LAYOUTS = [
    MaskLayout(1, 4, 4, 32),
    MaskLayout(2, 4, 2, 8, levels=2),
    MaskLayout(1, 2, 2, 128, boundary=64),
    MaskLayout(1, 2, 2, 24),
]


def run(form: str, device: torch.device, k, v, plan, layer: int, capacity: int):
    arguments = (k.to(device), v.to(device), plan.page_start, plan.page_length)
    if form == "torch":
        return compact(*arguments, plan.offsets[layer], capacity)
    from sift_index.kernels import triton_compaction

    size = plan.layout.page_size
    return triton_compaction.compact(*arguments, plan.offsets[layer], capacity, size)


@pytest.mark.parametrize("form", ["torch", "triton"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("segments", SEGMENTS.values(), ids=SEGMENTS)
@pytest.mark.parametrize("available", ["all", "part", "bounded"])
def test_rows_of_the_list_in_order(form, layout, segments, available, device):
    plan = random_plan(layout, segments, seed=5)
    keys = plan.length if available != "part" else plan.length * 2 // 3
    capacity = plan.length if available != "bounded" else 37
    # Token-major memory, as a model's projection leaves it.
    k, v = (torch.randn(keys, 2, 20, dtype=torch.float16).transpose(0, 1) for _ in range(2))
    on_device = device_plan(plan, device)
    for layer in range(layout.layers):
        found = run(form, device, k, v, on_device, layer, capacity)
        on = ca_list(plan, layer).kept | glue_keys(plan, torch.device("cpu"))
        for x, rows in zip((k, v), found, strict=True):
            assert rows.shape == (layout.mask_heads, capacity, 20)
            for head in range(layout.mask_heads):
                kept = on[head * (layout.heads // layout.mask_heads), :keys]
                expected = x[head * 2 // layout.mask_heads][kept][:capacity]
                torch.testing.assert_close(
                    rows[head, : len(expected)].cpu(), expected, rtol=0, atol=0
                )


@pytest.mark.parametrize("form", ["torch", "triton"])
def test_nothing_to_copy(form, device):
    plan = device_plan(random_plan(LAYOUTS[0], []), device)
    k = v = torch.zeros(2, 0, 16)
    k_list, v_list = run(form, device, k, v, plan, 0, 0)
    assert k_list.shape == v_list.shape == (4, 0, 16)


def _poisoned(x: torch.Tensor, *shape: int, device=None) -> torch.Tensor:
    return torch.full(shape, -1.0, dtype=x.dtype, device=device or x.device)


def test_nothing_else_is_written(monkeypatch, device):
    """Rows of pages that are off would race on a GPU; rows behind the last key are not ours."""
    from sift_index.kernels import triton_compaction

    monkeypatch.setattr(torch.Tensor, "new_empty", _poisoned)
    segments = [("glue", 5), ("span", 100), ("glue", 30)]
    plan = device_plan(random_plan(MaskLayout(1, 2, 2, 16), segments, density=0.0), device)
    k = torch.ones(2, 135, 16, device=device)
    k[:, 110:] = float("nan")
    lists = triton_compaction.compact(
        k[:, :110], k[:, :110], plan.page_start, plan.page_length, plan.offsets[0], 110, 16
    )
    for rows in lists:
        assert (rows[:, :10] == 1).all()
        # Five keys of the first piece of glue, thirty of the last; behind them is what blocks read.
        assert (rows[:, 10:35] == -1).all() and (rows[:, 35:] == 0).all()
