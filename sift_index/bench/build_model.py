"""A model of random weights that can extract, and documents of synthetic tokens.

Speed depends on shapes alone, so weights, texts and a tokenizer need not be those of a real model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sift_index.bench.ttft_model import random_model
from sift_index.models.loading import LoadedModel
from sift_index.models.presets import PromptTemplate

# Document lengths of a batch lie within this share of the length asked for, evenly spread, so that
# they are no whole tiles.
SPREAD = 0.25
# Token ids from here on are ordinary ones in every vocabulary.
FIRST_ID = 300


@dataclass(frozen=True)
class _Encoded:
    input_ids: list[int]


class ByteTokenizer:
    """As many tokens as a text has bytes: enough for probe texts whose content does not matter."""

    def __call__(self, text: str, **options: Any) -> _Encoded:
        """Encode a text."""
        return _Encoded(list(text.encode()))


def loaded_model(name: str, config: Any, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Return a model of a shape with random weights, as the extractor takes it."""
    model = random_model(config, device, dtype)
    return LoadedModel(name, model, ByteTokenizer(), PromptTemplate("", "{question}"))


def batch_lengths(length: int, batch_tokens: int, context: int) -> list[int]:
    """Return the lengths of documents of about `length` tokens that fill a batch, at least one.

    None is longer than `context`; together they are about `batch_tokens`.
    """
    count = max(1, batch_tokens // length)
    places = (2 * (np.arange(count) + 0.5) / count - 1) * SPREAD
    lengths: list[int] = np.rint(length * (1 + places)).astype(int).tolist()
    return [min(n, context) for n in lengths]


def synthetic_documents(lengths: Sequence[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Return documents of random token ids."""
    draw = np.random.default_rng(seed)
    first = min(FIRST_ID, vocab_size - 1)
    return [draw.integers(first, vocab_size, n).tolist() for n in lengths]
