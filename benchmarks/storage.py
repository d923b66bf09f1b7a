"""Bytes of an index against bf16 KV, everything counted: rows, pack, key table, manifest, receipt.

python -m benchmarks.storage

Sizes of raw masks depend on shapes alone, so the bits are random and no model is loaded: documents
of 1,024 tokens in the shape of Llama-3.1-8B under the default policy.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from sift_index.evaluation.results import merge_results, result_rows
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import write_pack
from sift_index.formats.receipts import Receipt, commit
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish
from sift_index.models.geometry import ModelGeometry
from sift_index.selection.extractor import pack_masks
from sift_index.selection.policy import load_policy
from sift_index.selection.rules import LayerLevels, mask_layout

RESULTS = Path(__file__).parent / "results" / "storage.json"
CASE = "llama-3.1-8b-1k-docs"
SHAPE = ModelGeometry("llama", 32, 32, 8, 128, 4096, 128256, 131072)
DOCUMENTS = 4096
TOKENS = 1024
UNIT = 64


def main() -> None:
    """Write an index of random masks, weigh it, and record how far below KV it is."""
    with tempfile.TemporaryDirectory() as folder:
        total = _written_bytes(Path(folder) / "index")
    kv = SHAPE.kv_bytes(TOKENS) * DOCUMENTS
    values = [
        (CASE, "x_below_kv", kv / total, "x"),
        (CASE, "bytes_per_document", total / DOCUMENTS, "bytes"),
        (CASE, "documents", float(DOCUMENTS), "documents"),
    ]
    rows = result_rows(values, torch.device("cpu"), baseline="bf16 KV of the same tokens")
    merge_results(RESULTS, "storage", rows)
    for row in rows:
        print(f"{row.metric:20} {row.value:12,.1f} {row.unit}")


def _written_bytes(root: Path) -> int:
    paths = IndexPaths(root)
    paths.create()
    fingerprint = Fingerprint({"benchmark": "storage"}, {})
    documents: dict[str, list[bytes]] = {}
    receipts = []
    for unit, rows in _units():
        pack = write_pack(paths, unit, fingerprint.build_digest, rows)
        keys = tuple(sorted(row.key.hex() for row in rows))
        receipt = Receipt(unit, fingerprint.build_digest, pack, keys, TOKENS * len(rows))
        receipts.append(commit(paths, receipt))
        documents |= {f"{len(documents) + i:08}": [row.key] for i, row in enumerate(rows)}
    publish(paths, fingerprint, receipts, documents)
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())


def _units() -> Iterator[tuple[str, list[DocumentMasks]]]:
    generator = np.random.default_rng(0)
    for number in range(DOCUMENTS // UNIT):
        yield f"unit-{number:04}", [_document(generator) for _ in range(UNIT)]


def _document(generator: np.random.Generator) -> DocumentMasks:
    policy = load_policy("probe")
    layout = mask_layout(policy, SHAPE)
    ids = generator.integers(0, SHAPE.vocab_size, TOKENS).tolist()
    pages = -(-TOKENS // layout.page_size)
    bits = generator.random((layout.layers, layout.mask_heads, pages)) < 0.3
    levels = [LayerLevels(torch.from_numpy(layer.astype(np.uint8)), None) for layer in bits]
    return pack_masks(layout, ids, levels)


if __name__ == "__main__":
    main()
