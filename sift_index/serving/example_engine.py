"""A small serving engine: paged KV, chunked prefill, mixed batches and greedy decoding.

It shows all that an engine has to do to prefill with an index: keep a handle per request, and in
each forward pass hand the new rows and their pages to a step. The model that runs the step is in
`example_model`. It schedules nothing: every request gets a chunk or a token in every pass.

    engine = ExampleEngine(model, SiftIndex.open("index", model))
    answers = engine.generate([engine.layer.from_ids(ids) for ids in prompts], new_tokens=32)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sift_index.errors import UsageError
from sift_index.runtime.index import SiftIndex
from sift_index.serving.example_model import LlamaStyle
from sift_index.serving.handle import RequestHandle
from sift_index.serving.layer import ServingLayer
from sift_index.serving.ranges import RowRange


@dataclass
class _Running:
    """A request: all its ids so far, its page table, and how many of its rows are in the cache."""

    handle: RequestHandle
    ids: list[int]
    table: torch.Tensor
    done: int = 0

    def next_rows(self, most: int) -> RowRange:
        """Return the rows to run next, at most so many."""
        return RowRange(self.handle, self.done, min(most, len(self.ids) - self.done), self.table)


class ExampleEngine:
    """Greedy answers of a Llama-style causal language model to several prompts at once.

    pages: KV pages of `page_size` tokens in the cache. chunk: rows of a prompt per forward pass.
    Belongs to one thread. Raises UnsupportedModelError for a model of another style,
    FingerprintMismatchError for another one than the index was built for.
    """

    def __init__(
        self, model: Any, index: SiftIndex, page_size: int = 16, pages: int = 512, chunk: int = 256
    ) -> None:
        self.model, self.chunk = LlamaStyle(model), chunk
        index.check_model(model)
        self.layer = ServingLayer(index, self.model.cache_spec(page_size))
        self.cache = self.model.empty_cache(pages, page_size)
        self.free = list(range(pages))

    def generate(self, handles: Sequence[RequestHandle], new_tokens: int) -> list[list[int]]:
        """Return `new_tokens` ids per request. Raises UsageError where too few pages are free."""
        tables = self._tables([handle.length + new_tokens for handle in handles])
        requests = [_Running(h, list(h.ids), t) for h, t in zip(handles, tables, strict=True)]
        try:
            while active := [r for r in requests if len(r.ids) < r.handle.length + new_tokens]:
                self._forward(active)
        finally:
            self.free += [page for table in tables for page in table.tolist()]
        return [request.ids[request.handle.length :] for request in requests]

    def _forward(self, active: Sequence[_Running]) -> None:
        """Run the next rows of requests; those whose last row is among them get a token more."""
        ranges = [request.next_rows(self.chunk) for request in active]
        parts = list(zip(active, ranges, strict=True))
        ids = [i for request, rows in parts for i in request.ids[rows.row_start : rows.row_stop]]
        logits = self.model.logits(self.layer.step(ranges), ids, self.cache)
        for (request, rows), token in zip(parts, logits.argmax(-1).tolist(), strict=True):
            request.done = rows.row_stop
            if request.done == len(request.ids):
                request.ids.append(token)

    def _tables(self, tokens: Sequence[int]) -> list[torch.Tensor]:
        """Take a page table for each number of tokens from the free pages."""
        needed = [-(-count // self.layer.cache.page_size) for count in tokens]
        if sum(needed) > len(self.free):
            raise UsageError(
                f"expected requests of at most {len(self.free)} KV pages, found {sum(needed)}; "
                "make the engine with more pages, or ask for fewer answers at once"
            )
        taken = [[self.free.pop() for _ in range(count)] for count in needed]
        return [torch.tensor(t, dtype=torch.int32, device=self.model.device) for t in taken]
