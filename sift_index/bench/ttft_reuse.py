"""Prefill with reused KV: full reuse, and CacheBlend's partial recomputation of 15 %.

Glue, and a share of each document's tokens, run through the model; K and V of all others are
loaded. Which tokens CacheBlend would choose depends on their contents, and choosing takes it a
whole layer; here they are each document's first ones, the cheapest for an attention kernel, and
nothing chooses. So its time is a lower bound. Quality is measured elsewhere
(`evaluation.methods.reuse`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from sift_index.bench.ttft_cases import TTFTCase
from sift_index.bench.ttft_kv import Loading, Source
from sift_index.bench.ttft_laps import ATTENTION, Laps
from sift_index.bench.ttft_prefill import first_logits
from sift_index.errors import UsageError
from sift_index.kernels import varlen
from sift_index.models.geometry import geometry_of

Run = tuple[int, int]


def fresh_runs(case: TTFTCase, share: float) -> list[Run]:
    """Return [start, stop) of the tokens that are computed: all glue, a share of each document."""
    spans = case.spans
    wanted = [(0, spans[0][0])]
    wanted += [(start, start + round(share * (stop - start))) for start, stop in spans]
    wanted += [(spans[-1][1], case.tokens)]
    return list(_joined([run for run in wanted if run[0] < run[1]]))


def _joined(runs: Sequence[Run]) -> Iterator[Run]:
    """Make one run of those that touch."""
    start = runs[0][0]
    for (_, stop), (following, _) in pairwise(runs):
        if stop < following:
            yield start, stop
            start = following
    yield start, runs[-1][1]


@dataclass(frozen=True, eq=False)
class _Fresh:
    """The tokens that are computed, on the device.

    rows: int64 [R], their positions. cu_q: int32 [runs + 1]. used: int32 [runs], the keys that the
    last row of each run sees. first: int32 [runs], zeros.
    """

    rows: torch.Tensor = field(repr=False)
    cu_q: torch.Tensor = field(repr=False)
    first: torch.Tensor = field(repr=False)
    used: torch.Tensor = field(repr=False)
    longest: int

    @classmethod
    def of(cls, runs: Sequence[Run], device: torch.device) -> "_Fresh":
        lengths = [stop - start for start, stop in runs]
        stops = torch.tensor([stop for _, stop in runs], dtype=torch.int32, device=device)
        ends = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)
        rows = torch.cat([torch.arange(start, stop, device=device) for start, stop in runs])
        return cls(rows, ends, torch.zeros_like(stops), stops, max(lengths))


class ReusePrefill:
    """A prefill of one prompt with stored KV. Raises UsageError where no attention library runs."""

    def __init__(
        self, model: Any, ids: torch.Tensor, case: TTFTCase, share: float, source: Source
    ) -> None:
        found = varlen.best(ids.device, model.dtype, geometry_of(model.config).head_dim)
        if found.backend is None:
            raise UsageError(f"no attention library runs here: {found.reason}")
        self._attend = found.backend.attend
        self._model, self._case, self._source = model, case, source
        self._fresh = _Fresh.of(fresh_runs(case, share), ids.device)
        self._ids = ids[:, self._fresh.rows]

    @property
    def computed(self) -> int:
        """Tokens that run through the model."""
        return self._ids.shape[1]

    def __call__(self, laps: Laps) -> torch.Tensor:
        """Return the last position's logits."""
        return self.run(laps)[0]

    def run(self, laps: Laps) -> tuple[torch.Tensor, Loading]:
        """Return the last position's logits, and the load that now holds the prompt's KV cache."""
        start, device = self._case.spans[0][0], self._ids.device
        loading = Loading(self._source, self._case.tokens, start, device, laps)
        handler = _Reusing(loading, self._fresh, self._attend, laps)
        positions = self._fresh.rows[None]
        try:
            logits = first_logits(
                self._model, self._ids, handler, use_cache=False, position_ids=positions
            )
        finally:
            loading.close()
        return logits, loading


@dataclass(frozen=True)
class _Reusing:
    """Puts fresh K and V among the loaded ones, and attends fresh rows to all in front of them."""

    loading: Loading
    fresh: _Fresh
    library: varlen.Attend
    laps: Laps

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend one layer: q [heads, R, D], k and v [kv_heads, R, D], of the fresh tokens."""
        keys, values = self.loading.wait(layer)
        fresh = self.fresh
        with self.laps.lap(ATTENTION):
            keys.index_copy_(0, fresh.rows, k.transpose(0, 1))
            values.index_copy_(0, fresh.rows, v.transpose(0, 1))
            lengths = (fresh.cu_q, fresh.first, fresh.used, fresh.longest, keys.shape[0])
            out, _ = self.library(q.transpose(0, 1), keys, values, *lengths, scale, True)
        return out.transpose(0, 1)
