"""Small documents and indexes that every format test builds on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sift_index.formats import bits
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import anchor, document_key
from sift_index.formats.manifest import Manifest
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask, granules
from sift_index.formats.packs import Codec, write_pack
from sift_index.formats.receipts import Receipt, commit
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish
from tests.object_store import Bucket

MakeDocument = Callable[..., DocumentMasks]
CommitUnit = Callable[..., Receipt]


def _mask(
    rng: np.random.Generator,
    kind: MaskKind,
    entries: int,
    granule: int,
    shape: tuple[int, int, int],
) -> PackedMask:  # noqa: E501
    layers, heads, levels = shape
    row = bits.triangle(entries) if kind == MaskKind.LA else entries
    values = rng.integers(0, 1 << levels, (layers, heads, row), dtype=np.uint8)
    return PackedMask(kind, bits.pack(values, levels), entries, granule, levels)


def _document(
    tokens: int = 300,
    seed: int = 0,
    *,
    la: bool = True,
    layers: int = 2,
    heads: int = 3,
    page: int = 32,
    levels: int = 1,
    key: bytes | None = None,
) -> DocumentMasks:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 50_000, tokens)
    shape = (layers, heads, levels)
    ca = _mask(rng, MaskKind.CA, granules(tokens, page), page, shape)
    own = _mask(rng, MaskKind.LA, granules(tokens, 128), 128, shape) if la else None
    return DocumentMasks(key or document_key(ids), anchor(ids), tokens, ca, own)


@pytest.fixture(scope="session")
def make_document() -> MakeDocument:
    """Random masks of a random document; same arguments, same result."""
    return _document


@pytest.fixture
def paths(tmp_path: Path) -> IndexPaths:
    """An empty index folder."""
    found = IndexPaths(tmp_path / "index")
    found.create()
    return found


@pytest.fixture(scope="session")
def fingerprint() -> Fingerprint:
    return Fingerprint({"policy": "probe", "page": 32}, {"layers": 2}, {"dtype": "bfloat16"})


def _commit(
    paths: IndexPaths,
    unit: str,
    rows: Sequence[DocumentMasks],
    build: str,
    codec: Codec = Codec.RAW,
) -> Receipt:
    info = write_pack(paths, unit, build, rows, codec)
    keys = tuple(sorted(row.key.hex() for row in rows))
    return commit(paths, Receipt(unit, build, info, keys, sum(row.tokens for row in rows)))


@pytest.fixture(scope="session")
def commit_unit() -> CommitUnit:
    """Write the pack and receipt of one unit."""
    return _commit


@dataclass(frozen=True)
class SmallIndex:
    """Two versions over three documents; the second version added the last one."""

    paths: IndexPaths
    rows: tuple[DocumentMasks, ...]
    receipts: tuple[Receipt, ...]
    versions: tuple[Manifest, ...]


def _small_index(paths: IndexPaths, fingerprint: Fingerprint) -> SmallIndex:
    rows = (_document(300), _document(9, 1, la=False), _document(40, 2, la=False))
    build = fingerprint.build_digest
    one = _commit(paths, "unit-a", rows[:2], build)
    first = publish(
        paths, fingerprint, [one], {"a": [rows[0].key], "ab": [r.key for r in rows[:2]]}
    )
    two = _commit(paths, "unit-b", rows[2:], build, Codec.ZSTD)
    second = publish(paths, fingerprint, [one, two], {"c": [rows[2].key]}, previous=first)
    return SmallIndex(paths, rows, (one, two), (first, second))


@pytest.fixture
def small_index(paths: IndexPaths, fingerprint: Fingerprint) -> SmallIndex:
    return _small_index(paths, fingerprint)


@pytest.fixture
def remote_index(bucket: Bucket, fingerprint: Fingerprint, tmp_path: Path) -> SmallIndex:
    """The small index in an object store; nothing of it is in the cache."""
    paths = IndexPaths(bucket.path("index"))
    paths.create()
    index = _small_index(paths, fingerprint)
    shutil.rmtree(tmp_path / "cache")
    return index
