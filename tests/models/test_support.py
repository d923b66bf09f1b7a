"""What can be indexed, by config alone: every refusal says which model type and why."""

from typing import Any

import pytest
from transformers import AutoConfig

from sift_index.errors import UnsupportedModelError
from sift_index.models.support import TESTED_TYPES, check_supported, rope_parameters
from tests.plans import OVERRIDES

LONG = {
    "rope_type": "longrope",
    "factor": 4.0,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 1024,
    "short_factor": [1.0] * 64,
    "long_factor": [2.0] * 64,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "deepseek_v3": ("deepseek_v3", {}, r"multi-head latent attention \(MLA\)"),
    "gemma2": ("gemma2", {}, "soft-capped"),
    "gemma3 text": ("gemma3_text", {}, "sliding-window or chunked layers"),
    "gemma3": ("gemma3", {}, "not among the tested architectures"),
    "mistral 7b v0.1": ("mistral", {}, r"sliding-window attention \(4096 tokens\)"),
    "mixtral": ("mixtral", {"sliding_window": 128}, r"sliding-window attention \(128 tokens\)"),
    "qwen2 windowed": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
        "sliding-window or chunked layers",
    ),
    "bert": ("bert", {}, "not among the tested architectures"),
    "bert checkpoint": (
        "bert",
        {"architectures": ["BertForMaskedLM"]},
        "expected a causal language model, found BertForMaskedLM",
    ),
    "t5": ("t5", {}, "encoder-decoder"),
    "gpt2": ("gpt2", {}, "not among the tested architectures"),
    "gpt_oss": ("gpt_oss", {}, "learned attention sinks"),
    "mamba": ("mamba", {}, "linear_attention are not softmax|not among the tested"),
    "qwen3_next": ("qwen3_next", {}, "linear_attention are not softmax attention"),
    "dynamic": ("llama", {"rope_parameters": DYNAMIC}, "dynamic-NTK rotary embeddings change"),
    "longrope": ("llama", {"rope_parameters": LONG}, "LongRoPE switches its frequencies"),
    "mrope": ("llama", {"rope_parameters": MROPE}, "M-RoPE"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_type_and_reason(name):
    kind, values, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        check_supported(AutoConfig.for_model(kind, **values))
    message = str(caught.value)
    assert message.startswith(f"model type '{kind}' cannot be indexed: ")
    assert message.endswith(f"Supported: {', '.join(TESTED_TYPES)}")


@pytest.mark.parametrize("kind", TESTED_TYPES)
def test_tested_types_are_accepted(kind):
    check_supported(AutoConfig.for_model(kind, **OVERRIDES.get(kind, {})))


def test_a_window_that_the_model_does_not_use_is_no_reason():
    values = {"use_sliding_window": False, "sliding_window": 4096}
    check_supported(AutoConfig.for_model("qwen2", **values))


@pytest.mark.parametrize("rope_type", ["default", "linear", "llama3", "yarn"])
def test_static_rotary_embeddings_are_accepted(rope_type):
    values = {
        "rope_type": rope_type,
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    check_supported(AutoConfig.for_model("llama", rope_parameters=values))


class OldConfig:
    """A config as transformers 4 wrote it: `type` and a separate theta."""

    model_type = "llama"
    rope_theta = 7.0
    rope_scaling = {"type": "linear", "factor": 2.0}


def test_older_spellings_of_rope_parameters_are_read():
    assert rope_parameters(OldConfig()) == {
        "rope_type": "linear",
        "factor": 2.0,
        "rope_theta": 7.0,
    }
    assert OldConfig.rope_scaling == {"type": "linear", "factor": 2.0}  # left alone
    check_supported(OldConfig())


def test_an_unknown_rope_type_is_refused():
    config = OldConfig()
    config.rope_scaling = {"type": "spiral"}
    with pytest.raises(UnsupportedModelError, match="'spiral' are unknown here"):
        check_supported(config)
