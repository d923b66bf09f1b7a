"""sift_generate: what generate returns, from scratch or from a cache that ends anywhere."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from sift_index.adapters.hf_calls import cache_argument, cache_of
from sift_index.adapters.transformers import batch_inputs, sift_attention, sift_generate
from sift_index.errors import PlanError, UsageError
from tests.adapters.test_transformers import SHORT, close, greedy, model_of, plan_of, prefill
from tests.plans import tokens

MODEL = model_of()
OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}


@pytest.fixture(scope="module")
def plan():
    return plan_of(MODEL, "random", SHORT)


@pytest.fixture(scope="module")
def expected(plan):
    with sift_attention(MODEL, plan):
        found: torch.Tensor = MODEL.generate(**batch_inputs(plan, 0), pad_token_id=0, **OPTIONS)
    return found.tolist()


def places(plan) -> dict[str, int]:
    """Lengths of a cache that end in front of, inside, at the end of, and behind a span."""
    span = plan.sparse.spans[-2]
    return {
        "before": span.start - 1,
        "at its start": span.start,
        "inside": span.start + 100,
        "at its end": span.stop,
        "after": span.stop + 2,
        "all but the last token": plan.length - 1,
    }


def cached(plan, length: int) -> DynamicCache:
    """Return a cache of the first tokens of a plan, computed under it."""
    cache = DynamicCache(config=MODEL.config)
    with torch.inference_mode(), sift_attention(MODEL, plan):
        MODEL(plan.input_ids[:, :length], use_cache=True, **{cache_argument(MODEL): cache})
    return cache


@pytest.mark.parametrize("place", [*places(plan_of(MODEL, "random", SHORT))])
@pytest.mark.parametrize("chunk", [None, 50])
def test_a_prompt_whose_beginning_is_cached(plan, expected, place, chunk):
    length = places(plan)[place]
    cache = cached(plan, length)
    with torch.inference_mode(), sift_attention(MODEL, plan):
        whole = MODEL(plan.input_ids, use_cache=False).logits[0]
        rest = MODEL(plan.input_ids[:, length:], **{cache_argument(MODEL): cached(plan, length)})
    assert close(rest.logits[0], whole[length:])
    found = sift_generate(
        MODEL, plan, past_key_values=cache, prefill_chunk_size=chunk, pad_token_id=0, **OPTIONS
    )
    assert found.tolist() == expected
    assert cache.get_seq_length() == plan.length + 7


def test_a_cache_of_the_whole_prompt_gives_its_first_token_again(plan, expected):
    found = sift_generate(MODEL, plan, past_key_values=cached(plan, plan.length), **OPTIONS)
    assert found.tolist() == expected


def test_a_cache_longer_than_the_prompt_is_refused(plan):
    cache = DynamicCache(config=MODEL.config)
    with torch.inference_mode():
        MODEL(torch.tensor([tokens(plan.length + 1)]), **{cache_argument(MODEL): cache})
    with pytest.raises(PlanError, match=rf"at most {plan.length} tokens, found one of"):
        sift_generate(MODEL, plan, past_key_values=cache, **OPTIONS)


@pytest.mark.parametrize("chunk", [None, 1000, 77])
def test_it_is_generate_under_the_plan(plan, expected, chunk):
    assert sift_generate(MODEL, plan, prefill_chunk_size=chunk, **OPTIONS).tolist() == expected


def test_several_plans_and_what_generate_can_return(plan, expected):
    other = plan_of(MODEL, "random")
    found = sift_generate(
        MODEL, [plan, other], pad_token_id=0, return_dict_in_generate=True, **OPTIONS
    )
    assert found.sequences[0, -8:].tolist() == expected[0][-8:]
    assert found.sequences.shape == (2, other.length + 8)


def test_the_cache_is_laid_out_as_in_dense_and_dense_decoding_goes_on_from_it(plan, expected):
    options: dict[str, Any] = {**OPTIONS, "return_dict_in_generate": True}
    with torch.inference_mode():
        dense = cache_of(MODEL(plan.input_ids, use_cache=True))
        sparse = cache_of(
            sift_generate(MODEL, plan, **{**options, "max_new_tokens": 1, "min_new_tokens": 1})
        )
        for one, other in zip(sparse.layers, dense.layers, strict=True):
            assert (one.keys.shape, one.values.shape) == (other.keys.shape, other.values.shape)
        # The first layer's keys depend on tokens and positions alone.
        torch.testing.assert_close(sparse.layers[0].keys, dense.layers[0].keys)
        with sift_attention(MODEL, plan):
            logits, cache = prefill(MODEL, plan, [])
        assert greedy(MODEL, logits, cache, 8) == expected[0][plan.length :]


def test_quality_is_chosen_for_one_call(expected):
    levels = [plan_of(MODEL, "random", SHORT, level, levels=2) for level in (1, 2, 3)]
    alone = [sift_generate(MODEL, one, **OPTIONS).tolist() for one in levels]
    names = ("best", "balanced", "fast")
    assert [sift_generate(MODEL, levels[0], quality=q, **OPTIONS).tolist() for q in names] == alone
    assert levels[0].sparse.level == 1
    with pytest.raises(UsageError, match="best, balanced, fast, found 'cheap'"):
        sift_generate(MODEL, levels[0], quality="cheap", **OPTIONS)


def test_no_plan_is_refused():
    with pytest.raises(PlanError, match="at least one plan"):
        sift_generate(MODEL, [], **OPTIONS)
