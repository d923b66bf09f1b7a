"""The serving layer of one rank: handles for requests, steps for forward passes, counters.

An engine's plugin makes one of these next to the engine's cache, asks it for a handle when a
request arrives, and for a step at each forward pass. Decoding needs no masks and is dense: an
engine usually runs it with its own kernel, which copies no keys, and gives a step only the rows of
prompts. It may leave all rows to a step.

    layer = ServingLayer(index, CacheSpec(16, 8, 128, torch.bfloat16), Shard(rank, size))
    layer.check_config(hf_config)                                   # the index's model?
    handle = layer.from_ids(ids)                                    # a request arrives
    step = layer.step([RowRange(handle, 0, 2048, page_table), ...])  # a forward pass
    step.write(k_cache, v_cache, k, v)                              # a layer: rotated k
    out = step.attend(number, q, k_cache, v_cache, new=(k, v))

Keys and values of a prompt depend on its plan. An engine's prefix cache has to keep them apart from
those of dense prompts, of other levels and of other indexes: by a salt of its hashes (vLLM calls it
cache_salt, SGLang extra_key) such as `index.fingerprint.build_digest` and the level.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sift_index.errors import FingerprintMismatchError, UsageError
from sift_index.formats.fingerprint import check_serve
from sift_index.models.geometry import geometry_of, rope_identity
from sift_index.models.support import check_supported
from sift_index.prompts import Segment
from sift_index.runtime.index import SiftIndex
from sift_index.runtime.plan import PromptPlan
from sift_index.serving.cache import CacheSpec
from sift_index.serving.counters import ServingCounters, ServingSnapshot
from sift_index.serving.handle import RequestHandle
from sift_index.serving.ranges import RowRange
from sift_index.serving.shards import HeadSlice, Shard
from sift_index.serving.step import Step


class ServingLayer:
    """An index as one tensor-parallel rank serves it; safe to share between threads.

    heads: the heads of this rank. layout: how masks of these heads are laid out.
    """

    def __init__(self, index: SiftIndex, cache: CacheSpec, shard: Shard | None = None) -> None:
        """Raise UsageError where ranks do not divide the model's heads, or the cache is not theirs.

        Call `check_config` to have the model compared; or `index.check_model`, weights included.
        """
        architecture = index.fingerprint.serve["architecture"]
        self.index = index
        self.cache = cache
        self.heads = HeadSlice.of(index.layout, architecture["kv_heads"], shard or Shard())
        self.layout = self.heads.of_layout(index.layout)
        self._counters = ServingCounters()
        wanted = {"kv_heads": len(self.heads.kv_heads), "head_dim": architecture["head_dim"]}
        for name, value in wanted.items():
            if getattr(cache, name) != value:
                raise UsageError(
                    f"the cache's {name}: expected {value}, as the index's model has on this rank, "
                    f"found {getattr(cache, name)}; use the index of the model that is served"
                )

    def check_config(self, config: Any) -> None:
        """Raise unless a transformers config, as engines keep one, is that of the index's model.

        For engines with modules of their own, in which `index.check_model` finds other weights.
        Weights are not compared: a model and what was trained from it can have one config. Raises
        UnsupportedModelError, and FingerprintMismatchError with the fields that differ.
        """
        check_supported(config)
        expected = self.index.fingerprint
        shape = asdict(geometry_of(config))
        architecture = {name: shape.get(name) for name in expected.serve["architecture"]}
        found = {"architecture": architecture, "rope": rope_identity(config)}
        check_serve(expected, replace(expected, serve={**expected.serve, **found}))

    def from_segments(
        self, segments: Iterable[Segment | Sequence[int]], level: int = 1
    ) -> RequestHandle:
        """Return the handle of a prompt whose parts are known (`SiftIndex.compose`)."""
        return self.from_plan(self.index.compose(segments, level))

    def from_ids(self, ids: Sequence[int], level: int = 1) -> RequestHandle:
        """Return the handle of a raw prompt, whose documents are looked for in it."""
        return self.from_plan(self.index.compose_ids(ids, level))

    def from_request(self, request: Mapping[str, Any]) -> RequestHandle:
        """Return the handle of a plan that another process sent (`runtime.request.to_request`)."""
        return self.from_plan(self.index.from_request(request))

    def from_plan(self, plan: PromptPlan) -> RequestHandle:
        """Return the handle of a plan of this index.

        Raises FingerprintMismatchError for a plan of an index of another model or layout.
        """
        if plan.fingerprint.serve != self.index.fingerprint.serve:
            raise FingerprintMismatchError(
                "expected a plan of the index that is served, found one of an index of another "
                "model or mask layout; compose the prompt with this index"
            )
        self._counters.add(ServingSnapshot(requests=1, hits=plan.hits, misses=plan.misses))
        return RequestHandle(plan, self.heads.of_plan(plan.sparse), self._counters)

    def step(self, ranges: Sequence[RowRange]) -> Step:
        """Return the step for the rows of one forward pass, counted as served.

        Raises UsageError or PlanError for ranges that cannot be attended, before any compute.
        """
        return Step(self.cache, self.layout, self._counters, ranges)

    def counters(self) -> ServingSnapshot:
        """Return what was served so far; waits for the device where counts are not here yet."""
        return self._counters.snapshot()
