"""What one case needs to run: model and token ids, and each row's prefill built from them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from sift_index.bench.ttft_cases import DISK, DRAM, RECOMPUTED, SIFT, Row, TTFTCase
from sift_index.bench.ttft_density import MeasuredDensity, densities
from sift_index.bench.ttft_disk import OnDisk
from sift_index.bench.ttft_kv import HostKV, InMemory, Source
from sift_index.bench.ttft_masks import RandomPrompt, random_prompt
from sift_index.bench.ttft_prefill import Prefill, dense_prefill, sift_prefill
from sift_index.bench.ttft_reuse import ReusePrefill
from sift_index.errors import UsageError
from sift_index.kernels.api import SparsePlan, device_plan, plan_density
from sift_index.models.geometry import geometry_of
from sift_index.selection.policy import load_policy
from sift_index.selection.rules import mask_layout

COMPOSED = 5  # times, of which the first warms up
POLICY = "probe"


@dataclass(frozen=True, eq=False)
class Contender:
    """A row that can run. numbers: what is known of it without running, by metric.

    note: how it differs from what its name says, for the log.
    """

    row: Row
    prefill: Prefill
    numbers: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


class Stage:
    """One case: random token ids, and the stored KV that its rows of reuse share."""

    def __init__(
        self,
        model: Any,
        case: TTFTCase,
        measured: MeasuredDensity,
        seed: int = 0,
        disk: Path | None = None,
    ) -> None:
        self.case, self._model, self._measured = case, model, measured
        self._seed, self._disk = seed, disk
        self.shape = geometry_of(model.config)
        self.device: torch.device = next(model.parameters()).device
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, self.shape.vocab_size, (1, case.tokens), generator=generator)
        self._host_ids: list[int] = ids[0].tolist()
        self.ids = ids.to(self.device)
        self._sources: dict[str, Source] = {}

    def contender(self, row: Row) -> Contender:
        """Return a row's prefill. Raises what says why it cannot run."""
        if row.kind == SIFT:
            return self._sift(row)
        if row.kind in RECOMPUTED:
            return self._reuse(row)
        return Contender(row, dense_prefill(self._model, self.ids, row.kind))

    def close(self) -> None:
        """Give back stored KV."""
        for source in self._sources.values():
            if isinstance(source, OnDisk):
                source.close()
        self._sources = {}

    def random_prompt(self, ca: float | None) -> RandomPrompt:
        """Return the prompt with random masks of this mean CA density, None: the default's."""
        layout = mask_layout(load_policy(POLICY), self.shape)
        mean = self._measured.ca_mean if ca is None else ca
        table = densities(self._measured.ca, layout.layers, layout.mask_heads, mean, self._seed)
        return random_prompt(
            self.case, self._host_ids, layout, table, self._measured.la_long, self._seed
        )

    def _sift(self, row: Row) -> Contender:
        prompt = self.random_prompt(row.ca)
        plan = prompt.compose()
        found = plan_density(plan)
        numbers = {
            "compose_ms": _composing(prompt.compose),
            "metadata_bytes": float(metadata_bytes(plan)),
            "density": found.total.share,
            "ca_density": found.ca.share,
            "la_density": found.la.share,
        }
        return Contender(row, sift_prefill(self._model, self.ids, plan), numbers)

    def _reuse(self, row: Row) -> Contender:
        source = self._source(row.store)
        share = RECOMPUTED[row.kind]
        prefill = ReusePrefill(self._model, self.ids, self.case, share, source)
        numbers = {
            "kv_bytes": float(source.kv.nbytes),
            "computed_share": prefill.computed / self.case.tokens,
        }
        note = f"KV files are read with {source.mode}" if isinstance(source, OnDisk) else ""
        return Contender(row, prefill, numbers, note)

    def _source(self, store: str) -> Source:
        if store not in self._sources:
            self._sources[store] = self._on_disk() if store == DISK else self._in_memory()
        return self._sources[store]

    def _in_memory(self) -> InMemory:
        tokens = self.case.spans[-1][1] - self.case.spans[0][0]
        pinned = self.device.type == "cuda"
        kv = HostKV(self.shape, tokens, self._model.dtype, pinned)
        kv.fill(self.device, self._seed)
        return InMemory(kv)

    def _on_disk(self) -> OnDisk:
        if self._disk is None:
            raise UsageError("expected --kv-disk for KV from disk, found none; name a folder")
        return OnDisk(self._source(DRAM).kv, self._disk)


def metadata_bytes(plan: SparsePlan) -> int:
    """Return the bytes that a plan uploads: packed bits, and the tables of pages and tiles."""
    decoded = device_plan(plan, "cpu")
    pages = 6 * len(decoded.pages.start) + len(decoded.pages.slot_page)  # int32, as below
    return int(decoded.bits.nbytes + decoded.row_tiles.nbytes + 4 * pages)


def _composing(compose: Callable[[], SparsePlan]) -> float:
    """Return the median milliseconds of composing a prompt, warm."""
    samples = []
    for _ in range(COMPOSED):
        started = time.perf_counter()
        compose()
        samples.append((time.perf_counter() - started) * 1e3)
    return median(samples[1:])
