"""Writers in several processes at once: each change happens, once, or its writer is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.errors import CommitConflictError, IntegrityError
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.garbage import collect_garbage
from sift_index.formats.manifest import versions
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import Receipt
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import verify_index
from sift_index.formats.writer import publish
from tests.formats.conftest import SmallIndex

ROOT = Path(__file__).parents[2]
WRITERS, EACH = 3, 5
WRITER = """
import sys
from pathlib import Path
from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.errors import CommitConflictError
from sift_index.formats.store import IndexPaths

paths = IndexPaths(Path(sys.argv[1]))
lost = 0
for name in sys.argv[2:]:
    while True:
        try:
            delete_documents(paths, [name])
            break
        except CommitConflictError:
            lost += 1
    try:
        compact(paths)
    except CommitConflictError:
        lost += 1
print(lost)
"""


def test_no_deletion_is_lost_and_none_happens_twice(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    make_document: Callable[..., DocumentMasks],
    commit_unit: Callable[..., Receipt],
) -> None:
    rows = [make_document(30 + n, n, la=False) for n in range(WRITERS * EACH + 2)]
    build = fingerprint.build_digest
    units = [commit_unit(paths, f"u{n}", rows[n::4], build) for n in range(4)]
    publish(paths, fingerprint, units, {str(n): [row.key] for n, row in enumerate(rows)})
    names = [[str(n) for n in range(w * EACH, (w + 1) * EACH)] for w in range(WRITERS)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(paths.root), *part],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part in names
    ]
    ended = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * WRITERS, ended
    index = IndexReader.open(paths.root)
    assert sorted(index.document_ids()) == ["15", "16"]
    assert [row for row in rows if row.key in index] == rows[-2:]
    assert [index.lookup(row.key) for row in rows[-2:]] == rows[-2:]
    present = versions(paths)
    assert present == [*range(1, len(present) + 1)]
    counts = [
        IndexReader.open(paths.root, version).manifest.counts.documents for version in present
    ]
    deleted = [before - after for before, after in zip(counts, counts[1:], strict=False)]
    assert sorted(set(deleted)) in ([1], [0, 1])
    assert sum(deleted) == WRITERS * EACH
    assert verify_index(paths).problems == ()


def test_an_append_whose_packs_were_collected_may_be_tried_again(
    paths: IndexPaths,
    fingerprint: Fingerprint,
    make_document: Callable[..., DocumentMasks],
    commit_unit: Callable[..., Receipt],
) -> None:
    one, two = make_document(40, 1), make_document(40, 2)
    build = fingerprint.build_digest
    receipts = [commit_unit(paths, "unit-a", [one], build)]
    base = publish(paths, fingerprint, receipts, {"a": [one.key]})
    receipts.append(commit_unit(paths, "unit-b", [two], build))
    # Another build publishes the unit; then it is deleted, and what it left is collected.
    publish(paths, fingerprint, receipts, {"b": [two.key]}, previous=base)
    delete_documents(paths, ["b"])
    compact(paths)
    collect_garbage(paths, keep=1, grace=0)
    assert not paths.pack_path(receipts[1].pack.name).exists()
    with pytest.raises(CommitConflictError, match="run the same command again"):
        publish(paths, fingerprint, receipts, {"b": [two.key]}, previous=base)
    assert verify_index(paths).ok


def test_an_append_whose_pack_is_lost_for_no_reason_is_damage(small_index: SmallIndex) -> None:
    paths, receipt = small_index.paths, small_index.receipts[1]
    paths.manifest_path(2).unlink()
    paths.pack_path(receipt.pack.name).unlink()
    first = small_index.versions[0]
    documents = {"c": [small_index.rows[2].key]}
    with pytest.raises(IntegrityError, match="unit-b"):
        publish(paths, first.fingerprint, small_index.receipts, documents, previous=first)
