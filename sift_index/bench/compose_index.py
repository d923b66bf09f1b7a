"""A synthetic index that holds real documents among many others, for `sift-index bench compose`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sift_index.bench.lookup_index import IndexShape
from sift_index.fingerprints import prefix_digest
from sift_index.formats import bits
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import anchor, document_key
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask, granules
from sift_index.formats.packs import write_pack
from sift_index.formats.receipts import Receipt, commit
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish
from sift_index.kernels.api import TILE

VOCABULARY = 32_000


def random_documents(count: int, tokens: int, seed: int) -> list[list[int]]:
    """Return token ids of different documents of one length."""
    found: list[list[int]] = (
        np.random.default_rng(seed).integers(0, VOCABULARY, (count, tokens)).tolist()
    )
    return found


def write_compose_index(
    root: Path, shape: IndexShape, documents: Sequence[Sequence[int]], prefix: list[int], seed: int
) -> None:
    """Write an index of `shape.documents` documents, of which the first are `documents`.

    The others are keys of nothing. Masks are random bits; all have one of a few.
    """
    fingerprint = _fingerprint(shape, prefix)
    paths = IndexPaths(root)
    paths.create()
    receipts = []
    for number, rows in enumerate(_units(shape, documents, seed)):
        unit, build = f"unit-{number:05}", fingerprint.build_digest
        info = write_pack(paths, unit, build, rows)
        keys = tuple(sorted(row.key.hex() for row in rows))
        receipts.append(commit(paths, Receipt(unit, build, info, keys, shape.tokens * len(rows))))
    publish(paths, fingerprint, receipts, {})


def _units(
    shape: IndexShape, documents: Sequence[Sequence[int]], seed: int
) -> Iterator[list[DocumentMasks]]:
    rng = np.random.default_rng(seed)
    pages = granules(shape.tokens, shape.page)
    size = (shape.layers, shape.heads, pages)
    pool = [
        PackedMask(MaskKind.CA, bits.pack(rng.random(size) < shape.density, 1), pages, shape.page)
        for _ in range(16)
    ]
    names = [(document_key(ids), anchor(ids)) for ids in documents]
    others = shape.documents - len(names)
    keys, anchors = rng.bytes(16 * others), rng.integers(1, 2**63, others, dtype=np.uint64)
    names += [(keys[16 * i : 16 * i + 16], int(anchors[i])) for i in range(others)]
    for numbers in np.array_split(np.arange(len(names)), shape.packs):
        yield [
            DocumentMasks(names[i][0], names[i][1], shape.tokens, pool[i % len(pool)])
            for i in numbers.tolist()
        ]


def _fingerprint(shape: IndexShape, prefix: list[int]) -> Fingerprint:
    layout = {
        "tile": TILE,
        "layers": shape.layers,
        "heads": shape.heads,
        "mask_heads": shape.heads,
        "page_size": shape.page,
    }
    build = {"benchmark": "compose", "longest": shape.tokens}
    return Fingerprint(build, {"layout": layout}, {"prefix": prefix_digest(prefix)})
