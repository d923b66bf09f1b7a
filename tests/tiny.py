"""Tiny random models of any supported architecture, with a tokenizer that needs no download."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

SHAPE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 320,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
}


def tiny_model_of(model_type: str = "llama", seed: int = 0, **overrides: Any) -> Any:
    """Return a random causal language model of a transformers model type, float32, on the CPU."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **{**SHAPE, **overrides})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # the default initialisation is so small that attention is uniform
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(12.0)
    return model


def byte_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per byte, and <s> (256) and </s> (257)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special, **options)


def save_tiny_model(path: Path, model_type: str = "llama", seed: int = 0, **overrides: Any) -> Path:
    """Write a tiny model and its tokenizer to `path` as transformers saves them."""
    tiny_model_of(model_type, seed, **overrides).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path
