"""A partial recompute by hand, in float64: a cache grown run by run, stored KV put between.

The opposite of the code under test, which runs the whole prompt once and overwrites.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from sift_index.adapters.hf_calls import cache_argument, cache_of
from sift_index.prompts import Segment
from tests.selection.observed import moved


def pairs_of(cache: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return float64 K and V [kv_heads, n, D] of every layer of a cache."""
    return [(layer.keys[0].double(), layer.values[0].double()) for layer in cache.layers]


@dataclass
class Partial:
    """A prompt of which only some tokens are computed; `documents` are [start, stop)."""

    model: Any
    prompt: Sequence[Segment]
    documents: Sequence[tuple[int, int]]
    cache: Any = field(default_factory=DynamicCache)

    def __post_init__(self) -> None:
        self.model = deepcopy(self.model).double()
        self.model.set_experts_implementation("eager")  # the fused experts know no float64
        self.ids = torch.tensor([i for part in self.prompt for i in part.ids])

    @property
    def owner(self) -> np.ndarray:
        """Return int [L]: which document each token belongs to, -1 for glue."""
        owner = np.full(len(self.ids), -1)
        for number, (start, stop) in enumerate(self.documents):
            owner[start:stop] = number
        return owner

    @cached_property
    def stored(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """K and V of every layer [kv_heads, L, D], each document run alone behind the glue.

        What stands at glue tokens is not meant to be read.
        """
        first, frequencies = self.documents[0][0], self.model.model.rotary_emb.inv_freq
        found = self.dense
        for start, stop in self.documents:
            alone = torch.cat((self.ids[:first], self.ids[start:stop]))
            with torch.no_grad():
                pairs = pairs_of(cache_of(self.model(alone[None], use_cache=True)))
            for (k, v), (keys, values) in zip(found, pairs, strict=True):
                k[:, start:stop] = moved(keys[:, first:], start - first, frequencies)
                v[:, start:stop] = values[:, first:]
        return found

    @property
    def dense(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """K and V of every layer [kv_heads, L, D] when everything is computed."""
        with torch.no_grad():
            return pairs_of(cache_of(self.model(self.ids[None], use_cache=True)))

    def runs(self, fresh: np.ndarray) -> Iterator[tuple[bool, int, int]]:
        """Yield (fresh, start, stop) of consecutive tokens."""
        for kind, group in groupby(range(len(fresh)), key=lambda i: bool(fresh[i])):
            places = list(group)
            yield kind, places[0], places[-1] + 1

    def run(self, fresh: np.ndarray) -> torch.Tensor:
        """Return logits [L, vocabulary] of the fresh tokens, nan elsewhere; fills the cache."""
        logits = torch.full((len(self.ids), self.model.config.vocab_size), torch.nan).double()
        for kind, start, stop in self.runs(fresh):
            if kind:
                logits[start:stop] = self.step(self.ids[start:stop])
                continue
            for layer, (k, v) in enumerate(self.stored):
                self.cache.update(k[None, :, start:stop], v[None, :, start:stop], layer)
        return logits

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits of tokens behind what is cached, and cache them too."""
        place = torch.arange(len(ids)) + self.cache.get_seq_length()
        call = {cache_argument(self.model): self.cache, "position_ids": place[None]}
        with torch.no_grad():
            return self.model(ids[None], use_cache=True, **call).logits[0]
