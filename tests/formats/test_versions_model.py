"""Any sequence of append, delete, compact and gc reads like a dict of documents."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.garbage import collect_garbage
from sift_index.formats.manifest import current_version, read_manifest, versions
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import write_pack
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import Receipt, commit, read_receipts, reuse_receipt
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import verify_index
from sift_index.formats.writer import publish

MakeDocument = Callable[..., DocumentMasks]
Documents = dict[str, tuple[bytes, ...]]

IDS = st.sampled_from("abcdef")
TEXTS = st.integers(0, 7)
DOCUMENTS = st.dictionaries(IDS, st.lists(TEXTS, max_size=3), min_size=1)
APPEND = st.tuples(st.just("append"), DOCUMENTS, st.booleans())
DELETE = st.tuples(st.just("delete"), st.sets(IDS, min_size=1, max_size=3))
COMPACT = st.tuples(st.just("compact"), st.sampled_from([1, 900, 1 << 20]))
GC = st.tuples(st.just("gc"), st.integers(1, 3))
STEPS = st.lists(st.one_of(APPEND, APPEND, DELETE, DELETE, COMPACT, GC), min_size=1, max_size=9)


class Site:
    """An index and what it should hold: documents and findable keys of each version."""

    def __init__(self, root: Path, fingerprint: Fingerprint, rows: list[DocumentMasks]) -> None:
        self.paths, self.fingerprint = IndexPaths(root), fingerprint
        self.rows = {row.key: row for row in rows}
        self.texts = [row.key for row in rows]
        self.versions: dict[int, tuple[Documents, set[bytes]]] = {0: ({}, set())}
        self.paths.create()

    def append(self, documents: Mapping[str, Sequence[int]], revive: bool) -> None:
        """As a build does: a unit of what is missing, or old ones that have it, and more."""
        named = {name: tuple(self.texts[t] for t in texts) for name, texts in documents.items()}
        held, keys = self.versions[max(self.versions)]
        missing = sorted({key for pieces in named.values() for key in pieces} - keys)
        receipts = read_receipts(self.paths)
        old = {bytes.fromhex(key) for receipt in receipts for key in receipt.keys}
        if missing and not (revive and old.issuperset(missing)):
            receipts.append(self._unit(missing))
        previous = read_manifest(self.paths) if current_version(self.paths) else None
        publish(self.paths, self.fingerprint, receipts, named, previous=previous)
        self._publish({**held, **named}, keys | {*missing})

    def delete(self, names: set[str]) -> None:
        held, keys = self.versions[max(self.versions)]
        if not current_version(self.paths):
            return
        left = {name: pieces for name, pieces in held.items() if name not in names}
        done = delete_documents(self.paths, names, ignore_missing=True)
        assert (done is None) == (left == held)
        if done:
            used = {key for pieces in left.values() for key in pieces}
            theirs = {key for name in names for key in held.get(name, ())}
            self._publish(left, keys - (theirs - used))

    def compact(self, size: int) -> None:
        if current_version(self.paths) and compact(self.paths, size):
            self._publish(*self.versions[max(self.versions)])

    def gc(self, keep: int) -> None:
        if current_version(self.paths):
            collect_garbage(self.paths, keep, grace=0)
            newest = sorted(self.versions)[-keep:]
            self.versions = {number: self.versions[number] for number in newest}

    def check(self) -> None:
        assert versions(self.paths) == [number for number in sorted(self.versions) if number]
        for number in versions(self.paths):
            documents, keys = self.versions[number]
            reader = IndexReader.open(self.paths.root, number)
            assert dict(reader.keys.documents()) == documents
            assert {key.tobytes() for key in reader.keys.keys()} == keys
            for key in self.texts:
                assert reader.lookup(key) == (self.rows[key] if key in keys else None)
        if versions(self.paths):
            assert verify_index(self.paths).problems == ()

    def _unit(self, keys: list[bytes]) -> Receipt:
        unit = f"u{blake2b(b''.join(keys), digest_size=8).hexdigest()}"
        build = self.fingerprint.build_digest
        if earlier := reuse_receipt(self.paths, unit):
            return earlier
        rows = [self.rows[key] for key in keys]
        pack = write_pack(self.paths, unit, build, rows)
        named = tuple(key.hex() for key in keys)
        return commit(
            self.paths, Receipt(unit, build, pack, named, sum(row.tokens for row in rows))
        )

    def _publish(self, documents: Documents, keys: set[bytes]) -> None:
        self.versions[max(self.versions) + 1] = (documents, keys)
        self.versions.pop(0, None)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_any_sequence_reads_like_a_dict(
    steps: list[tuple[Any, ...]], fingerprint: Fingerprint, make_document: MakeDocument
) -> None:
    rows = [make_document(20 + 30 * n, n, la=n % 2 == 0) for n in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder) / "index", fingerprint, rows)
        for name, *arguments in steps:
            getattr(site, name)(*arguments)
            site.check()
