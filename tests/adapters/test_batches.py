"""Batches of prompts with plans of their own: each row is what its prompt gives alone."""

import pytest
import torch
from transformers import DynamicCache

from sift_index.adapters.hf_calls import cache_argument
from sift_index.adapters.transformers import batch_inputs, sift_attention
from sift_index.errors import PlanError
from sift_index.prompts import Segment
from tests.adapters.test_transformers import DOCUMENTS, PROMPT, SHORT, close, plan_of
from tests.plans import tiny, tokens

OTHER: list[Segment | list[int]] = [
    Segment(tokens(5, seed=7), glue=True),
    DOCUMENTS[300],
    DOCUMENTS[129],
    Segment(tokens(11, seed=8), glue=True),
]
MODEL = tiny("llama")


@pytest.fixture(scope="module")
def plans():
    return [plan_of(MODEL, "random", prompt) for prompt in (SHORT, OTHER, PROMPT)]


def positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)


def alone(plan) -> torch.Tensor:
    with torch.inference_mode(), sift_attention(MODEL, plan):
        return MODEL(plan.input_ids, use_cache=False).logits[0]


def test_padded_prompts_give_what_they_give_alone(plans):
    inputs = batch_inputs(plans, pad_token_id=0)
    with torch.inference_mode(), sift_attention(MODEL, plans):
        logits = MODEL(
            **inputs, position_ids=positions(inputs["attention_mask"]), use_cache=False
        ).logits
    assert torch.isfinite(logits).all()
    for row, plan in zip(logits, plans, strict=True):
        assert close(row[-plan.length :], alone(plan))


@pytest.mark.parametrize("size", [1, 100, 333])
def test_chunks_of_a_batch(plans, size):
    inputs = batch_inputs(plans, pad_token_id=0)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    first = ids.shape[1] - 340 if size == 1 else 0
    cuts = [*range(0, ids.shape[1], size)] if size > 1 else [0, first, *range(first + 1, first + 9)]
    cached = {cache_argument(MODEL): DynamicCache(config=MODEL.config)}
    parts = []
    with torch.inference_mode(), sift_attention(MODEL, plans):
        for start, stop in zip(cuts, [*cuts[1:], ids.shape[1]], strict=True):
            output = MODEL(
                ids[:, start:stop],
                attention_mask=mask[:, :stop],
                position_ids=positions(mask)[:, start:stop],
                use_cache=True,
                **cached,
            )
            parts.append(output.logits)
    logits = torch.cat(parts, 1)
    for row, plan in zip(logits, plans, strict=True):
        assert close(row[-plan.length :], alone(plan))


def generated(inputs: dict[str, torch.Tensor], **options) -> list[list[int]]:
    found = MODEL.generate(**inputs, max_new_tokens=8, min_new_tokens=8, pad_token_id=0, **options)
    return found[:, inputs["input_ids"].shape[1] :].tolist()


def test_a_batch_generates_what_its_prompts_do(plans):
    singles = []
    for plan in plans:
        with sift_attention(MODEL, plan):
            singles += generated(batch_inputs([plan], 0), do_sample=False)
    with sift_attention(MODEL, plans):
        assert generated(batch_inputs(plans, 0), do_sample=False) == singles


def test_embeddings_and_the_inner_model_know_about_padding(plans):
    inputs = batch_inputs(plans, pad_token_id=0)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    rest = {"attention_mask": mask, "position_ids": positions(mask), "use_cache": False}
    with torch.inference_mode(), sift_attention(MODEL, plans):
        embedded = MODEL(inputs_embeds=MODEL.get_input_embeddings()(ids), **rest).logits
        hidden = MODEL.model(input_ids=ids, **rest).last_hidden_state
        inner = MODEL.lm_head(hidden)
        with pytest.raises(PlanError, match="prompt 0: expected the plan's tokens"):
            MODEL.model(input_ids=ids.flip(0), **rest)
    for logits in (embedded, inner):
        for row, plan in zip(logits, plans, strict=True):
            assert close(row[-plan.length :], alone(plan))


def test_a_prompt_that_holds_the_pad_token_needs_its_mask(plans):
    pad = int(plans[0].ids[50])
    with sift_attention(MODEL, plans[0]):
        with pytest.raises(PlanError, match="pass attention_mask, as batch_inputs does"):
            MODEL.generate(plans[0].input_ids, max_new_tokens=2, pad_token_id=pad)
        assert generated(batch_inputs(plans[0], pad), do_sample=False)


@pytest.mark.parametrize("wrong, message", [([], "at least one plan"), (None, "pad_token_id")])
def test_inputs_that_cannot_be_made(plans, wrong, message):
    with pytest.raises(PlanError, match=message):
        batch_inputs(plans if wrong is None else wrong, None if wrong is None else 0)


def test_beams_share_the_plan_of_their_prompt(plans):
    options = {"do_sample": False, "num_beams": 3, "num_return_sequences": 2}
    singles = []
    for plan in plans[:2]:
        with sift_attention(MODEL, plan):
            singles += generated(batch_inputs([plan], 0), **options)
    with sift_attention(MODEL, plans[:2]):
        assert generated(batch_inputs(plans[:2], 0), **options) == singles


def test_padding_behind_prompts_of_one_call(plans):
    some = plans[:2]
    left = batch_inputs(some, pad_token_id=0)
    longest = left["input_ids"].shape[1]
    turns = [plan.length - longest for plan in some]

    def behind(rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([row.roll(turn) for row, turn in zip(rows, turns, strict=True)])

    ids, mask = behind(left["input_ids"]), behind(left["attention_mask"])
    with torch.inference_mode(), sift_attention(MODEL, some):
        logits = MODEL(ids, attention_mask=mask, use_cache=False).logits
    for row, plan in zip(logits, some, strict=True):
        assert close(row[: plan.length], alone(plan))


def refused(plans, message: str, **arguments) -> None:
    with pytest.raises(PlanError, match=message):
        with torch.inference_mode(), sift_attention(MODEL, plans):
            MODEL(**arguments)


def test_batches_that_do_not_fit(plans):
    inputs = batch_inputs(plans, pad_token_id=0)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    refused(plans[:2], "each of 2 plans, or several, found a batch of 3", **inputs)
    refused(plans, "each of 3 plans, or several, found a batch of 2", input_ids=ids[:2])
    swapped = [plans[1], plans[0], plans[2]]
    refused(swapped, "prompt 0: expected the plan's tokens", **inputs)
    refused(plans, r"mask of shape \[3, \d+\]", input_ids=ids, attention_mask=mask[:, 1:])
    holed = mask.clone()
    holed[0, -5] = 0
    refused(plans, "masked tokens inside or behind one", input_ids=ids, attention_mask=holed)
    with pytest.raises(PlanError, match="at least one plan"):
        with sift_attention(MODEL, []):
            pass


def test_nothing_may_follow_padding_behind_a_prompt(plans):
    plan = plans[1]
    ids = torch.cat((plan.input_ids, torch.zeros(1, 3, dtype=torch.int64)), 1)
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    cached = DynamicCache(config=MODEL.config)
    with torch.inference_mode(), sift_attention(MODEL, plan):
        MODEL(ids, attention_mask=mask, use_cache=True, **{cache_argument(MODEL): cached})
        more = torch.cat((mask, torch.ones(1, 1, dtype=torch.int64)), 1)
        with pytest.raises(PlanError, match="pad on the left"):
            MODEL(ids[:, :1], attention_mask=more, **{cache_argument(MODEL): cached})
