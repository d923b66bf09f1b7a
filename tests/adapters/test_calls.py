"""Ways to call a model under a plan that once were taken for something else."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM

from sift_index.adapters.hf_attention import attention_handler
from sift_index.adapters.hf_calls import cache_argument
from sift_index.adapters.prompt_rows import PlannedPrompt
from sift_index.adapters.sparse_handler import SparseHandler
from sift_index.adapters.transformers import sift_attention, sift_generate
from sift_index.errors import PlanError, SiftWarning
from tests.adapters.test_transformers import PROMPT, SHORT, close, dense_logits, logits_under
from tests.adapters.test_transformers import plan_of as plan_for
from tests.plans import tiny

MODEL = tiny("llama")
PLAN = plan_for(MODEL, "random", SHORT)
PADS = 5


@torch.inference_mode()
def hidden(*args, **kwargs) -> torch.Tensor:
    with sift_attention(MODEL, PLAN):
        found: torch.Tensor = MODEL.base_model(*args, use_cache=False, **kwargs)[0]
    return found


def test_a_mask_by_position_is_a_mask():
    """Of embeddings nobody could tell from the tokens that padding was overlooked."""
    ids = torch.cat([torch.zeros(1, PADS, dtype=torch.int64), PLAN.input_ids], 1)
    mask = torch.ones_like(ids)
    mask[:, :PADS] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    wanted = hidden(PLAN.input_ids)
    assert close(hidden(ids, mask, positions)[:, PADS:], wanted)
    embedded = MODEL.get_input_embeddings()(ids)
    assert close(hidden(None, mask, positions, None, embedded)[:, PADS:], wanted)


@torch.inference_mode()
def test_a_cache_by_position_is_a_cache():
    wanted, cached = hidden(PLAN.input_ids), DynamicCache(config=MODEL.config)
    with sift_attention(MODEL, PLAN):
        for part in PLAN.input_ids.split(300, dim=1):
            found = MODEL.base_model(part, None, None, cached)[0]
    assert close(found, wanted[:, -found.shape[1] :])


@torch.inference_mode()
def test_a_model_that_shares_the_config_is_not_run_under_the_plan():
    other = LlamaForCausalLM(MODEL.config).eval()
    assert other.config is MODEL.config
    with sift_attention(MODEL, PLAN):
        for _ in range(2):
            with pytest.raises(PlanError, match="another model that shares its config"):
                other(PLAN.input_ids, use_cache=False)
            MODEL(PLAN.input_ids, use_cache=False)


@torch.inference_mode()
def test_a_call_that_failed_is_forgotten():
    other = LlamaForCausalLM(MODEL.config).eval()

    def fail(*_) -> None:
        raise ZeroDivisionError

    hook = MODEL.model.layers[1].register_forward_pre_hook(fail)
    with sift_attention(MODEL, PLAN):
        with pytest.raises(ZeroDivisionError):
            MODEL(PLAN.input_ids, use_cache=False)
        hook.remove()
        with pytest.raises(PlanError, match="another model that shares its config"):
            other(PLAN.input_ids, use_cache=False)


def test_models_that_share_a_config_cannot_each_have_a_plan():
    other = LlamaForCausalLM(MODEL.config).eval()
    plan = plan_for(other, "random", SHORT)
    with sift_attention(MODEL, PLAN), pytest.raises(PlanError, match="a config of its own"):
        sift_attention(other, plan).__enter__()


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_run_again_on_the_way_back_run_under_the_plan(reentrant):
    def gradients(model: Any) -> list[torch.Tensor]:
        model.train()
        with sift_attention(model, PLAN):
            logits = model(PLAN.input_ids, use_cache=False).logits
            logits.float().logsumexp(-1).sum().backward()
        return [p.grad for p in model.parameters()]

    plain, again = tiny("llama"), tiny("llama")
    again.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for found, wanted in zip(gradients(again), gradients(plain), strict=True):
        torch.testing.assert_close(found, wanted)


def test_gradients_that_end_in_attention_are_said():
    """As on a GPU, whose kernels have no backward; a library attends densely without one too."""
    handler = SparseHandler([PlannedPrompt(PLAN, dense=True)])
    hook = MODEL.base_model.register_forward_pre_hook(handler.begin, with_kwargs=True)
    with hook, attention_handler(MODEL, handler):
        with pytest.warns(SiftWarning, match="no gradients"):
            MODEL(PLAN.input_ids, use_cache=False)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")
            MODEL(PLAN.input_ids, use_cache=False)
    with warnings.catch_warnings(), sift_attention(MODEL, PLAN):
        warnings.simplefilter("error")
        MODEL(PLAN.input_ids, use_cache=False)  # the reference on a CPU has one


@pytest.mark.parametrize("before", [False, True], ids=["new", "run before"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["in place", "wrapped"])
@torch.inference_mode()
def test_a_compiled_model_runs_under_the_plan(wrapped, before):
    model = tiny("llama")
    if wrapped:
        called = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
        called = model
    plans = [PLAN, plan_for(MODEL, "random", PROMPT)]
    if before:
        called(PLAN.input_ids, use_cache=False)
    for plan in plans:
        with sift_attention(called, plan):
            found = called(plan.input_ids, use_cache=False).logits[0]
        assert close(found, logits_under(MODEL, plan))
        dense = called(plan.input_ids, use_cache=False).logits[0]
        assert close(dense, dense_logits(MODEL, plan))
    torch.compiler.reset()


def test_a_wrapped_model_generates_under_the_plan():
    wrapped = torch.compile(tiny("llama"), backend="eager")
    assert cache_argument(wrapped) == cache_argument(MODEL)
    options: dict[str, Any] = {"max_new_tokens": 3, "pad_token_id": 0}
    wanted = sift_generate(MODEL, PLAN, **options)
    for cached in (None, DynamicCache(config=MODEL.config)):
        assert torch.equal(sift_generate(wrapped, PLAN, past_key_values=cached, **options), wanted)
    torch.compiler.reset()


@torch.inference_mode()
def test_a_model_that_lost_layers_is_refused_by_its_number_of_layers():
    model = tiny("llama")
    with sift_attention(model, PLAN):
        pass
    model.model.layers = model.model.layers[:1]
    plan = replace(PLAN)
    with pytest.raises(PlanError, match="in each of 2 layers, found 1"):
        with sift_attention(model, plan):
            pass
