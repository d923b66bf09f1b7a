"""Random plans: where their segments are, and how many of their bits are on."""

import pytest
import torch

from sift_index.bench.cases import Case, CaseOptions
from sift_index.bench.plans import case_layout, random_plan
from sift_index.kernels.api import SparsePlan, device_plan, plan_density
from sift_index.kernels.bits import unpack

OPTIONS = CaseOptions(heads=32)


def plan_of(*arguments, seed: int = 0, **values) -> SparsePlan:
    case = Case(*arguments, **values)
    return random_plan(case, case_layout(case, OPTIONS), seed)


def share_on(plan: SparsePlan, kind: str) -> float:
    """Mean of the bits of all spans, the padding of rows left out."""
    values = []
    for span in plan.spans:
        tiles = span.tiles
        entries = {"ca": -(-span.tokens // plan.layout.page_size), "la": tiles * (tiles + 1) // 2}
        blob = getattr(span, kind)
        if blob is not None:
            values.append(unpack(blob, entries[kind], 1).flatten())
    return float(torch.cat(values).float().mean())


def test_documents_lie_back_to_back_between_glue():
    plan = plan_of(4096, 128, 1024, 0.1)
    borders = [(span.start, span.stop) for span in plan.spans]
    assert borders == [(64, 1088), (1088, 2112), (2112, 3136), (3136, 4032)]
    assert plan.length == 4096 and plan.layout.mask_heads == plan.layout.heads == 32
    assert all(span.la is None for span in plan.spans)
    assert len(plan_of(65536, 128, 1024, 0.1).spans) == 64


def test_aligned_plans_have_every_border_and_page_at_a_tile():
    plan = plan_of(4096, 128, 1024, 0.1, aligned=True)
    assert [span.start for span in plan.spans] == [128, 1152, 2176, 3200]
    assert plan.spans[-1].stop == 4096 - 128 and plan.layout.page_size == 128


@pytest.mark.parametrize("density", [1.0, 0.5, 0.1, 0.05])
def test_bits_are_on_with_the_wanted_density(density):
    plan = plan_of(16384, 128, 1024, density)
    assert share_on(plan, "ca") == pytest.approx(density, abs=0.01)
    assert plan_density(plan).ca.share == pytest.approx(density, abs=0.08)
    device_plan(plan, "cpu")  # refuses bits of a wrong shape


def test_only_long_documents_have_local_bits():
    plan = plan_of(8192 + 128 + 700, 128, 8192, 0.1, 0.3)
    long, short = plan.spans
    assert short.la is None and long.la is not None
    assert share_on(plan, "la") == pytest.approx(0.3, abs=0.02)
    device_plan(plan, "cpu")


def test_seeds_decide():
    first, again, other = (plan_of(4096, 64, 512, 0.5, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.spans[0].ca, again.spans[0].ca)
    assert not torch.equal(first.spans[0].ca, other.spans[0].ca)
