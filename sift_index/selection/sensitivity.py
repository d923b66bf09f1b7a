"""Head weights: how much the model's answer depends on what each head brings to document rows.

One threshold for all heads treats a lost share of attention as equally bad everywhere. It is not:
a head of a late layer has few layers left to matter in. The weight of a head is the root mean
square gradient of the answer's negative log-likelihood at its output, times the mean norm of the
values it mixes: a first-order estimate of what losing a share of its attention costs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from sift_index.adapters.hf_attention import attention_handler
from sift_index.errors import UsageError
from sift_index.kernels.api import dense_attention
from sift_index.models.loading import LoadedModel
from sift_index.prompts import Segment, prompt_ids

# A head that never matters keeps this share of the largest weight, so that ratios stay finite.
SMALLEST = 1e-4


def head_weights(
    loaded: LoadedModel, prompts: Sequence[Sequence[Segment]], answers: Sequence[Sequence[int]]
) -> tuple[tuple[float, ...], ...]:
    """Return weights [layers][heads] with a geometric mean of 1 over all layers but the last.

    prompts: segments, of which those that are not glue are documents; answers: token ids behind
    each prompt, usually the model's own greedy answer. One forward and one backward pass each,
    with all activations of a prompt in memory. Weights have three significant digits. Raises
    UsageError without prompts, or for one without a document.
    """
    if not prompts or any(all(segment.glue for segment in prompt) for prompt in prompts):
        raise UsageError(
            f"expected prompts with documents to weigh heads on, found {len(prompts)} prompts, "
            "one of them without a document or none at all; give prompts with documents"
        )
    squares = torch.zeros(loaded.geometry.layers, loaded.geometry.heads)
    norms = torch.zeros_like(squares)
    for prompt, answer in zip(prompts, answers, strict=True):
        capture = _run(loaded, prompt, answer)
        rows = _document_rows(prompt, loaded.device)
        squares += torch.stack([capture.square(layer, rows) for layer in range(len(squares))])
        norms += torch.stack([capture.norms[layer] for layer in range(len(squares))])
    return _normalised(squares.sqrt() * norms)


def _normalised(weights: torch.Tensor) -> tuple[tuple[float, ...], ...]:
    """Scale [layers, heads] to a geometric mean of 1 over all layers but the last.

    In the last layer document rows have no gradient at all, whatever the model.
    """
    weights = weights.clamp(min=SMALLEST * float(weights.max()))
    rest = weights[:-1] if len(weights) > 1 else weights
    weights = weights / rest.log().mean().exp()
    return tuple(tuple(float(f"{weight:.3g}") for weight in layer) for layer in weights.tolist())


def _run(loaded: LoadedModel, prompt: Sequence[Segment], answer: Sequence[int]) -> "_Gradients":
    """Run prompt and answer, and send the answer's negative log-likelihood backwards."""
    tokens = torch.tensor([[*prompt_ids(prompt), *answer[:-1]]], device=loaded.device)
    capture = _Gradients()
    with torch.enable_grad(), attention_handler(loaded.model, capture):
        # Gradients start at the embeddings; the model's own weights need none.
        entry = loaded.model.get_input_embeddings()(tokens).detach().requires_grad_()
        with _frozen(loaded.model):
            output = loaded.model(inputs_embeds=entry, use_cache=False, logits_to_keep=len(answer))
            wanted = torch.tensor(list(answer), device=loaded.device)
            cross_entropy(output.logits[0].float(), wanted, reduction="sum").backward()
    return capture


def _document_rows(prompt: Sequence[Segment], device: torch.device) -> torch.Tensor:
    flags = [not segment.glue for segment in prompt for _ in segment.ids]
    return torch.tensor(flags, device=device).nonzero()[:, 0]


@contextmanager
def _frozen(model: Any) -> Iterator[None]:
    """Keep gradients off the weights, which would take as much memory again."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanted:
            parameter.requires_grad_(True)


class _Gradients:
    """Dense attention that keeps each head's output with its gradient, and its values' norm."""

    def __init__(self) -> None:
        self.norms: dict[int, torch.Tensor] = {}
        self._outputs: dict[int, torch.Tensor] = {}

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attend densely: q [heads, L, D], k and v [kv_heads, L, D]."""
        out = dense_attention(q, k, v, scale)
        out.retain_grad()
        self._outputs[layer] = out
        norms = v.detach().float().norm(dim=-1).mean(1)
        self.norms[layer] = norms.repeat_interleave(q.shape[0] // k.shape[0]).cpu()
        return out

    def square(self, layer: int, rows: torch.Tensor) -> torch.Tensor:
        """Return [heads]: mean squared norm of the gradient over the given rows."""
        gradient = self._outputs[layer].grad
        if gradient is None:
            return torch.zeros(self._outputs[layer].shape[0])
        return gradient[:, rows].float().square().sum(-1).mean(-1).cpu()
