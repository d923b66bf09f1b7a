"""Methods that reuse stored KV of documents: baselines of quality, so nothing here is timed.

Each recomputes some tokens of a prompt, and takes K and V of the others from where their document
ran behind the prompt's leading glue, its keys turned to the document's place. That start is the
strongest form of each baseline (no attention sink in every document, and the first document's KV is
exact); a store that serves many prompts has documents that ran alone. Glue is always recomputed.

The prompt runs as one ordinary forward over all tokens. Layer by layer, before attention, K and V
of the reused tokens are overwritten with the stored ones, in place: the tensors are what the KV
cache holds. Rows of reused tokens go on to compute garbage, but nobody reads it: a row leaves its
layer only as K and V of the next, and those are overwritten too. So every recomputed token, the
query and all later decoding get exactly what a partial recompute would give them.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sift_index.adapters.hf_attention import attention_handler
from sift_index.errors import PlanError, UsageError
from sift_index.evaluation.methods.stored import KVStore, StoredKV
from sift_index.evaluation.methods.treatment import Dense, Method, Treatment, spans_of
from sift_index.kernels.api import Cells, Density, dense_attention
from sift_index.models.loading import LoadedModel
from sift_index.prompts import Segment, prompt_ids


def kv_reuse(loaded: LoadedModel) -> Method:
    """Return the method that recomputes no document token: full KV reuse."""
    return epic(loaded, 0)


def epic(loaded: LoadedModel, tokens: int) -> Method:
    """Return EPIC's LegoLink (arXiv 2410.15332): the first `tokens` of a document are recomputed.

    Raises UsageError for a negative number.
    """
    if tokens < 0:
        raise UsageError(f"expected a number of tokens from 0, found {tokens}")
    return _Reusing(loaded, lambda rows: _Fixed(rows.offsets < tokens))


def cacheblend(loaded: LoadedModel, share: float) -> Method:
    """Return CacheBlend (arXiv 2405.16444): the tokens whose KV deviates most are recomputed.

    Layer 0 computes all tokens. At layer 1 the `share` of the prompt's document tokens (rounded to
    whole tokens) with the largest squared distance between fresh and stored K and V is chosen; from
    there on only these are fresh. Raises UsageError for a share outside 0 to 1.
    """
    if not 0.0 <= share <= 1.0:
        raise UsageError(f"expected a share of 0 to 1, found {share}")
    return _Reusing(loaded, lambda rows: _Blended(share, rows))


@dataclass(frozen=True, eq=False)
class _Rows:
    """The T document tokens of a prompt of `length` tokens, in order.

    positions, offsets: int64 [T], places in the prompt and in the token's own document.
    """

    length: int
    positions: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, spans: Sequence[tuple[int, int]], length: int, device: torch.device) -> "_Rows":
        runs = [torch.arange(start, stop, device=device) for start, stop in spans]
        return cls(length, torch.cat(runs), torch.cat([run - run[0] for run in runs]))

    def density(self, fresh: torch.Tensor, heads: int) -> Density:
        """Count one layer in which the document tokens `fresh` (bool [T]) visit all they may."""
        earlier = torch.arange(len(self.offsets), device=self.offsets.device) - self.offsets
        causal = heads * (self.length * (self.length + 1) // 2)
        saved = heads * int((self.positions[~fresh] + 1).sum())
        return Density(
            Cells(causal - saved, causal),
            _cells(self.offsets + 1, fresh, heads),
            _cells(earlier, fresh, heads),
        )


def _cells(of_row: torch.Tensor, fresh: torch.Tensor, heads: int) -> Cells:
    return Cells(heads * int(of_row[fresh].sum()), heads * int(of_row.sum()))


class _Choice(Protocol):
    """Decides which document tokens are recomputed."""

    def fresh(self, layer: int, deviation: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return bool [T]: document tokens whose KV is fresh in a layer; layers come in order.

        deviation: gives float32 [T], the squared distance of each token's fresh and stored KV.
        """


class _Fixed:
    """The same tokens whatever the prompt holds."""

    def __init__(self, fresh: torch.Tensor) -> None:
        self._fresh = fresh

    def fresh(self, layer: int, deviation: Callable[[], torch.Tensor]) -> torch.Tensor:
        return self._fresh


