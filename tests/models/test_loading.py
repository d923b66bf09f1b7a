"""Loading by name or folder: what is accepted, and one clear error for everything else."""

import json
import shutil

import pytest
import torch

from sift_index.errors import ModelError, UnsupportedModelError, UsageError
from sift_index.models.loading import (
    load_config,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
    resolve_model,
)
from sift_index.models.presets import load_preset
from tests.tiny import save_tiny_model, tiny_model_of

CPU = torch.device("cpu")


def test_a_local_folder(tiny_model_dir, tiny_model):
    assert tiny_model.name == str(tiny_model_dir)
    assert tiny_model.device == CPU
    assert tiny_model.model.dtype == torch.float32
    assert not tiny_model.model.training
    assert tiny_model.geometry.model_type == "llama"
    assert (tiny_model.geometry.layers, tiny_model.geometry.context) == (2, 4096)
    assert tiny_model.prompt.prefix.startswith("<s>")


def test_a_preset_brings_its_texts_and_context():
    found = resolve_model("llama-3.1-8b")
    assert found.location == "meta-llama/Llama-3.1-8B-Instruct"
    assert (found.prompt, found.context) == (load_preset("llama-3.1-8b").prompt, 131072)


def test_the_demo_model_is_the_preset(smollm2):
    preset = load_preset("smollm2-135m")
    assert smollm2.prompt == preset.prompt
    shape = smollm2.geometry
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim) == (30, 9, 3, 64)
    assert smollm2.tokenizer("<|im_start|>", add_special_tokens=False).input_ids == [1]


def test_a_mistyped_preset_is_guessed():
    with pytest.raises(UsageError, match=r"did you mean smollm2-135m\?"):
        load_model("smolm2-135m", "float32", "cpu")
    with pytest.raises(UsageError, match="found 'something-else'$"):
        load_model("something-else", "float32", "cpu")


@pytest.mark.parametrize("name", ["nothing", "./missing/folder", "/missing/folder", "~/x", "a/b/c"])
def test_a_name_that_is_nothing_is_refused(name):
    with pytest.raises(UsageError, match="a preset .*, a local folder or a hub id .*found '"):
        resolve_model(name)


@pytest.fixture
def broken(tmp_path, tiny_model_dir):
    """A copy of the tiny model's folder to damage."""
    return shutil.copytree(tiny_model_dir, tmp_path / "model")


def edit_config(folder, **values) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


DAMAGE = {
    "no config": (lambda f: (f / "config.json").unlink(), "model_type"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "not a valid JSON"),
    "unknown type": (lambda f: edit_config(f, model_type="nonsense"), "nonsense"),
    "config of wrong types": (lambda f: edit_config(f, num_hidden_layers="x"), "num_hidden_layers"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
    "weights are junk": (lambda f: (f / "model.safetensors").write_bytes(b"x" * 99), "header"),
    "weights of another shape": (lambda f: edit_config(f, hidden_size=128), "mismatched"),
    "weights missing": (
        lambda f: edit_config(f, num_hidden_layers=3),
        "lacks 9 of its tensors, first model.layers.2.",
    ),
    "no tokenizer": (lambda f: [p.unlink() for p in f.glob("token*")], "tokenizer"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_folder_that_cannot_be_loaded_is_one_error_with_the_name(broken, damage):
    harm, reason = DAMAGE[damage]
    harm(broken)
    with pytest.raises(ModelError) as caught:
        load_model(str(broken), device="cpu")
    assert str(broken) in str(caught.value)
    assert reason in str(caught.value)
    assert "check the name" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_an_unsupported_model_is_refused_before_weights_are_read(tmp_path):
    tiny_model_of("mistral", sliding_window=64).config.save_pretrained(tmp_path)
    for load in (load_config, load_model):
        with pytest.raises(UnsupportedModelError, match="sliding-window attention"):
            load(str(tmp_path))


def test_an_untied_head_is_loaded_and_a_tied_one_is_not_missing(tmp_path):
    path = save_tiny_model(tmp_path / "tied", tie_word_embeddings=True)
    model = load_model(str(path), device="cpu").model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_tokenizer_alone(tiny_model_dir):
    tokenizer, prompt = load_tokenizer(str(tiny_model_dir))
    assert tokenizer.convert_tokens_to_ids("<s>") == 256
    assert prompt.query.endswith("Question: {question}\nAnswer:")


@pytest.mark.parametrize("device", ["tpu9", "", "meta", "cuda:x"])
def test_an_impossible_device_is_refused(device):
    with pytest.raises(UsageError, match=r"auto, cpu or cuda\[:n\] as device, found"):
        resolve_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_where_there_is_none_is_refused():
    with pytest.raises(UsageError, match="torch sees no GPU; use --device cpu"):
        resolve_device("cuda:0")
    assert resolve_device("auto") == CPU


def test_dtypes():
    assert resolve_dtype("auto", CPU) == torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert resolve_dtype("float16", CPU) == torch.float16
    with pytest.raises(UsageError, match="auto, float32, bfloat16, float16, found 'int8'"):
        resolve_dtype("int8", CPU)
