"""Writes the golden indexes of format version 1, byte for byte as they are checked in.

python -m tests.formats.golden.generate_v1 [FOLDER]

They are kept for ever: every later reader must read them. A later format gets its own folder and
its own copy of this script; this one refuses to run with another format version.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from sift_index.formats import bits
from sift_index.formats.canonical import dump_checked
from sift_index.formats.failures import FailedDocument, record_failure
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import anchor, document_key
from sift_index.formats.manifest import Manifest
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask, granules
from sift_index.formats.packs import Codec, write_pack
from sift_index.formats.receipts import Receipt, Stat, commit
from sift_index.formats.schema import FORMAT_VERSION
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish
from tests.formats.golden.content import INDEXES, Document, Index

FOLDER = Path(__file__).parent / "v1"
REFUSED = Path(__file__).parent / "refused"
CREATED = "2026-01-01T00:00:00Z"


def write_all(folder: Path, refused: Path) -> None:
    """Write every golden index under `folder`, and manifests of the future under `refused`."""
    if FORMAT_VERSION != 1:
        raise SystemExit(f"this script writes format 1, the package writes {FORMAT_VERSION}")
    for name, index in INDEXES.items():
        manifest = write_index(folder / name, index)
    _write_future(refused, manifest)


def write_index(root: Path, index: Index) -> Manifest:
    """Write one index, a version for each of its units, and return the last manifest."""
    paths, build = IndexPaths(root), fingerprint(index)
    paths.create()
    manifest, receipts = None, []
    for (unit, zstd, documents), names in zip(index.units, index.names, strict=True):
        receipts.append(_commit(paths, unit, documents, index, build.build_digest, zstd))
        keys = {name: [key(d) for d in parts] for name, parts in names.items()}
        manifest = publish(
            paths, build, receipts, keys, previous=manifest, writer="golden", created=CREATED
        )
    record_failure(paths, FailedDocument("empty.txt", "the document has no tokens"))
    assert manifest is not None
    return manifest


def key(document: Document) -> bytes:
    """Return the key of a golden document."""
    return document_key(_ids(document))


def masks(document: Document, index: Index) -> DocumentMasks:
    """Return the row that the project stores for a golden document."""
    ca = _mask(document.ca, MaskKind.CA, granules(document.tokens, index.page), index)
    la = None
    if document.la is not None:
        la = _mask(document.la, MaskKind.LA, granules(document.tokens, 128), index)
    return DocumentMasks(key(document), anchor(_ids(document)), document.tokens, ca, la)


def _ids(document: Document) -> list[int]:
    return [*range(document.first, document.first + document.tokens)]


def _mask(rows: tuple[str, ...], kind: MaskKind, entries: int, index: Index) -> PackedMask:
    values = np.array([[int(digit) for digit in row] for row in rows], np.uint8)
    values = values.reshape(index.layers, index.heads, -1)
    granule = index.page if kind == MaskKind.CA else 128
    return PackedMask(kind, bits.pack(values, index.levels), entries, granule, index.levels)


def _commit(
    paths: IndexPaths, unit: str, documents: tuple[Document, ...], index: Index, build: str, z: bool
) -> Receipt:
    rows = [masks(document, index) for document in documents]
    info = write_pack(paths, unit, build, rows, Codec.ZSTD if z else Codec.RAW)
    keys = tuple(sorted(row.key.hex() for row in rows))
    failed = (FailedDocument("empty.txt", "the document has no tokens"),)
    stats: dict[str, Stat] = {"seconds": 0.5, "worker": "w0", "device": "cpu"}
    return commit(
        paths, Receipt(unit, build, info, keys, sum(d.tokens for d in rows), failed, stats)
    )


def fingerprint(index: Index) -> Fingerprint:
    """Return the fingerprint of a golden index."""
    layout = {
        "tile": 128, "layers": index.layers, "heads": index.heads, "mask_heads": index.heads,
        "page_size": index.page, "levels": index.levels, "boundary": 128, "neighbour": True,
    }  # fmt: skip
    serve = {"architecture": {"layers": index.layers}, "layout": layout, "weights": "0" * 32}
    texts = {"prefix": "", "span_prefix": "", "span_suffix": "\n"}
    build = {"policy": {"name": "probe", "ca": 0.5}, "longest": 2048, **texts, "serve": serve}
    return Fingerprint(build, serve, {"dtype": "bfloat16", "model": "golden", "prefix": "0" * 32})


def _write_future(folder: Path, manifest: Manifest) -> None:
    """Two manifests that a reader of version 1 must refuse by name, though all else is right."""
    for name, changes in (
        ("unknown-feature", {"reader_features": ["rotated-bits"]}),
        ("format-2", {"format_version": 2}),
    ):
        root = folder / name
        root.mkdir(parents=True, exist_ok=True)
        data = dump_checked({**manifest.to_json(), **changes})
        (root / "manifest-00000001.json").write_bytes(data)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    write_all(target, REFUSED if target == FOLDER else target / "refused")
