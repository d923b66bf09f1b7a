"""How much work a plan is: 128 x 128 tiles that a kernel must issue, in whole tiles.

A rate over issued tiles compares kernels that do different amounts of work: masks, short lists and
half-empty tiles show in it, sparsity does not.
"""

import numpy as np

from sift_index.kernels import row_tiles as columns
from sift_index.kernels.api import TILE, DevicePlan
from sift_index.kernels.bits import la_tiles


def issued_tiles(plan: DevicePlan, layer: int = 0) -> int:
    """Return the tiles of all heads of a layer.

    Per head and tile of rows: the longest prefix of the key list that a row sees, rounded up, and
    own keys from the first that one sees, of a boundary window or a document, to the diagonal,
    without the LA tiles that are off.
    """
    lines, layout = plan.row_tiles, plan.layout
    counts = plan.counts[layer].cpu().numpy()  # [mask_heads, slots]
    seen = counts[:, lines[:, columns.SLOTS]].max(-1)  # [mask_heads, lines]
    listed = int((-(-seen // TILE)).sum()) * (layout.heads // layout.mask_heads)
    end = lines[:, columns.BEGIN] + lines[:, columns.STOP]
    own = end - lines[:, columns.OWN_STARTS].min(-1)
    return listed + int((-(-own // TILE)).sum()) * layout.heads - _tiles_off(plan, layer)


def _tiles_off(plan: DevicePlan, layer: int) -> int:
    """Return how many tiles of documents' own triangles LA bits leave out, over all heads."""
    layout, off = plan.layout, 0
    for span in plan.source.spans:
        if span.la is not None:
            on = int(la_tiles(span, layer, layout, plan.level).sum())
            off += layout.heads * (span.tiles * (span.tiles + 1) // 2) - on
    return off


def causal_tiles(tokens: int, heads: int) -> int:
    """Return the tiles of dense causal attention."""
    rows = -(-tokens // TILE)
    return heads * (rows * (rows + 1) // 2)


def tflops(tiles: int, head_dim: int, milliseconds: float) -> float:
    """Return the rate: two products of 2 x 128 x 128 x head_dim operations in each tile."""
    return 4 * TILE * TILE * head_dim * tiles / milliseconds / 1e9


def tile_matrix(plan: DevicePlan, layer: int = 0) -> np.ndarray:
    """Return bool [heads, n, n]: the tiles of an aligned plan, causal, the diagonal included.

    Only for plans whose spans, pages and boundary window begin at multiples of 128.
    """
    layout, tiles = plan.layout, plan.length // TILE
    offsets = plan.offsets[layer].cpu().numpy()
    listed = np.diff(offsets, axis=-1) > 0  # [mask_heads, pages], a page being a tile
    listed = listed.repeat(layout.heads // layout.mask_heads, axis=0)
    on = np.broadcast_to(np.tri(tiles, dtype=bool), (layout.heads, tiles, tiles)).copy()
    for span in plan.source.spans:
        begin, end = span.start // TILE, span.stop // TILE
        on[:, begin:end, :begin] = listed[:, None, :begin]
        on[:, begin, begin - 1] = True
        on[:, begin:end, begin:end] = la_tiles(span, layer, layout, plan.level).cpu().numpy()
    return on
