"""A small index on disk, served: prompts run through paged caches in chunks, layer by layer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sift_index.kernels import reference
from sift_index.prompts import Segment
from sift_index.runtime.index import SiftIndex
from sift_index.serving.cache import CacheSpec
from sift_index.serving.handle import RequestHandle
from sift_index.serving.layer import ServingLayer
from sift_index.serving.ranges import RowRange
from sift_index.serving.shards import Shard
from tests.kernels.paging import empty_cache, table_of
from tests.plans import layout_of, loaded, tiny, tokens, write_index

# 4 query heads, 2 KV heads of 16: tests.tiny.SHAPE.
HEAD_DIM, LAYERS, HEADS, KV_HEADS = 16, 2, 4, 2
DOCUMENTS = {n: tokens(n) for n in (1, 40, 100, 128, 129, 300, 520)}
MODEL = loaded(tiny("llama"))


def index_in(root: Path, **layout: Any) -> SiftIndex:
    """Return an index of all documents with random bits."""
    shape = layout_of(MODEL.model, **layout)
    named = {str(n): [ids] for n, ids in DOCUMENTS.items()}
    return SiftIndex.open(write_index(root, MODEL, shape, named), MODEL.model, MODEL.tokenizer)


def prompt(index: SiftIndex, *parts: int, query: int = 17) -> list[Segment]:
    """Return a prompt of documents by length; negative ones are glue."""
    middle = [
        Segment(DOCUMENTS[n]) if n > 0 else Segment(tokens(-n, seed=5), glue=True) for n in parts
    ]
    prefix = Segment(index.writer(MODEL).prefix(), glue=True)
    return [prefix, *middle, Segment(tokens(query, seed=6), glue=True)]


def layer_of(index: SiftIndex, page_size: int = 16, shard: Shard | None = None) -> ServingLayer:
    """Return the serving layer of one rank of the tiny model."""
    ranks = shard.size if shard else 1
    return ServingLayer(
        index, CacheSpec(page_size, max(1, KV_HEADS // ranks), HEAD_DIM, torch.float32), shard
    )


@dataclass(frozen=True)
class Data:
    """Random q, k, v of a prompt, [layers, tokens, heads, D] each, the same for a seed."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def of(cls, length: int, seed: int = 0) -> "Data":
        generator = torch.Generator().manual_seed(seed)
        return cls(
            *(
                torch.randn(LAYERS, length, heads, HEAD_DIM, generator=generator)
                for heads in (HEADS, KV_HEADS, KV_HEADS)
            )
        )

    def of_heads(self, layer: ServingLayer) -> "Data":
        """Return what one rank holds."""
        own, kv = (slice(h.start, h.stop) for h in (layer.heads.heads, layer.heads.kv_heads))
        return Data(self.q[:, :, own], self.k[:, :, kv], self.v[:, :, kv])


class Served:
    """A request in pages of its own cache."""

    def __init__(
        self,
        layer: ServingLayer,
        handle: RequestHandle,
        data: Data,
        layout: str = "two tensors",
        seed: int = 0,
    ) -> None:
        spec, tokens = layer.cache, data.q.shape[1]
        pages = 2 * (-(-tokens // spec.page_size)) + 2
        self.layer, self.handle, self.data = layer, handle, data
        self.caches = [
            empty_cache(layout, pages, spec.page_size, spec.kv_heads, spec.head_dim)
            for _ in range(LAYERS)
        ]
        self.table = table_of(tokens, spec.page_size, pages, seed)

    def rows(self, start: int, stop: int) -> RowRange:
        return RowRange(self.handle, start, stop - start, self.table)

    def run(self, cuts: Iterable[int], keep_new: bool = True) -> torch.Tensor:
        """Run chunks between cuts; return [layers, tokens, heads, D]."""
        cuts, parts = list(cuts), []
        for start, stop in zip(cuts, cuts[1:], strict=False):
            step = self.layer.step([self.rows(start, stop)])
            q, k, v = (x[:, start:stop] for x in (self.data.q, self.data.k, self.data.v))
            of_layers = []
            for number, cache in enumerate(self.caches):
                step.write(*cache, k[number], v[number])
                new = (k[number], v[number]) if keep_new else None
                of_layers.append(step.attend(number, q[number], *cache, new=new))
            parts.append(torch.stack(of_layers))
        return torch.cat(parts, 1)


def expected(handle: RequestHandle, data: Data) -> torch.Tensor:
    """Return what the reference gives for contiguous keys, [layers, tokens, heads, D]."""
    heads_first = [x.transpose(1, 2) for x in (data.q, data.k, data.v)]
    return torch.stack(
        [
            reference.sparse_attention(q, k, v, handle.sparse, number).transpose(0, 1)
            for number, (q, k, v) in enumerate(zip(*heads_first, strict=True))
        ]
    )


def in_threads(work: Callable[[int], Any], count: int) -> list[Any]:
    """Return what `work` gives for 0 to count - 1, each in a thread, begun together."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    barrier = Barrier(count)

    def begin(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))
