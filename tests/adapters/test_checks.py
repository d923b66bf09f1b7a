"""What a plan cannot be used with: each refused by name, before anything is computed."""

import pytest
import torch
from transformers import AttentionInterface, DynamicCache, QuantizedCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from sift_index.adapters.hf_calls import cache_argument
from sift_index.adapters.transformers import batch_inputs, sift_attention, sift_generate
from sift_index.errors import FingerprintMismatchError, PlanError, UnsupportedModelError
from sift_index.models.support import check_supported
from tests.adapters.test_transformers import SHORT, attended, plan_of
from tests.plans import compose, layout_of, tiny
from tests.tiny import tiny_model_of


@pytest.fixture
def model():
    return tiny("llama")


@pytest.fixture
def plan(model):
    return plan_of(model, "random", SHORT)


def refuse(model, plan, error, message: str, **options) -> None:
    seen = attended(model)
    for run in (lambda: under(model, plan, **options), lambda: generate(model, plan, **options)):
        with pytest.raises(error, match=message):
            run()
    assert seen == []


def under(model, plan, **options) -> None:
    with torch.inference_mode(), sift_attention(model, plan):
        model(plan.input_ids, **options)


def generate(model, plan, **options) -> None:
    sift_generate(model, plan, max_new_tokens=2, **options)


def test_an_index_of_another_model(model):
    other = plan_of(tiny("llama", num_hidden_layers=3), "random", SHORT)
    refuse(model, other, FingerprintMismatchError, "layers: index has 3, model has 2")


def test_a_plan_used_with_other_ids(model, plan):
    ids = plan.input_ids
    ids[0, 77] = 300
    seen = attended(model)
    with pytest.raises(PlanError, match="found token 300 at position 77"):
        with sift_attention(model, plan):
            model(ids)
    assert seen == []


def test_an_attention_implementation_of_another_library(model, plan):
    AttentionInterface.register("fastest-ever", AttentionInterface()["sdpa"])
    model.config._attn_implementation = "fastest-ever"
    refuse(model, plan, PlanError, "found 'fastest-ever', registered by another library")


def test_an_attention_layer_whose_forward_was_replaced(model, plan):
    attention = model.model.layers[1].self_attn
    attention.forward = lambda *args, **kwargs: None
    refuse(model, plan, PlanError, r"layer 1 \(LlamaAttention\) replaced by .*test_checks")


def test_an_attention_class_whose_forward_was_replaced(model, plan, monkeypatch):
    def fast_forward(self, *args, **kwargs) -> None:
        raise AssertionError

    monkeypatch.setattr(type(model.model.layers[0].self_attn), "forward", fast_forward)
    refuse(model, plan, PlanError, r"layer 0 \(LlamaAttention\) replaced by .*test_checks")


class Fast(torch.nn.Module):
    """Attention of another library, which may keep what it replaces, or not."""

    def __init__(self, kept) -> None:
        super().__init__()
        if kept is not None:
            self.layer_idx, self.o_proj = kept.layer_idx, kept.o_proj

    def forward(self, hidden_states, **_: object):
        return hidden_states, None


@pytest.mark.parametrize("used", [False, True], ids=["at first", "after a prompt"])
@pytest.mark.parametrize("kept", [False, True])
def test_an_attention_layer_that_was_replaced(model, plan, used, kept):
    if used:
        under(model, plan)
    layer = model.model.layers[1]
    layer.self_attn = Fast(layer.self_attn if kept else None)
    with pytest.raises(PlanError, match="in each of 2 layers, found 1|replaced by .*test_checks"):
        under(model, plan)


def test_layers_that_accelerate_places_are_the_models_own(model, plan):
    hooks = pytest.importorskip("accelerate.hooks")
    for layer in model.model.layers:
        hooks.add_hook_to_module(layer.self_attn, hooks.ModelHook())
    under(model, plan)
    model.model.layers[1].self_attn._old_forward = lambda *args, **kwargs: None
    refuse(model, plan, PlanError, "layer 1 .* replaced by")


def test_sliding_windows(plan):
    other = tiny_model_of("mistral", sliding_window=64)
    refuse(other, plan, UnsupportedModelError, "sliding-window attention")


def test_multi_head_latent_attention(model, plan):
    model.config.kv_lora_rank = 16
    refuse(model, plan, UnsupportedModelError, "multi-head latent attention")
    with pytest.raises(UnsupportedModelError, match="MLA"):
        check_supported(model.config)


def test_a_quantised_cache(model, plan):
    cache = object.__new__(QuantizedCache)  # its backends are libraries of their own
    message = "a DynamicCache or none, found QuantizedCache"
    refuse(model, plan, PlanError, message, **{cache_argument(model): cache})


def test_a_cache_of_sliding_layers(model, plan):
    cache = DynamicCache()
    cache.layers = [DynamicSlidingWindowLayer(sliding_window=64) for _ in range(2)]
    message = "found one with layers of DynamicSlidingWindowLayer"
    refuse(model, plan, PlanError, message, **{cache_argument(model): cache})


def test_a_cache_of_another_kind_altogether(model, plan):
    refuse(model, plan, PlanError, "found list", **{cache_argument(model): [1]})


@pytest.mark.parametrize("wrong", [None, "abc", 5, [[1, 2]]], ids=str)
def test_what_is_no_plan(model, wrong):
    for use in (sift_attention, sift_generate):
        with pytest.raises(PlanError, match="expected plans, found .*SiftIndex.compose"):
            with use(model, wrong):
                pass


def test_a_prompt_without_tokens(model, plan):
    empty = compose(model, layout_of(model), [], [])
    for plans in (empty, [plan, empty]):
        with pytest.raises(PlanError, match="at least one token, found an empty plan"):
            sift_generate(model, plans, pad_token_id=0, max_new_tokens=2)


@pytest.mark.parametrize("token", [-1, 320, "</s>", 1.5])
def test_padding_that_the_vocabulary_lacks(model, plan, token):
    shorter = plan_of(model, "random", SHORT[1:])
    assert shorter.length != plan.length
    with pytest.raises(PlanError, match="pad_token_id of 0 to 319, found"):
        batch_inputs([plan, shorter], token)


def test_a_cache_of_another_number_of_prompts(model, plan):
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(plan.input_ids[:, :100].repeat(2, 1), **{cache_argument(model): cache})
    seen = attended(model)
    with pytest.raises(PlanError, match="expected a cache of 1 prompts.*found one of 2"):
        sift_generate(model, plan, max_new_tokens=2, past_key_values=cache)
    assert seen == []


def test_ids_without_a_batch_dimension(model, plan):
    with (
        pytest.raises(PlanError, match=r"expected tokens of shape \[batch, tokens\]"),
        sift_attention(model, plan),
    ):
        model(plan.input_ids[0])
