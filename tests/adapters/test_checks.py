"""What a plan cannot be used with: each refused by name, before anything is computed."""

import pytest
import torch
from transformers import AttentionInterface, DynamicCache, QuantizedCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from sift_index.adapters.hf_calls import cache_argument
from sift_index.adapters.transformers import sift_attention, sift_generate
from sift_index.errors import FingerprintMismatchError, PlanError, UnsupportedModelError
from sift_index.models.support import check_supported
from tests.adapters.test_transformers import SHORT, attended, plan_of
from tests.plans import tiny
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
