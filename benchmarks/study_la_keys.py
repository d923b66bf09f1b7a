"""What LA bits of fewer keys would save: an entry keeps a tile's rows, and 16 to 64 of its keys.

python -m benchmarks.study_la_keys --questions multifieldqa_zh.jsonl --min-tokens 2000

Prompts hold one long document. An entry is on by the default's rule: a page in it exceeds the
threshold (one of 16 keys is its own page), the diagonal tile and its left neighbour are always on.
At 128 keys that is the default itself. Format and kernels know 128 only, so attention runs in
plain torch.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.study import AT_EQUAL_KL, Study, main
from sift_index.adapters.hf_attention import attention_handler
from sift_index.errors import UsageError
from sift_index.evaluation.methods.registry import Setting
from sift_index.evaluation.methods.treatment import Method, spans_of
from sift_index.kernels.api import Cells, Density, dense_attention, plan_density
from sift_index.kernels.plan import TILE, RowBlock, SpanMask, SparsePlan, row_blocks
from sift_index.kernels.statistics import page_means, probability_blocks, tile_maxima
from sift_index.models.loading import LoadedModel
from sift_index.prompts import Segment, prompt_ids
from sift_index.selection.policy import ProbePolicy
from sift_index.selection.prefill import run_packed
from sift_index.selection.rules import mask_layout

GRANULARITIES = (128, 64, 32, 16)
# The reference reaches further: where its curve ends, nothing can be compared.
THRESHOLDS = {TILE: (0.0001, 0.0002, 0.0005, 0.001)}
FINER_THRESHOLDS = (0.0001, 0.0002, 0.0005)
Scores = dict[int, torch.Tensor]  # by keys an entry: [heads, tiles, entries]


def entry_scores(
    q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, policy: ProbePolicy, scale: float
) -> Scores:
    """Return the LA statistic of entries of each granularity, `local_scores` at 128.

    Entries above the diagonal are 0. Arguments as in `probability_blocks`.
    """
    tiles = -(-q.shape[1] // TILE)
    found = {
        keys: torch.zeros(q.shape[0], tiles, tiles * TILE // keys, device=q.device)
        for keys in GRANULARITIES
    }
    for block in probability_blocks(q, k, lse, scale):
        windows = block.p.split(policy.la_window, dim=1)
        best = torch.stack([window.mean(1) for window in windows]).amax(0)
        for keys, scores in found.items():
            page = min(keys, policy.page_size)
            entries = tile_maxima(page_means(best, page), keys // page)
            at = block.key // keys
            scores[:, block.row // TILE, at : at + entries.shape[-1]] = entries
    return found


@dataclass(frozen=True, eq=False)
class OwnKeys:
    """Which keys of itself a document computes: bool [layers, heads, tiles, entries of `keys`]."""

    keys: int
    on: torch.Tensor

    @classmethod
    def of(cls, scores: Sequence[torch.Tensor], keys: int, threshold: float) -> "OwnKeys":
        """Mark what exceeds the threshold, the diagonal tile and its left neighbour."""
        on = torch.stack(list(scores)) > threshold
        row = torch.arange(on.shape[2], device=on.device)[:, None]
        tile = torch.arange(on.shape[3], device=on.device) * keys // TILE
        return cls(keys, (on | (tile >= row - 1)) & (tile <= row))

    def row(self, layer: int, tile: int, count: int) -> torch.Tensor:
        """Return bool [heads, count]: the first keys of the document for one row of tiles."""
        return self.on[layer, :, tile].repeat_interleave(self.keys, dim=-1)[:, :count]

    def visited(self, tokens: int) -> int:
        """Return the score cells, all layers and heads; diagonal tiles are triangles."""
        begins = torch.arange(self.on.shape[2], device=self.on.device) * TILE
        rows = (tokens - begins).clamp(max=TILE)
        entry = torch.arange(self.on.shape[3], device=self.on.device) * self.keys
        before = (self.on & (entry < begins[:, None])).sum((0, 1, 3)) * self.keys
        triangles = self.on.shape[0] * self.on.shape[1] * (rows * (rows + 1) // 2)
        return int((before * rows + triangles).sum())


class FinerLocal:
    """One prompt with a long document, sparse inside itself: treatment and attention handler.

    dense: the prompt's plan with every own key on. Rows behind the prompt are dense.
    """

    plan = None

    def __init__(self, dense: SparsePlan, own: OwnKeys) -> None:
        self._dense, self._own, self._span = dense, own, dense.spans[0]

    @property
    def density(self) -> Density:
        """Cells of the plan, those of the document replaced."""
        whole, own = plan_density(self._dense), self._own.visited(self._span.tokens)
        total = Cells(whole.total.visited - whole.la.visited + own, whole.total.causal)
        return Density(total, Cells(own, whole.la.causal), whole.ca)

    def attention(self, model: Any) -> AbstractContextManager[None]:
        """Prefill the prompt sparsely; decoding is dense."""
        return attention_handler(model, self)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend one layer's rows: q [heads, R, D], k and v [kv_heads, N, D]."""
        if q.shape[1] < k.shape[1]:
            return dense_attention(q, k, v, scale)
        group, out = q.shape[0] // k.shape[0], torch.empty_like(q)
        keys, values = (x.repeat_interleave(group, dim=0) for x in (k, v))
        for block in row_blocks(self._dense, 0, q.shape[1]):
            rows = slice(block.begin, block.end)
            part = (q[None, :, rows], keys[None, :, : block.end], values[None, :, : block.end])
            out[:, rows] = scaled_dot_product_attention(
                *part, attn_mask=self._mask(layer, block, q.device), scale=scale
            )[0]
        return out

    def _mask(self, layer: int, block: RowBlock, device: torch.device) -> torch.Tensor:
        """Return bool [1 or heads, rows of the block, keys up to its end]."""
        count = block.end - block.begin
        mask = torch.ones(1, count, block.end, dtype=torch.bool, device=device).tril(block.begin)
        if block.span is None:
            return mask
        start = self._span.start
        own = self._own.row(layer, block.tile_row, block.end - start)
        return mask & torch.nn.functional.pad(own, (start, 0), value=True)[:, None]


