"""The forward pass of the example engine: Llama-style modules of transformers, with paged KV.

An engine of its own has all this already. What it would change are two lines of `logits`: `write`,
where it has no operation for that, and `attend`. Other models are refused: what their layers do
besides would be left out in silence.
"""

from collections.abc import Sequence
from typing import Any

import torch

from sift_index.errors import UnsupportedModelError
from sift_index.models.geometry import geometry_of
from sift_index.models.support import check_supported
from sift_index.serving.cache import CacheSpec
from sift_index.serving.step import Step

# Layers of these are norm, attention of rotated projections, add, norm, gated MLP, add.
LLAMA_STYLE = ("llama", "mistral", "qwen2")


class LlamaStyle:
    """A Llama-style causal language model. Raises UnsupportedModelError for another one."""

    def __init__(self, model: Any) -> None:
        if model.config.model_type not in LLAMA_STYLE:
            raise UnsupportedModelError(
                f"expected a model of type {', '.join(LLAMA_STYLE)}, found "
                f"{model.config.model_type}; run it with sift_attention"
            )
        check_supported(model.config)
        self._model, self._shape = model, geometry_of(model.config)
        self.device: torch.device = model.device

    def cache_spec(self, page_size: int) -> CacheSpec:
        """Return the kind of cache this model needs, whose pages hold so many positions."""
        return CacheSpec(page_size, self._shape.kv_heads, self._shape.head_dim, self._model.dtype)

    def empty_cache(self, pages: int, page_size: int) -> torch.Tensor:
        """Return the KV pages of all layers, [layers, 2, pages, page_size, kv_heads, D]."""
        page = (page_size, self._shape.kv_heads, self._shape.head_dim)
        shape = (self._shape.layers, 2, pages, *page)
        return torch.zeros(shape, dtype=self._model.dtype, device=self.device)

    @torch.inference_mode()
    def logits(self, step: Step, ids: Sequence[int], cache: torch.Tensor) -> torch.Tensor:
        """Run a step's rows, one id each; return the logits of last rows, [ranges, vocabulary]."""
        inner = self._model.base_model
        hidden = inner.embed_tokens(torch.tensor(ids, device=self.device))
        cos, sin = (x[0][:, None] for x in inner.rotary_emb(hidden, step.positions[None]))
        for number, block in enumerate(inner.layers):
            attention, x = block.self_attn, block.input_layernorm(hidden)
            linear = (attention.q_proj, attention.k_proj, attention.v_proj)
            q, k, v = (f(x).unflatten(-1, (-1, self._shape.head_dim)) for f in linear)
            q, k = (x * cos + _half_turn(x) * sin for x in (q, k))
            k_cache, v_cache = cache[number]
            step.write(k_cache, v_cache, k, v)
            found = step.attend(number, q, k_cache, v_cache, new=(k, v))
            hidden = hidden + attention.o_proj(found.flatten(1))
            hidden = hidden + block.mlp(block.post_attention_layernorm(hidden))
        last: torch.Tensor = self._model.lm_head(inner.norm(hidden[step.last_rows]))
        return last


def _half_turn(x: torch.Tensor) -> torch.Tensor:
    """Return x [..., D] with its halves swapped and the first one's sign changed."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
