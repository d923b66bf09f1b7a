"""The oracle's masks against full float64 attention of the prompt itself."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from sift_index.errors import FingerprintMismatchError, UsageError
from sift_index.evaluation.forcing import prefilled
from sift_index.evaluation.methods.masks import OnTheSpot
from sift_index.evaluation.methods.oracle import oracle
from sift_index.evaluation.methods.treatment import Treatment
from sift_index.fingerprints import prefix_digest
from sift_index.formats import bits
from sift_index.kernels.api import TILE, SpanMask
from sift_index.prompts import Segment
from sift_index.runtime.plan import PromptPlan
from sift_index.selection.policy import ProbePolicy
from tests.attention import eager_logits
from tests.plans import layout_of, loaded, masks_of, tiny, tokens
from tests.selection.observed import between_values, la_statistic, levels, observe, pages
from tests.selection.test_memory import Largest

ALL_LAYERS = ProbePolicy(skip_last_layer=False)
# Unaligned spans, shorter than a window, of one tile and of several, with glue between.
A, B = tokens(300), tokens(40)
PROMPT = [
    Segment(tokens(9, seed=2), glue=True),
    Segment(A),
    Segment(B),
    Segment(tokens(3, seed=3), glue=True),
    Segment([]),
    Segment(tokens(205)),
    Segment(tokens(129)),
    Segment(tokens(21, seed=4), glue=True),
]
SPANS = [(9, 309), (309, 349), (352, 557), (557, 686)]
TWICE = [PROMPT[0], Segment(A), Segment(B), Segment(A), Segment(tokens(50)), PROMPT[-1]]
TWICE_SPANS = [(9, 309), (309, 349), (349, 649), (649, 699)]
# Float32 against float64 statistics: values this near to a threshold may fall on either side.
NOISE = 1e-5


@cache
def model_of(model_type: str = "llama"):
    return tiny(model_type)


def ids_of(prompt) -> list[int]:
    return [i for part in prompt for i in part.ids]


def ca_truth(model, prompt, spans, policy) -> list[np.ndarray]:
    """Return [layers, heads, pages] of every span, written down literally from L x L."""
    seen = observe(model, ids_of(prompt))
    p = np.stack([seen.probabilities(layer) for layer in range(2)])
    found = []
    for number, (start, stop) in enumerate(spans):
        windows = [np.zeros((2, 4, stop - start))]
        for a, b in spans[number + 1 :]:
            if b - a < policy.window:
                windows.append(p[:, :, a:b, start:stop].mean(2))
            for at in range(a, b - policy.window + 1, policy.window):
                windows.append(p[:, :, at : at + policy.window, start:stop].mean(2))
        found.append(pages(np.max(windows, 0), policy.page_size))
    return found


def la_truth(model, prompt, spans, policy) -> list[np.ndarray]:
    """Return [layers, heads, triangle] of every span, run behind all that stands before it."""
    ids = ids_of(prompt)
    return [la_statistic(loaded(model), policy, ids[:a], ids[a:b]) for a, b in spans]


def per_kv_head(statistics: list[np.ndarray]) -> list[np.ndarray]:
    return [s.reshape(2, 2, 2, -1).mean(2) for s in statistics]


def thresholds_in(statistics: list[np.ndarray], *shares: float) -> tuple[float, ...]:
    values = np.concatenate([s.ravel() for s in statistics])
    return between_values(values[values > 0], *shares)


def check(packed: Sequence[torch.Tensor | None], truth, policy: ProbePolicy, thresholds) -> None:
    """Equal but for values near a threshold; together neither all on nor all off."""
    kinds: set[int] = set()
    for part, statistic in zip(packed, truth, strict=True):
        assert part is not None
        found = bits.unpack(part.numpy(), statistic.shape[-1], policy.levels)
        assert found.shape == statistic.shape
        assert (levels(statistic * (1 - NOISE), thresholds) <= found).all()
        assert (found <= levels(statistic * (1 + NOISE), thresholds)).all()
        kinds |= set(np.unique(found).tolist())
    assert kinds == set(range(len(thresholds) + 1))


def plan_of(model, policy: ProbePolicy, prompt=PROMPT) -> PromptPlan:
    plan = oracle(loaded(model), policy)(prompt).plan
    assert plan is not None
    return plan


def spans_under(model, policy: ProbePolicy, prompt=PROMPT) -> tuple[SpanMask, ...]:
    return plan_of(model, policy, prompt).sparse.spans


def logits_under(model, treatment: Treatment, prompt=PROMPT) -> torch.Tensor:
    with torch.inference_mode(), treatment.attention(model):
        return model(torch.tensor([ids_of(prompt)]), use_cache=False).logits[0]


@pytest.mark.parametrize("model_type", ["llama", "minimax_m2", "qwen3"])
@pytest.mark.parametrize(("page_size", "window"), [(32, 64), (32, 1), (8, 16), (128, 128)])
def test_ca_is_the_attention_of_later_documents(model_type, page_size, window):
    model = model_of(model_type)
    policy = replace(ALL_LAYERS, page_size=page_size, window=window)
    truth = ca_truth(model, PROMPT, SPANS, policy)
    policy = replace(policy, ca_thresholds=thresholds_in(truth, 0.5))
    spans = spans_under(model, policy)
    assert [(span.start, span.stop) for span in spans] == SPANS
    assert all(span.la is None for span in spans)
    check([span.ca for span in spans], truth, policy, policy.ca_thresholds)


@pytest.mark.parametrize(("page_size", "la_window"), [(32, 64), (8, 1), (128, 128)])
@pytest.mark.parametrize("model_type", ["llama", "minimax_m2"])
def test_la_is_the_document_s_own_attention_in_the_prompt(model_type, page_size, la_window):
    model = model_of(model_type)
    policy = replace(ALL_LAYERS, page_size=page_size, la_window=la_window, la_dense_tiles=0)
    truth = la_truth(model, PROMPT, SPANS, policy)
    policy = replace(policy, la_thresholds=thresholds_in(truth, 0.5))
    spans = spans_under(model, policy)
    check([span.la for span in spans], truth, policy, policy.la_thresholds)


def test_documents_up_to_la_dense_tiles_stay_dense():
    spans = spans_under(model_of(), ProbePolicy(la_dense_tiles=2))
    assert [span.la is None for span in spans] == [False, True, True, True]


def test_kv_sharing_thresholds_the_mean_over_a_group():
    model = model_of()
    policy = replace(ALL_LAYERS, head_sharing="kv", la_dense_tiles=0)
    ca, la = (per_kv_head(f(model, PROMPT, SPANS, policy)) for f in (ca_truth, la_truth))
    policy = replace(
        policy, ca_thresholds=thresholds_in(ca, 0.5), la_thresholds=thresholds_in(la, 0.5)
    )
    spans = spans_under(model, policy)
    check([span.ca for span in spans], ca, policy, policy.ca_thresholds)
    check([span.la for span in spans], la, policy, policy.la_thresholds)


def test_two_bits_count_nested_thresholds():
    model = model_of()
    policy = replace(ALL_LAYERS, la_dense_tiles=0)
    ca, la = (f(model, PROMPT, SPANS, policy) for f in (ca_truth, la_truth))
    policy = replace(
        policy,
        ca_thresholds=thresholds_in(ca, 0.3, 0.6, 0.9),
        la_thresholds=thresholds_in(la, 0.2, 0.5, 0.8),
    )
    spans = spans_under(model, policy)
    check([span.ca for span in spans], ca, policy, policy.ca_thresholds)
    check([span.la for span in spans], la, policy, policy.la_thresholds)


WEIGHTS = ((0.5, 2.0, 1.0, 0.25), (3.0, 0.125, 1.5, 1.0))


@pytest.mark.parametrize("sharing", ["query", "kv"])
def test_head_weights_multiply_the_ca_statistic(sharing):
    model = model_of()
    policy = replace(ALL_LAYERS, head_sharing=sharing, head_weights=WEIGHTS, la_dense_tiles=0)
    weights = np.array(WEIGHTS)[:, :, None]
    truth = [ca * weights for ca in ca_truth(model, PROMPT, SPANS, policy)]
    truth = per_kv_head(truth) if sharing == "kv" else truth
    policy = replace(policy, ca_thresholds=thresholds_in(truth, 0.3, 0.6, 0.9))
    spans = spans_under(model, policy)
    check([span.ca for span in spans], truth, policy, policy.ca_thresholds)
    plain = spans_under(model, replace(policy, head_weights=()))
    for span, other in zip(spans, plain, strict=True):
        assert span.la is not None and other.la is not None
        assert torch.equal(span.la, other.la)


def test_head_weights_of_another_model_are_refused():
    with pytest.raises(UsageError, match="head_weights of 2 layers x 4 heads, found 1 x 4"):
        oracle(loaded(model_of()), ProbePolicy(head_weights=WEIGHTS[:1]))


def test_the_last_layer_is_left_out_when_the_policy_says_so():
    model = model_of()
    policy = ProbePolicy(la_dense_tiles=1, ca_thresholds=(1e-45,), la_thresholds=(1e-45,))
    least = replace(policy, skip_last_layer=False)
    for span, other in zip(spans_under(model, policy), spans_under(model, least), strict=True):
        assert torch.equal(span.ca[0], other.ca[0])
        assert not span.ca[1].any()
        assert (span.la is None) == (other.la is None)
        if span.la is not None and other.la is not None:
            assert torch.equal(span.la[0], other.la[0])
            assert other.la[1].any() and not span.la[1].any()
    # No later token reads what document rows compute there.
    found = logits_under(model, oracle(loaded(model), policy)(PROMPT))[-21:]
    assert (found - eager_logits(model, ids_of(PROMPT))[-21:]).abs().max() < 1e-4


def test_the_last_document_has_no_later_rows():
    spans = spans_under(model_of(), ProbePolicy(ca_thresholds=(1e-45,)))
    assert not spans[-1].ca.any()
    assert all(span.ca.any() for span in spans[:-1])


def test_a_document_that_occurs_twice_has_the_masks_of_each_place():
    model = model_of()
    policy = replace(ALL_LAYERS, page_size=8, la_dense_tiles=0)
    ca, la = (f(model, TWICE, TWICE_SPANS, policy) for f in (ca_truth, la_truth))
    policy = replace(
        policy, ca_thresholds=thresholds_in(ca, 0.5), la_thresholds=thresholds_in(la, 0.5)
    )
    spans = spans_under(model, policy, TWICE)
    assert [(span.start, span.stop) for span in spans] == TWICE_SPANS
    check([span.ca for span in spans], ca, policy, policy.ca_thresholds)
    check([span.la for span in spans], la, policy, policy.la_thresholds)
    for kind in ("ca", "la"):
        assert not torch.equal(getattr(spans[0], kind), getattr(spans[2], kind))


@pytest.mark.parametrize("model_type", ["llama", "minimax_m2"])
@pytest.mark.parametrize("prompt", [PROMPT, TWICE], ids=["once", "twice"])
def test_thresholds_near_zero_are_dense_attention(model_type, prompt):
    model = model_of(model_type)
    least = replace(ALL_LAYERS, la_dense_tiles=0, ca_thresholds=(1e-45,), la_thresholds=(1e-45,))
    treatment = oracle(loaded(model), least)(prompt)
    found, expected = logits_under(model, treatment, prompt), eager_logits(model, ids_of(prompt))
    assert (found - expected).abs().max() < 1e-4
    assert treatment.density.total.share == 1.0
    most = replace(least, ca_thresholds=(0.9,), la_thresholds=(0.9,))
    sparse = oracle(loaded(model), most)(prompt)
    assert (logits_under(model, sparse, prompt)[-21:] - expected[-21:]).abs().max() > 1e-2
    assert sparse.density.total.share < 0.9


def test_an_answer_is_decoded_behind_the_sparse_prompt():
    model = model_of()
    policy = replace(ALL_LAYERS, ca_thresholds=(1e-45,))
    treatment = oracle(loaded(model), policy)(PROMPT)
    ids = ids_of(PROMPT)
    with prefilled(model, torch.tensor([ids]), treatment.attention(model)) as opened:
        found = opened.forced([5, 99, 7])
    expected = eager_logits(model, [*ids, 5, 99])[-3:]
    assert (found - expected).abs().max() < 1e-4


def test_the_plan_is_composed_as_any_other():
    model = model_of()
    prompt = [Segment(B), *PROMPT]  # the first document holds the sink: it stays glue
    plan = plan_of(model, ProbePolicy(), prompt)
    layout = layout_of(model)
    other = OnTheSpot(loaded(model), layout, 4096, lambda ids: masks_of(ids, layout), [])
    assert plan.outcomes == other.compose(prompt).outcomes
    assert [o.reason for o in plan.outcomes].count("no_prefix") == 1
    assert plan.ids == tuple(ids_of(prompt))
    assert (plan.sparse.layout, plan.sparse.level) == (layout, 1)
    assert plan.fingerprint.advisory["prefix"] == prefix_digest(ids_of(prompt[:2]))


def test_a_plan_of_another_model_is_refused():
    treatment = oracle(loaded(model_of()), ProbePolicy())(PROMPT)
    with pytest.raises(FingerprintMismatchError):
        logits_under(tiny("llama", seed=1), treatment)


@pytest.mark.parametrize("documents", [[], [A]])
def test_fewer_than_two_documents(documents):
    prompt = [PROMPT[0], *map(Segment, documents), PROMPT[-1]]
    model = model_of()
    treatment = oracle(loaded(model), ALL_LAYERS)(prompt)
    assert plan_of(model, ALL_LAYERS, prompt).hits == len(documents)
    found, expected = logits_under(model, treatment, prompt), eager_logits(model, ids_of(prompt))
    assert (found - expected).abs().max() < 1e-4


def test_memory_is_linear_in_the_prompt():
    model, heads = model_of(), 4
    prompt = [PROMPT[0], Segment(tokens(1500)), Segment(tokens(1500, seed=1)), PROMPT[-1]]
    length = len(ids_of(prompt))
    method = oracle(loaded(model), ProbePolicy())
    with Largest() as largest:
        method(prompt)
    assert heads * TILE * 1500 <= largest.numel <= heads * TILE * length < length * length / 4
