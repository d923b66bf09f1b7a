"""A small serving engine: paged KV, chunked prefill, mixed batches and greedy decoding.

It shows all that an engine has to do to prefill with an index: keep a handle per request, and in
each forward pass hand the new rows to a step. It runs Llama-style modules of transformers with a
loop of its own, and schedules nothing: every request gets a chunk or a token in every pass. Other
models are refused: what their layers do besides would be left out in silence.

    engine = ExampleEngine(model, SiftIndex.open("index", model))
    answers = engine.generate([engine.layer.from_ids(ids) for ids in prompts], new_tokens=32)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sift_index.errors import UnsupportedModelError, UsageError
from sift_index.runtime.index import SiftIndex
from sift_index.serving.cache import CacheSpec
from sift_index.serving.handle import RequestHandle
from sift_index.serving.layer import ServingLayer
from sift_index.serving.ranges import RowRange

# Layers of these are norm, attention of rotated projections, add, norm, gated MLP, add.
LLAMA_STYLE = ("llama", "mistral", "qwen2")


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

    def ids_of(self, part: RowRange) -> list[int]:
        """Return the ids of some rows, checked against the plan."""
        found = self.ids[part.row_start : part.row_stop]
        self.handle.check(found, part.row_start)
        return found


class ExampleEngine:
    """Greedy answers of a Llama-style causal language model to several prompts at once.

    pages: KV pages of `page_size` tokens in the cache. chunk: rows of a prompt per forward pass.
    Raises UnsupportedModelError for a model of another style, FingerprintMismatchError for another
    one than the index was built for.
    """

    def __init__(
        self, model: Any, index: SiftIndex, page_size: int = 16, pages: int = 512, chunk: int = 256
    ) -> None:
        if model.config.model_type not in LLAMA_STYLE:
            raise UnsupportedModelError(
                f"expected a model of type {', '.join(LLAMA_STYLE)}, found "
                f"{model.config.model_type}; run it with sift_attention"
            )
        index.check_model(model)
        shape = index.fingerprint.serve["architecture"]
        spec = CacheSpec(page_size, shape["kv_heads"], shape["head_dim"], model.dtype)
        self.model, self.chunk = model, chunk
        self.layer = ServingLayer(index, spec)
        cache = (shape["layers"], 2, pages, page_size, spec.kv_heads, spec.head_dim)
        self.cache = torch.zeros(cache, dtype=model.dtype, device=model.device)
        self.free = list(range(pages))

    def generate(self, handles: Sequence[RequestHandle], new_tokens: int) -> list[list[int]]:
        """Return `new_tokens` ids per request. Raises UsageError where too few pages are free."""
        tables = self._tables([handle.length + new_tokens for handle in handles])
        try:
            return self._answers(handles, tables, new_tokens)
        finally:
            self.free += torch.cat(tables).tolist() if tables else []

    def _answers(
        self, handles: Sequence[RequestHandle], tables: Sequence[torch.Tensor], new_tokens: int
    ) -> list[list[int]]:
        """Run requests, each in the KV pages of its table, until all have their new tokens."""
        running = [_Running(h, list(h.ids), t) for h, t in zip(handles, tables, strict=True)]
        while active := [r for r in running if len(r.ids) < r.handle.length + new_tokens]:
            ranges = [request.next_rows(self.chunk) for request in active]
            ids = sum((r.ids_of(part) for r, part in zip(active, ranges, strict=True)), [])
            tokens = self._forward(ranges, ids).argmax(-1).tolist()
            for request, part, token in zip(active, ranges, tokens, strict=True):
                request.done = part.row_stop
                if request.done == len(request.ids):
                    request.ids.append(token)
        return [request.ids[request.handle.length :] for request in running]

    @torch.inference_mode()
    def _forward(self, ranges: Sequence[RowRange], ids: Sequence[int]) -> Any:
        """Return the logits of each range's last row, [ranges, vocabulary]."""
        step, inner = self.layer.step(ranges), self.model.base_model
        hidden = inner.embed_tokens(torch.tensor(ids, device=self.model.device))
        cos, sin = (x[0][:, None] for x in inner.rotary_emb(hidden, step.positions[None]))
        for number, block in enumerate(inner.layers):
            attention, x = block.self_attn, block.input_layernorm(hidden)
            linear = (attention.q_proj, attention.k_proj, attention.v_proj)
            q, k, v = (f(x).unflatten(-1, (-1, self.layer.cache.head_dim)) for f in linear)
            q, k = (x * cos + _half_turn(x) * sin for x in (q, k))
            k_cache, v_cache = self.cache[number]
            step.write(k_cache, v_cache, k, v)
            found = step.attend(number, q, k_cache, v_cache, new=(k, v))
            hidden = hidden + attention.o_proj(found.flatten(1))
            hidden = hidden + block.mlp(block.post_attention_layernorm(hidden))
        return self.model.lm_head(inner.norm(hidden[step.last_rows]))

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


def _half_turn(x: torch.Tensor) -> torch.Tensor:
    """Return x [..., D] with its halves swapped and the first one's sign changed."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
