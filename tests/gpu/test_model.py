"""A model under a plan on a GPU: kernels and plain torch give the same logits."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sift_index.adapters.hf_attention import attention_handler
from sift_index.adapters.prompt_rows import PlannedPrompt
from sift_index.adapters.sparse_handler import SparseHandler
from sift_index.kernels.api import MaskLayout
from sift_index.runtime.plan import PromptPlan
from tests.kernels.naive import random_plan

SEGMENTS = [("glue", 70), ("span", 1500), ("span", 130), ("glue", 9), ("span", 700), ("glue", 40)]


# The library path rounds its two parts before it adds them.
LIMITS = {"gluon": 0.05, "library": 0.08, "triton": 0.05}


def composed(sparse, ids) -> PromptPlan:
    data = ids[0].cpu().numpy().astype("<u4").tobytes()
    return PromptPlan(data, sparse, (), fingerprint=None)  # type: ignore[arg-type]


def logits(model, plan, ids) -> torch.Tensor:
    handler = SparseHandler([PlannedPrompt(plan)])
    hook = model.register_forward_pre_hook(handler.begin, with_kwargs=True)
    try:
        with torch.inference_mode(), attention_handler(model, handler):
            return model(ids).logits[0].float()
    finally:
        hook.remove()


@pytest.mark.parametrize("path", LIMITS)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_logits_of_all_paths_agree(path, head_dim, monkeypatch):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=8 * head_dim,
        intermediate_size=1024,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=4096,
    )
    model: Any = LlamaForCausalLM(config)
    model = model.to("cuda", torch.bfloat16).eval()
    sparse = random_plan(MaskLayout(3, 8, 8, 32), SEGMENTS, density=0.2, dense_la_up_to=99)
    ids = torch.randint(0, 512, (1, sparse.length), device="cuda")
    plan = composed(sparse, ids)
    monkeypatch.setenv("SIFT_ATTENTION", "reference")
    expected = logits(model, plan, ids)
    monkeypatch.setenv("SIFT_ATTENTION", path)
    found = logits(model, plan, ids)
    # Random weights give flat logits: compare with their spread. bfloat16 rounds to 1 in 256.
    assert (found - expected).abs().max() < LIMITS[path] * expected.std()