class _Blended:
    """All tokens in layer 0, then the share that deviates most in layer 1."""

    def __init__(self, share: float, rows: _Rows) -> None:
        self._count = round(share * len(rows.offsets))
        self._fresh = torch.ones_like(rows.offsets, dtype=torch.bool)

    def fresh(self, layer: int, deviation: Callable[[], torch.Tensor]) -> torch.Tensor:
        if layer == 0:
            return torch.ones_like(self._fresh)
        if layer == 1:
            order = deviation().argsort(descending=True, stable=True)
            self._fresh = torch.zeros_like(self._fresh)
            self._fresh[order[: self._count]] = True
        return self._fresh


class _Reusing:
    """A method: stores the documents it meets, and treats each prompt with what is stored."""

    def __init__(self, loaded: LoadedModel, choose: Callable[[_Rows], _Choice]) -> None:
        self._loaded = loaded
        self._choose = choose
        self._store = KVStore(loaded)

    def __call__(self, prompt: Sequence[Segment]) -> Treatment:
        """Run the documents that are not stored yet; a prompt without documents stays dense."""
        spans = spans_of(prompt)
        if not spans:
            return Dense()
        ids = prompt_ids(prompt)
        glue = ids[: spans[0][0]]
        rows = _Rows.of(spans, len(ids), self._loaded.device)
        stored = [(self._store.get(glue, ids[start:stop]), start) for start, stop in spans]
        return Reuse(self._loaded, rows, stored, self._choose(rows))


class Reuse:
    """One prompt with reused KV: the treatment, and the attention handler it is made of.

    The prompt must arrive in one call (PlanError otherwise), with a DynamicCache or none; what
    follows is dense attention over the cache.
    """

    plan = None

    def __init__(
        self,
        loaded: LoadedModel,
        rows: _Rows,
        stored: Sequence[tuple[StoredKV, int]],
        choice: _Choice,
    ) -> None:
        self._geometry = loaded.geometry
        self._frequencies = loaded.model.base_model.rotary_emb.inv_freq
        self._rows, self._stored, self._choice = rows, stored, choice
        self._densities: dict[int, Density] = {}

    @property
    def density(self) -> Density:
        """Cells of recomputed rows, all layers and heads; PlanError before the prefill."""
        parts = list(self._densities.values())
        if len(parts) < self._geometry.layers:
            raise PlanError("expected a prefilled prompt, whose density is known; prefill it first")
        return sum(parts[1:], start=parts[0])

    def attention(self, model: Any) -> AbstractContextManager[None]:
        """Replace stored KV while the prompt is prefilled; decoding is dense."""
        return attention_handler(model, self)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend one layer's rows: q [heads, R, D], k and v [kv_heads, N, D], changed in place."""
        cached, length = k.shape[1] - q.shape[1], self._rows.length
        if cached == 0 and q.shape[1] >= length:
            self._replace(layer, k, v)
        elif cached < length:
            raise PlanError(
                f"expected the prompt's {length} tokens in one call, found {q.shape[1]} behind "
                f"{cached} cached ones; turn chunked prefill off"
            )
        return dense_attention(q, k, v, scale)

    def _replace(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Overwrite K and V of the reused tokens."""
        at, (keys, values) = self._rows.positions, self._placed(layer)
        fresh = self._choice.fresh(
            layer, lambda: _distance(k[:, at], keys) + _distance(v[:, at], values)
        )
        k[:, at[~fresh]] = keys[:, ~fresh]
        v[:, at[~fresh]] = values[:, ~fresh]
        self._densities[layer] = self._rows.density(fresh, self._geometry.heads)

    def _placed(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return stored keys, turned to their places, and values: [kv_heads, T, D]."""
        keys = [kv.keys_at(layer, start, self._frequencies) for kv, start in self._stored]
        return torch.cat(keys, 1), torch.cat([kv.values[layer] for kv, _ in self._stored], 1)


def _distance(fresh: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """Return float32 [T]: squared distance of [kv_heads, T, D] summed over heads and dimensions."""
    return (fresh.float() - stored.float()).square().sum((0, 2))
