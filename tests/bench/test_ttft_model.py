"""Models of a shape with random weights, and whether a prefill fits into memory."""

import pytest
import torch

from sift_index.bench.ttft_model import (
    GIB,
    check_context,
    free_bytes,
    misfit,
    prefill_bytes,
    random_model,
    shape_config,
)
from sift_index.errors import UnsupportedModelError, UsageError
from sift_index.models.geometry import geometry_of
from tests.tiny import tiny_model_of

CPU = torch.device("cpu")


def test_the_usual_shape_is_llama_8b():
    config = shape_config("llama-3.1-8b")
    shape = geometry_of(config)
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim) == (32, 32, 8, 128)
    model = random_model(config, torch.device("meta"), torch.bfloat16)
    assert sum(weight.numel() for weight in model.parameters()) == 8_030_261_248
    assert model.dtype == torch.bfloat16


def test_a_shape_can_be_cut_and_is_the_same_for_a_seed():
    config = shape_config("smollm2-135m", layers=1)
    one, two = (random_model(config, CPU, torch.float32, seed=5) for _ in range(2))
    assert len(one.model.layers) == 1
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_folder_is_a_shape(tmp_path):
    tiny_model_of("qwen2").config.save_pretrained(tmp_path)
    assert geometry_of(shape_config(str(tmp_path))).model_type == "qwen2"


def test_shapes_that_cannot_run(tmp_path):
    with pytest.raises(UsageError, match="--model-shape: expected a preset"):
        shape_config(str(tmp_path))
    with pytest.raises(UsageError, match="--layers: expected 1 to 32, the model's, found 33"):
        shape_config("llama-3.1-8b", layers=33)
    with pytest.raises(UsageError, match="expected at most 131,072"):
        check_context(shape_config("llama-3.1-8b"), 131073)
    tiny_model_of("mistral", sliding_window=64).config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError):
        shape_config(str(tmp_path))


def test_128k_tokens_fit_an_h200_and_not_a_smaller_gpu():
    config = shape_config("llama-3.1-8b")
    needed = prefill_bytes(config, 131072)
    # The cache alone is 16 GiB, and an MLP's intermediate 3.5 GiB each.
    assert 30 * GIB < needed < 60 * GIB
    assert misfit(config, 131072, 2, 120 * GIB) is None
    assert misfit(config, 131072, 2, None) is None
    reason = misfit(config, 131072, 2, 24 * GIB)
    assert reason is not None and "found 24.0 GiB; take shorter prompts" in reason
    assert prefill_bytes(config, 65536) * 2 == pytest.approx(needed)


def test_a_cpu_has_no_limit_that_is_known():
    assert free_bytes(CPU) is None