class LongDocuments:
    """Makes the treatments of prompts; a document's statistic is found once for all of them."""

    def __init__(self, loaded: LoadedModel, policy: ProbePolicy, prefix: list[int]) -> None:
        self._loaded, self._policy, self._prefix = loaded, policy, prefix
        self._layout = mask_layout(policy, loaded.geometry)
        self._last: tuple[list[int], list[Scores]] = ([], [])

    def method(self, keys: int, threshold: float) -> Method:
        """Return the method of one granularity and threshold."""
        return lambda prompt: self._treated(prompt, keys, threshold)

    def _treated(self, prompt: Sequence[Segment], keys: int, threshold: float) -> FinerLocal:
        spans, ids = spans_of(prompt), prompt_ids(prompt)
        if len(spans) != 1:
            raise UsageError(f"expected prompts of one document, found {len(spans)}; leave it out")
        ((start, stop),) = spans
        # No later document reads the CA bits.
        blank = torch.zeros(self._layout.layers, self._layout.mask_heads, len(ids))
        span = SpanMask(start, stop, blank.to(torch.uint8))
        scores = [layer[keys] for layer in self._scores(ids[start:stop])]
        own = OwnKeys.of(scores, keys, threshold)
        return FinerLocal(SparsePlan(self._layout, len(ids), (span,)), own)

    def _scores(self, ids: list[int]) -> list[Scores]:
        if self._last[0] != ids:
            self._last = ids, self._observed(ids)
        return self._last[1]

    def _observed(self, ids: list[int]) -> list[Scores]:
        """Run a document behind the prefix; a layer that the policy skips has scores of 0."""
        own, found = slice(len(self._prefix), None), list[Scores]()

        def observe(
            layer: int, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
        ) -> None:
            found.append(entry_scores(q[:, own], k[:, own], lse[:, own], self._policy, scale))

        last = self._layout.layers - 1 - self._policy.skip_last_layer
        run_packed(self._loaded.model, self._prefix, [ids], observe, last)
        blank = {keys: torch.zeros_like(scores) for keys, scores in found[0].items()}
        return found + [blank] * (self._layout.layers - len(found))


def study(setting: Setting, policy: ProbePolicy) -> Study:
    """Return a method for each granularity and threshold."""
    documents = LongDocuments(setting.loaded, policy, setting.prefix)
    methods = {
        f"{keys} keys@{threshold}": documents.method(keys, threshold)
        for keys in GRANULARITIES
        for threshold in THRESHOLDS.get(keys, FINER_THRESHOLDS)
    }
    return Study("la-keys", methods, f"{TILE} keys", AT_EQUAL_KL)


if __name__ == "__main__":
    main(study, __doc__)
