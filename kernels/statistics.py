"""Attention statistics of one layer in torch, block-wise: no L x L matrix ever exists.

The truth for faster kernels. Shapes: q [heads, rows, D], k [kv_heads, keys, D] (unrepeated),
results float32. Definitions: DESIGN section 3; the paper's rule: arXiv 2606.09441 section 3.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from sift_index.kernels.dense import grouped_scores, later_keys
from sift_index.kernels.plan import TILE


def block_scores(device: torch.device) -> int:
    """Return how many scores to hold at once: what fits a CPU's cache, or fills a GPU."""
    return 1 << 20 if device.type == "cpu" else 1 << 26


def page_means(per_key: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return [..., pages]: mean of [..., keys] over each page's real keys."""
    keys = per_key.shape[-1]
    pages = -(-keys // page_size)
    padded = torch.nn.functional.pad(per_key, (0, pages * page_size - keys))
    sums: torch.Tensor = padded.unflatten(-1, (pages, page_size)).sum(-1)
    sizes = torch.full((pages,), page_size, device=per_key.device)
    sizes[-1] = keys - page_size * (pages - 1)
    return sums / sizes


def probe_scores(
    q: torch.Tensor, lse: torch.Tensor, k: torch.Tensor, window: int, page_size: int, scale: float
) -> torch.Tensor:
    """CA statistic: what the probe bank's rows attend to in a document.

    q: [heads, rows, D] probe queries in whole windows of `window` rows; lse: [heads, rows], the
    probe's own log-sum-exp; k: [kv_heads, n, D] document keys turned next to the probe. Returns
    [heads, pages]: mean probability per window, maximum over windows, mean over a page's keys.
    """
    heads, rows, _ = q.shape
    keys = k.shape[1]
    step = window * max(1, block_scores(q.device) // (heads * window * keys))
    best = torch.zeros(heads, keys, device=q.device)
    for at in range(0, rows, step):
        # With x = score - lse, a key's probability is e^x / (1 + sum of e^x over the keys). Past
        # e^80 float32 would overflow; such a key takes all attention either way.
        odds = grouped_scores(q[:, at : at + step], k, scale)
        odds.sub_(lse[:, at : at + step, None]).clamp_(max=80.0).exp_()
        weight = 1.0 / (window * (1.0 + odds.sum(-1)))
        best = torch.maximum(best, _window_sums(odds, weight, window).amax(1))
    return page_means(best, page_size)


def _window_sums(values: torch.Tensor, weight: torch.Tensor, window: int) -> torch.Tensor:
    """Return [heads, windows, keys]: weighted sums over the rows of each window.

    values: [heads, rows, keys], which may be overwritten; weight: [heads, rows].
    """
    if window == 1:
        return values.mul_(weight[..., None])
    # [heads, windows, 1, W] @ [heads, windows, W, keys]
    sums: torch.Tensor = weight.unflatten(1, (-1, 1, window)) @ values.unflatten(1, (-1, window))
    return sums.squeeze(2)


@dataclass(frozen=True)
class ProbabilityBlock:
    """Attention probabilities p, float32 [heads, rows, keys], of one tile row's part.

    `row` and `key` are the positions of its first row and key in the document; both are multiples
    of the tile.
    """

    row: int
    key: int
    p: torch.Tensor


def probability_blocks(
    q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
) -> Iterator[ProbabilityBlock]:
    """Yield a document's attention on its own keys, tile row by tile row, in runs of keys.

    q: [heads, n, D] and k: [kv_heads, n, D] of the document alone; lse: [heads, n] over all the
    rows' keys, a prefix included.
    """
    heads, n, _ = q.shape
    run = TILE * max(1, block_scores(q.device) // (heads * TILE * TILE))
    for row in range(0, n, TILE):
        stop = min(row + TILE, n)
        for key in range(0, stop, run):
            p = grouped_scores(q[:, row:stop], k[:, key : min(key + run, stop)], scale)
            p.sub_(lse[:, row:stop, None]).exp_()
            if key + run >= stop:
                p[..., row - key :].masked_fill_(later_keys(stop - row, q.device), 0.0)
            yield ProbabilityBlock(row, key, p)


def local_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    window: int,
    page_size: int,
    scale: float,
) -> torch.Tensor:
    """LA statistic: [heads, tiles * (tiles + 1) / 2], row-major lower triangle.

    Per tile row: mean probability per key over windows of `window` rows, maximum over windows,
    mean over a page's keys, maximum over a tile's pages. Arguments as in `probability_blocks`.
    """
    parts: list[torch.Tensor] = []
    for block in probability_blocks(q, k, lse, scale):
        means = torch.stack([part.mean(1) for part in block.p.split(window, dim=1)])
        pages = page_means(means.amax(0), page_size)
        parts.append(tile_maxima(pages, TILE // page_size))
    return torch.cat(parts, dim=-1)


def tile_maxima(values: torch.Tensor, per_tile: int) -> torch.Tensor:
    """Return [..., tiles]: maximum over each group of `per_tile` values, the last may be short."""
    missing = -values.shape[-1] % per_tile
    padded = torch.nn.functional.pad(values, (0, missing))
    maxima: torch.Tensor = padded.unflatten(-1, (-1, per_tile)).amax(-1)
    return maxima


def paper_statistics(
    q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, beta: float, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The paper's two statistics of a document run alone.

    Returns the maximum score of every tile, [heads, tiles * (tiles + 1) / 2], and per key the
    number of rows with a score >= beta, [heads, n].
    """
    heads, n, _ = q.shape
    high = torch.zeros(heads, n, device=q.device)
    maxima: list[torch.Tensor] = []
    for block in probability_blocks(q, k, lse, scale):
        maxima.append(tile_maxima(block.p.amax(1), TILE))
        high[:, block.key : block.key + block.p.shape[-1]] += (block.p >= beta).sum(1)
    return torch.cat(maxima, -1), high


def nested_levels(scores: torch.Tensor, thresholds: tuple[float, ...]) -> torch.Tensor:
    """Return uint8: how many of the ascending thresholds each score exceeds."""
    values = torch.zeros_like(scores, dtype=torch.uint8)
    for threshold in thresholds:
        values += (scores > threshold).to(torch.uint8)
    return values
