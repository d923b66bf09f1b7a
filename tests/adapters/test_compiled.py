"""Compiled pieces give what the model's own code gives, compile once, and are put back."""

import shutil
import sys
import threading
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from sift_index.adapters import transformers as adapter
from sift_index.adapters.compiled import compiled_pieces
from sift_index.adapters.transformers import sift_attention, sift_generate
from sift_index.errors import UnsupportedModelError
from sift_index.models.support import TESTED_TYPES
from tests.adapters.test_transformers import SHORT, close, plan_of
from tests.plans import tiny, tokens
from tests.tiny import tiny_model_of

# Pieces by type: norms by shape, the norm behind an add, activation times product, rotary.
PIECES = {"llama": 4, "qwen3": 5, "olmo2": 4, "minimax_m2": 3, "qwen3_moe": 3, "mixtral": 2}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compilations() -> int:
    return int(counters["stats"]["unique_graphs"])


def logits(model, ids: list[int], rows: int = 1) -> torch.Tensor:
    found: torch.Tensor = model(torch.tensor([ids] * rows), use_cache=False).logits
    return found


@pytest.mark.parametrize("model_type", TESTED_TYPES)
def test_pieces_are_the_models_own_code(model_type):
    model = tiny(model_type)
    with torch.inference_mode():
        expected = logits(model, tokens(150))
        with compiled_pieces(model, "aot_eager"):
            found = logits(model, tokens(150))
    assert close(found, expected, 1e-5)
    assert compilations() == PIECES.get(model_type, 4)


def test_lengths_batches_models_and_later_blocks_compile_nothing_more():
    models = tiny("llama"), tiny_model_of("llama", seed=1)
    with torch.inference_mode():
        for model in models:
            for length, rows in [(150, 1), (17, 1), (33, 2), (64, 1), (2, 3), (301, 1), (1, 1)]:
                expected = logits(model, tokens(length), rows)
                with compiled_pieces(model, "eager"):
                    assert close(logits(model, tokens(length), rows), expected, 1e-5)
    assert compilations() == PIECES["llama"]


def test_generate_compiles_each_piece_a_second_time_at_most():
    model = tiny("llama")
    with compiled_pieces(model, "eager"):
        with torch.inference_mode():
            logits(model, tokens(40))
        for length in (30, 31, 90):  # under no_grad, which PyTorch tells apart
            ids = torch.tensor([tokens(length)])
            model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert compilations() == 2 * PIECES["llama"]


def test_everything_is_put_back():
    model = tiny("llama")
    file = sys.modules[type(model).__module__]
    rotary = vars(file)["apply_rotary_pos_emb"]
    with pytest.raises(ZeroDivisionError), compiled_pieces(model, "eager"):
        assert "forward" in vars(model.model.norm)
        with compiled_pieces(model, "eager"):
            pass
        assert "forward" in vars(model.model.norm)
        assert vars(file)["apply_rotary_pos_emb"] is not rotary
        _ = 1 / 0
    assert not any("forward" in vars(module) for module in model.modules())
    assert vars(file)["apply_rotary_pos_emb"] is rotary


def test_another_model_and_another_thread_run_their_own_code():
    model, other = tiny("llama"), tiny_model_of("llama", seed=1)
    with torch.inference_mode(), compiled_pieces(model, "eager"):
        thread = threading.Thread(target=lambda: logits(model, tokens(20)))
        thread.start()
        thread.join()
    assert compilations() == 0
    with torch.inference_mode(), compiled_pieces(model, "eager"):
        logits(other, tokens(20))
    assert compilations() == 1  # the rotary embedding is a function of all Llama models


def test_a_forward_that_somebody_replaced_stays():
    model = tiny("llama")
    seen = []
    norm = model.model.norm
    own = norm.forward

    def watched(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return own(x)

    norm.forward = watched
    with torch.inference_mode(), compiled_pieces(model, "eager"):
        logits(model, tokens(20))
    assert seen == [1]


def test_gradients_flow_through_the_models_own_code():
    model = tiny("llama")
    with compiled_pieces(model, "eager"):
        logits(model, tokens(20)).sum().backward()
    assert model.model.norm.weight.grad is not None
    assert compilations() == 0


def test_sparse_prefill_and_generation_with_compiled_pieces(monkeypatch):
    model = tiny("llama")
    plan = plan_of(model, "random", SHORT)
    monkeypatch.setattr(adapter, "compiled_pieces", lambda m: compiled_pieces(m, "eager"))
    with torch.inference_mode():
        with sift_attention(model, plan):
            expected = logits(model, list(plan.ids))
        with sift_attention(model, plan, compile=True):
            assert close(logits(model, list(plan.ids)), expected, 1e-5)
    assert compilations() == PIECES["llama"]
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
    found = sift_generate(model, plan, compile=True, **options)
    assert found.tolist() == sift_generate(model, plan, **options).tolist()


@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs a C++ compiler for a CPU")
def test_the_real_compiler():
    model = tiny("qwen3")
    with torch.inference_mode():
        for length in (150, 31):
            expected = logits(model, tokens(length))
            with compiled_pieces(model):
                assert close(logits(model, tokens(length)), expected, 1e-5)
    assert compilations() == PIECES["qwen3"]


def test_an_unsupported_model_is_refused():
    with pytest.raises(UnsupportedModelError, match="sliding-window"):
        with compiled_pieces(tiny_model_of("mistral", sliding_window=64)):
            pass
