"""Documents with random masks as an index would hold them, and a prompt composed from them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sift_index.bench.ttft_cases import TTFTCase
from sift_index.bench.ttft_density import Shares
from sift_index.formats import bits
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import anchor, document_key
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask
from sift_index.kernels.api import TILE, MaskLayout, SparsePlan
from sift_index.prompts import Segment
from sift_index.runtime.compose import Composition


@dataclass(frozen=True, eq=False)
class RandomPrompt:
    """A prompt whose documents an index of random masks holds, in memory."""

    segments: tuple[Segment, ...] = field(repr=False)
    masks: dict[bytes, DocumentMasks] = field(repr=False)
    layout: MaskLayout

    def compose(self) -> SparsePlan:
        """Return the plan: every document hashed and looked up, as for each request."""
        parts = Composition(self.masks.get, max(len(s.ids) for s in self.segments), lambda _: ())
        for segment in self.segments:
            parts.add(segment)
        return parts.plan(self.layout, Fingerprint({}, {})).sparse


def random_prompt(
    case: TTFTCase, ids: list[int], layout: MaskLayout, ca: Shares, la: float, seed: int = 0
) -> RandomPrompt:
    """Return the prompt of these token ids, each document with bits of its own.

    ca: [layers, mask_heads], the chance of a page to be on. la: LA density of documents that are
    long enough to store LA bits.
    """
    generator = np.random.default_rng(seed)
    documents = [ids[start:stop] for start, stop in case.spans]
    rows = [random_masks(part, layout, ca, la, generator, case.sparse_la) for part in documents]
    return RandomPrompt(tuple(_segments(case, ids)), {row.key: row for row in rows}, layout)


def _segments(case: TTFTCase, ids: list[int]) -> Iterator[Segment]:
    spans = case.spans
    yield Segment(ids[: spans[0][0]], glue=True)
    for start, stop in spans:
        yield Segment(ids[start:stop])
    yield Segment(ids[spans[-1][1] :], glue=True)


def random_masks(
    ids: list[int],
    layout: MaskLayout,
    ca: Shares,
    la: float,
    generator: np.random.Generator,
    sparse_la: bool,
) -> DocumentMasks:
    """Return masks of one document; `sparse_la`: with LA bits."""
    pages, tiles = -(-len(ids) // layout.page_size), -(-len(ids) // TILE)
    drawn = generator.random((*ca.shape, pages), np.float32) < ca[..., None]
    local = None
    if sparse_la:
        chance = tile_chance(la, tiles)
        triangle = (*ca.shape, bits.triangle(tiles))
        on = generator.random(triangle, np.float32) < chance
        local = PackedMask(MaskKind.LA, bits.pack(on, 1), tiles, TILE)
    marked = PackedMask(MaskKind.CA, bits.pack(drawn, 1), pages, layout.page_size)
    return DocumentMasks(document_key(ids), anchor(ids), len(ids), marked, local)


def tile_chance(density: float, tiles: int) -> float:
    """Return the chance of a tile's bit that gives an LA density, counted in score cells.

    Tiles (r, r) and (r, r - 1) are on whatever the bits say; half of a diagonal tile is causal.
    """
    forced = tiles / 2 + (tiles - 1)
    whole = tiles * tiles / 2
    return min(max((density * whole - forced) / max(whole - forced, 1e-9), 0.0), 1.0)
