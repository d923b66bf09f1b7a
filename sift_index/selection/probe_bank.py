"""The probe bank: queries of fixed texts, which measure what foreign text attends to.

The texts run once per model and prefix; a document is then scored by its keys alone, without a
forward pass per probe.
"""

from dataclasses import dataclass
from typing import Any

import torch

from sift_index.adapters.hf_attention import run_under
from sift_index.errors import UsageError
from sift_index.kernels.api import causal_attention
from sift_index.models.loading import LoadedModel
from sift_index.selection.policy import ProbePolicy
from sift_index.selection.probes import probe_texts
from sift_index.selection.vocabulary import require_known


@dataclass(frozen=True)
class ProbeLayer:
    """One layer of the bank: q [heads, rows, D] as the model has it, rotated; lse [heads, rows]."""

    q: torch.Tensor
    lse: torch.Tensor


@dataclass(frozen=True)
class ProbeBank:
    """Probe queries of every layer, in whole contiguous windows of the policy's size."""

    layers: tuple[ProbeLayer, ...]


def build_bank(loaded: LoadedModel, policy: ProbePolicy, prefix: list[int]) -> ProbeBank:
    """Run the probe texts behind the prefix and keep the queries of evenly spread windows.

    Raises UsageError for texts that are too short, too long or not of the model's vocabulary.
    """
    probes = [
        _tokens(loaded, text, policy, len(prefix)) for text in probe_texts(policy.probe_source)
    ]
    for ids in (prefix, *probes):
        require_known(ids, loaded.geometry.vocab_size)
    windows = _spread_windows([len(ids) // policy.window for ids in probes], policy)
    captures = [
        _run(loaded, prefix + ids, _rows(chosen, policy.window, len(prefix)))
        for ids, chosen in zip(probes, windows, strict=True)
        if chosen
    ]
    return ProbeBank(
        tuple(
            ProbeLayer(
                torch.cat([capture[layer].q for capture in captures], 1),
                torch.cat([capture[layer].lse for capture in captures], 1),
            )
            for layer in range(loaded.geometry.layers)
        )
    )


def _tokens(loaded: LoadedModel, text: str, policy: ProbePolicy, prefix: int) -> list[int]:
    ids: list[int] = loaded.tokenizer(text, add_special_tokens=False).input_ids
    ids = ids[: policy.probe_tokens]
    if len(ids) < policy.window:
        raise UsageError(
            f"expected probe texts of at least {policy.window} tokens (one window), "
            f"found one of {len(ids)}"
        )
    if prefix + len(ids) > loaded.geometry.context:
        raise UsageError(
            f"a probe of {len(ids)} tokens behind a prefix of {prefix} does not fit the model's "
            f"context of {loaded.geometry.context}; lower probe_tokens"
        )
    return ids


def _spread_windows(available: list[int], policy: ProbePolicy) -> list[list[int]]:
    """Choose windows evenly over all probes; returns the chosen window numbers per probe."""
    places = [(probe, w) for probe, count in enumerate(available) for w in range(count)]
    wanted = min(policy.probe_rows // policy.window, len(places))
    chosen = {places[(2 * i + 1) * len(places) // (2 * wanted)] for i in range(wanted)}
    return [sorted(w for p, w in chosen if p == probe) for probe in range(len(available))]


def _rows(windows: list[int], size: int, prefix: int) -> torch.Tensor:
    starts = torch.tensor(windows) * size + prefix
    return (starts[:, None] + torch.arange(size)).reshape(-1)


def _run(loaded: LoadedModel, ids: list[int], rows: torch.Tensor) -> dict[int, ProbeLayer]:
    capture = _ProbeCapture(rows.to(loaded.device))
    run_under(loaded.model, ids, capture)
    return capture.layers


class _ProbeCapture:
    """Dense attention that keeps chosen query rows and their log-sum-exp."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.layers: dict[int, ProbeLayer] = {}
        self._rows = rows

    def attend(self, layer: int, q: Any, k: Any, v: Any, scale: float) -> torch.Tensor:
        out, lse = causal_attention(q, k, v, scale)
        self.layers[layer] = ProbeLayer(q[:, self._rows], lse[:, self._rows])
        return out
