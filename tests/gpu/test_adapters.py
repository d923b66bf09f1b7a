"""The transformers path on a GPU: compiled pieces, dense prompts, plans that nobody waits for."""

from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import LlamaConfig, LlamaForCausalLM

from sift_index.adapters.compiled import compiled_pieces
from sift_index.kernels.api import MaskLayout, dense_rows, device_plan
from tests.kernels.naive import random_plan

PIECES = 4  # norm, norm behind an add, activation times product, rotary embedding


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=8192,
    )
    made: Any = LlamaForCausalLM(config)
    return made.to("cuda", torch.bfloat16).eval()


def test_compiled_pieces_are_the_models_own_code(model):
    torch._dynamo.reset()
    counters.clear()
    with torch.inference_mode():
        for length in (3000, 17, 700, 4096):
            ids = torch.randint(0, 512, (1, length), device="cuda")
            expected = model(ids, use_cache=False).logits.float()
            with compiled_pieces(model):
                found = model(ids, use_cache=False).logits.float()
            # Fused pieces round to bfloat16 less often.
            assert (found - expected).abs().max() < 0.05 * expected.std() + 0.02
    assert counters["stats"]["unique_graphs"] == PIECES


@pytest.mark.parametrize("rows", [1, 129, 700])
def test_dense_rows_are_dense_attention(rows):
    torch.manual_seed(0)
    q = torch.randn(8, rows, 128, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 2, 700, 128, device="cuda", dtype=torch.bfloat16)
    later = torch.ones(rows, 700, dtype=torch.bool, device="cuda").triu(700 - rows + 1)
    keys, values = (x.float().repeat_interleave(4, 0) for x in (k, v))
    scores = (q.float() * 0.1) @ keys.transpose(1, 2)
    expected = scores.masked_fill(later, float("-inf")).softmax(-1) @ values
    assert (dense_rows(q, k, v, 0.1).float() - expected).abs().max() < 0.02


def test_a_plan_on_the_device_is_the_one_on_the_host():
    layout = MaskLayout(3, 8, 8, 32, levels=2)
    plan = random_plan(layout, [("glue", 70), ("span", 1500), ("span", 130), ("glue", 9)])
    here, there = device_plan(plan, "cpu"), device_plan(plan, "cuda")
    for name in ("page_start", "page_length", "offsets", "counts", "starts", "bits"):
        assert torch.equal(getattr(here, name), getattr(there, name).cpu()), name
