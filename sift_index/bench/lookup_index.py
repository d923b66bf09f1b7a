"""A synthetic index of any size for `sift-index bench lookup`, written by the format's own writers.

Lookups depend on the number of keys and packs, the shape of masks and the codec, not on what the
bits say: random bits of a given density, a few thousand different ones, are enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sift_index.errors import UsageError
from sift_index.formats import bits
from sift_index.formats.blob import Codec
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask, granules
from sift_index.formats.packs import write_pack
from sift_index.formats.receipts import Receipt, commit
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish

POOL = 1024  # different masks


@dataclass(frozen=True)
class IndexShape:
    """What to write; the defaults are documents of 1K tokens in the shape of Llama-3.1-8B.

    heads: rows of bits a layer. page: tokens. density: share of pages that are on.
    """

    documents: int = 1_000_000
    packs: int = 200
    tokens: int = 1024
    layers: int = 32
    heads: int = 32
    page: int = 32
    density: float = 0.3

    def check(self) -> None:
        """Raise UsageError for numbers no index can be made of."""
        if not 1 <= self.packs <= self.documents:
            found = f"{self.packs} packs of {self.documents} documents"
            raise UsageError(f"expected 1 pack or more, each with a document, found {found}")
        if not 0 < self.density <= 1:
            raise UsageError(f"--density: expected above 0 and at most 1, found {self.density}")

    @property
    def blob_bytes(self) -> int:
        """Bytes of one document's CA bits, not compressed."""
        pages = granules(self.tokens, self.page)
        return self.layers * self.heads * bits.packed_bytes(pages, 1)

    @property
    def expected_bytes(self) -> int:
        """Bytes on disk, not compressed: bits, header, row, receipt, key table, document map."""
        return self.documents * (self.blob_bytes + 200)


def write_index(root: Path, shape: IndexShape, codec: Codec, seed: int) -> None:
    """Write packs, receipts and one version at `root`; documents are named by their number."""
    paths = IndexPaths(root)
    fingerprint, receipts, documents = write_units(paths, shape, codec, seed)
    publish(paths, fingerprint, receipts, documents)


def write_units(
    paths: IndexPaths, shape: IndexShape, codec: Codec, seed: int
) -> tuple[Fingerprint, list[Receipt], dict[str, list[bytes]]]:
    """Write packs and receipts, no version; return what `publish` makes one of."""
    rng = np.random.default_rng(seed)
    paths.create()
    fingerprint = Fingerprint({"benchmark": "lookup", "density": shape.density}, {})
    pool = _pool(shape, rng)
    receipts: list[Receipt] = []
    documents: dict[str, list[bytes]] = {}
    for number, rows in enumerate(_units(shape, pool, rng)):
        unit, build = f"unit-{number:05}", fingerprint.build_digest
        info = write_pack(paths, unit, build, rows, codec)
        keys = tuple(sorted(row.key.hex() for row in rows))
        receipts.append(commit(paths, Receipt(unit, build, info, keys, shape.tokens * len(rows))))
        first = len(documents)
        documents.update((f"doc-{first + i:08}", [row.key]) for i, row in enumerate(rows))
    return fingerprint, receipts, documents


def _pool(shape: IndexShape, rng: np.random.Generator) -> list[PackedMask]:
    pages = granules(shape.tokens, shape.page)
    size = (shape.layers, shape.heads, pages)
    packed = (bits.pack(rng.random(size) < shape.density, 1) for _ in range(POOL))
    return [PackedMask(MaskKind.CA, mask, pages, shape.page) for mask in packed]


def _units(
    shape: IndexShape, pool: list[PackedMask], rng: np.random.Generator
) -> Iterator[list[DocumentMasks]]:
    for numbers in np.array_split(np.arange(shape.documents), shape.packs):
        keys = rng.bytes(16 * len(numbers))
        anchors: NDArray[np.uint64] = rng.integers(1, 2**63, len(numbers), dtype=np.uint64)
        yield [
            DocumentMasks(keys[16 * i : 16 * i + 16], anchor, shape.tokens, pool[i % POOL])
            for i, anchor in enumerate(anchors.tolist())
        ]
