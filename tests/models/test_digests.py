"""What identifies weights and tokenizers, whatever dtype or call settings they have."""

import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM

from sift_index.models.digests import tokenizer_digest, weights_digest
from sift_index.models.loading import load_model, load_tokenizer
from tests.plans import tiny
from tests.tiny import byte_tokenizer


@pytest.fixture(scope="module")
def bfloat16_checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    tiny("llama").to(torch.bfloat16).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("kind", ["a bfloat16 checkpoint", "a float32 checkpoint"])
def test_one_checkpoint_has_one_digest_in_float32_and_bfloat16(
    kind, bfloat16_checkpoint, tiny_model_dir
):
    path = bfloat16_checkpoint if "bfloat16" in kind else str(tiny_model_dir)
    one, other = (load_model(path, dtype, "cpu").model for dtype in ("float32", "bfloat16"))
    assert (one.dtype, other.dtype) == (torch.float32, torch.bfloat16)
    assert weights_digest(one) == weights_digest(other)
    assert len(weights_digest(one)) == 32


# A place among the samples, others between them, and the last element of a large tensor.
@pytest.mark.parametrize("place", [0, 1, 12345, -1])
def test_one_changed_element_changes_the_digest(place):
    expected = weights_digest(tiny("llama"))
    assert weights_digest(tiny("llama")) == expected
    model = tiny("llama")
    with torch.no_grad():
        weight = model.model.embed_tokens.weight.view(-1)
        weight[place] = torch.nextafter(
            weight[place].bfloat16(), torch.tensor(9.0, dtype=torch.bfloat16)
        ).float()
    assert weights_digest(model) != expected


def test_values_that_swapped_places_change_the_digest():
    model = tiny("llama")
    with torch.no_grad():
        weight = model.model.embed_tokens.weight  # the sum of its values stays
        weight[[0, 1]] = weight[[1, 0]].clone()
    assert weights_digest(model) != weights_digest(tiny("llama"))


def test_swapped_layers_change_the_digest():
    model, swapped = tiny("llama"), tiny("llama")
    layers = swapped.model.layers
    with torch.no_grad():
        one, two = layers[0].mlp.up_proj.weight, layers[1].mlp.up_proj.weight
        kept = one.clone()
        one.copy_(two)
        two.copy_(kept)
    assert weights_digest(model) != weights_digest(swapped)


def test_compiled_layers_keep_the_digest():
    model = tiny("llama")
    expected = weights_digest(tiny("llama"))
    model.model.layers[0] = torch.compile(model.model.layers[0])
    assert any("_orig_mod." in name for name, _ in model.named_parameters())
    assert weights_digest(model) == expected


def test_other_shapes_of_the_same_values_change_the_digest():
    square, flat = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(8, 2, bias=False)
    with torch.no_grad():
        flat.weight.copy_(square.weight.view(2, 8))
    assert weights_digest(square) != weights_digest(flat)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_eight_bit_weights_have_a_digest(dtype):
    def digest(last: float) -> str:
        model = torch.nn.Module()
        values = torch.tensor([[1.0, 2.0, last]]).to(dtype)
        model.weight = torch.nn.Parameter(values, requires_grad=False)
        return weights_digest(model)

    assert digest(3.0) == digest(3.0) != digest(4.0)


def test_truncation_and_padding_calls_do_not_change_the_tokenizer_digest():
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = "</s>"
    before = tokenizer_digest(tokenizer)
    tokenizer(["a", "long text"], truncation=True, max_length=3, padding="max_length")
    assert tokenizer.backend_tokenizer.truncation is not None
    assert tokenizer.backend_tokenizer.padding is not None
    assert tokenizer_digest(tokenizer) == before == tokenizer_digest(byte_tokenizer())


def test_an_added_token_changes_the_tokenizer_digest():
    tokenizer = byte_tokenizer()
    before = tokenizer_digest(tokenizer)
    tokenizer.add_tokens([AddedToken("<doc>")])
    assert tokenizer_digest(tokenizer) != before


def test_a_saved_tokenizer_keeps_its_digest(tiny_model_dir):
    loaded, _ = load_tokenizer(str(tiny_model_dir))
    assert tokenizer_digest(loaded) == tokenizer_digest(byte_tokenizer())


def test_a_tokenizer_without_a_fast_backend_is_its_vocabulary():
    class Slow:
        def __init__(self, words):
            self.words = words

        def get_vocab(self):
            return {word: i for i, word in enumerate(self.words)}

    assert tokenizer_digest(Slow("ab")) == tokenizer_digest(Slow("ab"))
    assert tokenizer_digest(Slow("ab")) != tokenizer_digest(Slow("ba"))


def test_the_digest_is_computed_once_per_model_object(tiny_model_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    first = weights_digest(model)
    assert weights_digest(model) is first


def test_a_write_to_weights_is_noticed():
    model = tiny("llama")
    before = weights_digest(model)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.add_(5)
    assert weights_digest(model) != before
