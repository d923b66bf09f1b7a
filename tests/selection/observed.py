"""The statistics of DESIGN section 3 from full L x L attention in float64, run by run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sift_index.models.loading import LoadedModel
from sift_index.selection.policy import ProbePolicy
from tests.attention import Seen, eager, scores64

WORDS = "the tide mill of Hovra grinds kelp and rye for bread while ferries cross the sound "


def write_probes(folder: Path, lengths: Sequence[int] = (150, 210)) -> str:
    """Write probe texts of these many bytes (= tokens of the byte tokenizer)."""
    folder.mkdir(exist_ok=True)
    for number, length in enumerate(lengths):
        text = (WORDS[number * 7 :] * 40)[:length]
        (folder / f"{number}.txt").write_text(text)
    return str(folder)


def observe(model: Any, ids: Sequence[int]) -> Seen:
    """Run ids through the model with full attention and keep every layer's inputs."""
    with torch.inference_mode(), eager(model) as seen:
        model(torch.tensor([list(ids)]), use_cache=False)
    return seen


def moved(k: torch.Tensor, positions: int, inverse_frequencies: torch.Tensor) -> torch.Tensor:
    """Turn rotated keys by `positions` as complex numbers in float64; the rest stays."""
    half = len(inverse_frequencies)
    k = k.double()
    pairs = torch.complex(k[..., :half], k[..., half : 2 * half])
    pairs = pairs * torch.exp(1j * inverse_frequencies.double() * positions)
    return torch.cat((pairs.real, pairs.imag, k[..., 2 * half :]), -1)


def pages(per_key: np.ndarray, size: int) -> np.ndarray:
    """Return means over pages of `size` keys, the last page over the keys it has."""
    count = per_key.shape[-1]
    return np.stack([per_key[..., a : a + size].mean(-1) for a in range(0, count, size)], -1)


def ca_statistic(
    loaded: LoadedModel, policy: ProbePolicy, prefix: list[int], ids: Sequence[int]
) -> np.ndarray:
    """Return [layers, heads, pages]: all windows of all probes, maximum over windows.

    Before head weights, and of every layer.
    """
    model, start = loaded.model, len(prefix)
    texts = [file.read_text() for file in sorted(Path(policy.probe_source).glob("*.txt"))]
    encoded = [loaded.tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    probes = [observe(model, [*prefix, *probe[: policy.probe_tokens]]) for probe in encoded]
    document = observe(model, [*prefix, *ids])
    frequencies = model.model.rotary_emb.inv_freq
    found = []
    for layer in range(loaded.geometry.layers):
        keys = moved(document.k[layer][:, start:], -len(ids), frequencies)
        means = []
        for probe in probes:
            own = probe.scores(layer)
            own[:, ~np.tri(own.shape[-1], dtype=bool)] = -np.inf
            foreign = scores64(probe.q[layer], keys, probe.scale)
            weights = np.exp(np.concatenate((foreign, own), -1))
            p = (weights / weights.sum(-1, keepdims=True))[:, start:, : len(ids)]
            whole = p.shape[1] // policy.window * policy.window
            means += [p[:, a : a + policy.window].mean(1) for a in range(0, whole, policy.window)]
        found.append(pages(np.max(means, 0), policy.page_size))
    return np.stack(found)


def la_statistic(
    loaded: LoadedModel, policy: ProbePolicy, prefix: list[int], ids: Sequence[int]
) -> np.ndarray:
    """Return [layers, heads, triangle] of every layer: the document's own windows by tile row."""
    seen, start = observe(loaded.model, [*prefix, *ids]), len(prefix)
    return np.stack(
        [
            _la_layer(seen.probabilities(layer)[:, start:, start:], policy)
            for layer in range(loaded.geometry.layers)
        ]
    )


def _la_layer(p: np.ndarray, policy: ProbePolicy) -> np.ndarray:
    found = []
    for r in range(0, p.shape[1], 128):
        rows = p[:, r : r + 128]
        size = policy.la_window
        windows = [rows[:, a : a + size].mean(1) for a in range(0, rows.shape[1], size)]
        best = np.max(windows, 0)
        for c in range(0, r + 128, 128):
            found.append(pages(best[:, c : c + 128], policy.page_size).max(-1))
    return np.stack(found, -1)


def between_values(values: np.ndarray, *shares: float) -> tuple[float, ...]:
    """Return thresholds in the middle of gaps, so that `share` of the values lie below each."""
    ordered = np.unique(values)
    places = [int(share * (len(ordered) - 1)) for share in shares]
    return tuple(float((ordered[at] + ordered[at + 1]) / 2) for at in places)


def levels(statistic: np.ndarray, thresholds: Sequence[float]) -> np.ndarray:
    """Return how many thresholds each value exceeds."""
    return np.searchsorted(np.array(thresholds), statistic, side="left").astype(np.uint8)
