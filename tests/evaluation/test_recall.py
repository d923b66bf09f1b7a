"""Recall against full float64 attention, with every plan's mask written down cell by cell."""

from dataclasses import replace

import pytest
import torch

from sift_index.adapters.hf_attention import attention_handler
from sift_index.adapters.hf_calls import cache_argument, cache_of
from sift_index.evaluation.recall import MassObserver, Recall
from sift_index.kernels.api import TILE, MaskLayout, SparsePlan
from tests.attention import eager_logits
from tests.evaluation.spoken import expected_recall
from tests.kernels.naive import random_plan
from tests.plans import tiny, tokens
from tests.selection.test_memory import Largest

MODEL = tiny("llama")
LAYOUT = MaskLayout(layers=2, heads=4, mask_heads=4, page_size=32)
# Unaligned spans of one tile and of several, neighbours and with glue between them.
SEGMENTS = [
    ("glue", 9),
    ("span", 300),
    ("span", 40),
    ("glue", 3),
    ("span", 150),
    ("span", 129),
    ("glue", 21),
]
LENGTH = sum(count for _, count in SEGMENTS)
IDS = tokens(LENGTH)


def plan_of(seed: int = 0, density: float = 0.4, segments=SEGMENTS, level: int = 1, **layout):
    plan = random_plan(replace(LAYOUT, **layout), segments, seed, density)
    return replace(plan, level=level)


PLANS = {
    "random": plan_of(),
    "no pages": plan_of(density=0.0),
    "pages of 8, shared": plan_of(1, page_size=8, mask_heads=2),
    "two bits, level 1": plan_of(2, levels=2),
    "two bits, level 3": plan_of(2, levels=2, level=3),
    "of the paper": plan_of(3, page_size=128, boundary=0, neighbour=False),
    "no window": plan_of(4, boundary=0),
}


def run(plans, ids=IDS, model=MODEL) -> tuple[torch.Tensor, list[Recall]]:
    observer = MassObserver(plans)
    with torch.inference_mode(), attention_handler(model, observer):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    return logits, observer.recalls()


def assert_same(found: Recall, wanted: Recall) -> None:
    assert found.la == pytest.approx(wanted.la, abs=1e-6)
    assert found.ca == pytest.approx(wanted.ca, abs=1e-6)


@pytest.mark.parametrize("name", PLANS)
def test_recall_is_the_mass_in_visited_cells(name):
    wanted = expected_recall(IDS, PLANS[name], MODEL)
    assert 0.01 < wanted.la < 0.99 and (0.01 < wanted.ca < 0.99 or name == "no pages")
    assert_same(run([PLANS[name]])[1][0], wanted)


@pytest.mark.parametrize("model_type", ["minimax_m2", "qwen3"])
def test_other_architectures(model_type):
    model = tiny(model_type)
    assert_same(
        run([PLANS["random"]], model=model)[1][0], expected_recall(IDS, PLANS["random"], model)
    )


def test_many_plans_are_measured_at_once():
    """Also such that place other spans, as where an index lacks a document."""
    fewer = [*SEGMENTS[:2], ("glue", 40), *SEGMENTS[3:]]
    other, none = plan_of(5, segments=fewer), SparsePlan(LAYOUT, LENGTH, ())
    plans = [PLANS["random"], other, none, *PLANS.values()]
    found = run(plans)[1]
    for recall, plan in zip(found, plans, strict=True):
        if plan is none:
            assert recall == Recall(1.0, 1.0)  # nothing to attend to, nothing lost
        else:
            assert_same(recall, run([plan])[1][0])
    assert_same(found[1], expected_recall(IDS, other, MODEL))
    assert found[1].ca != pytest.approx(found[0].ca, abs=1e-3)


def test_everything_and_what_is_always_on():
    full, empty = run([plan_of(density=1.0), plan_of(density=0.0, boundary=0)])[1]
    assert_same(full, Recall(1.0, 1.0))
    assert empty.ca == 0.0
    assert 0 < empty.la < 1


def test_levels_are_nested():
    levels = [replace(PLANS["two bits, level 1"], level=level) for level in (1, 2, 3)]
    found = run(levels)[1]
    assert found[0].ca > found[1].ca > found[2].ca
    assert found[0].la > found[1].la > found[2].la


def test_a_single_document_has_no_earlier_ones():
    segments = [("glue", 9), ("span", 300), ("glue", 5)]
    found = run([plan_of(segments=segments)], IDS[:314])[1][0]
    assert found.ca == 1.0
    assert 0 < found.la < 1


def test_attention_stays_dense():
    logits = run([PLANS["no pages"]])[0]
    torch.testing.assert_close(logits, eager_logits(MODEL, IDS), atol=1e-4, rtol=1e-4)


def test_decoded_rows_attend_densely_and_are_not_counted():
    observer = MassObserver([PLANS["random"]])
    with torch.inference_mode(), attention_handler(MODEL, observer):
        output = MODEL(torch.tensor([IDS]), use_cache=True)
        before = observer.recalls()
        call = {cache_argument(MODEL): cache_of(output)}
        logits = MODEL(torch.tensor([[5, 99, 7]]), use_cache=True, **call).logits[0]
        one = MODEL(torch.tensor([[8]]), use_cache=True, **call).logits[0]
    assert observer.recalls() == before
    found = torch.cat((logits, one))
    full = eager_logits(MODEL, [*IDS, 5, 99, 7, 8])[-4:]
    torch.testing.assert_close(found, full, atol=1e-4, rtol=1e-4)


def test_without_plans_it_is_dense_attention():
    logits, found = run([])
    assert found == []
    torch.testing.assert_close(logits, eager_logits(MODEL, IDS), atol=1e-4, rtol=1e-4)


def test_memory_is_linear_in_the_prompt():
    length = 3100
    plan = plan_of(segments=[("glue", 50), ("span", 1450), ("span", 1550), ("glue", 50)])
    with Largest() as largest:
        run([plan, replace(plan)], tokens(length))
    assert 4 * TILE * 1500 <= largest.numel <= 4 * TILE * length < length * length / 4
