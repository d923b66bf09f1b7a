"""A writer may die between any two file operations: the index is the old or the new version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.garbage import collect_garbage
from sift_index.formats.manifest import current_version, read_manifest, versions
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import write_pack
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import Receipt, commit, read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import verify_index
from sift_index.formats.writer import publish
from tests.formats.crashes import every_kill, killed_after

MakeDocument = Callable[..., DocumentMasks]
State = tuple[int, dict[str, list[DocumentMasks | None]]]


def state(root: Path) -> State:
    reader = IndexReader.open(root)
    masks = {name: [reader.lookup(key) for key in keys] for name, keys in reader.keys.documents()}
    return reader.manifest.version, masks


class Commands:
    """Each writes the next version of an index, or finds that it did so before."""

    def __init__(self, fingerprint: Fingerprint, rows: list[DocumentMasks]) -> None:
        self.fingerprint, self.rows = fingerprint, rows

    def append(self, root: Path) -> None:
        paths, row = IndexPaths(root), self.rows[-1]
        build = self.fingerprint.build_digest
        if not paths.receipt_path("unit-new").exists():
            pack = write_pack(paths, "unit-new", build, [row])
            commit(paths, Receipt("unit-new", build, pack, (row.key.hex(),), row.tokens))
        current = read_manifest(paths)
        if "unit-new" not in current.units:
            new = {"new": [row.key]}
            publish(paths, self.fingerprint, read_receipts(paths), new, previous=current)

    def delete(self, root: Path) -> None:
        delete_documents(IndexPaths(root), ["a", "ab"], ignore_missing=True)

    def compact(self, root: Path) -> None:
        compact(IndexPaths(root))

    def gc(self, root: Path) -> None:
        collect_garbage(IndexPaths(root), 1, grace=0)


@pytest.fixture
def start(paths: IndexPaths, fingerprint: Fingerprint, make_document: MakeDocument) -> IndexPaths:
    """Two units, a deleted document and leftovers: work for each command."""
    rows = [make_document(n, n, la=n > 100) for n in (300, 90, 40)]
    build = fingerprint.build_digest
    units = {"u1": rows[:2], "u2": rows[2:]}
    receipts = [
        commit(
            paths,
            Receipt(
                unit,
                build,
                write_pack(paths, unit, build, part),
                tuple(sorted(row.key.hex() for row in part)),
                sum(row.tokens for row in part),
            ),
        )
        for unit, part in units.items()
    ]
    names = {"a": [rows[0].key], "ab": [row.key for row in rows[:2]], "c": [rows[2].key]}
    publish(paths, fingerprint, receipts, {**names, "d": [rows[1].key]})
    delete_documents(paths, ["d"])
    (paths.packs / ".tmp-1-ff").write_bytes(b"half")
    return paths


@pytest.fixture
def commands(fingerprint: Fingerprint, make_document: MakeDocument) -> Commands:
    return Commands(fingerprint, [make_document(200, 200)])


@pytest.mark.parametrize("name", ["append", "delete", "compact"])
def test_a_kill_leaves_the_old_or_the_new_version(
    start: IndexPaths, commands: Commands, tmp_path: Path, name: str
) -> None:
    command = getattr(commands, name)
    old, seen = state(start.root), set()
    for at, root in every_kill(start.root, tmp_path, command):
        new = state(tmp_path / "whole")
        assert new[0] == old[0] + 1
        found = state(root)
        assert found in (old, new), at
        seen.add(found[0])
        assert verify_index(IndexPaths(root)).problems == (), at
        command(root)
        assert state(root) == new, at
        assert verify_index(IndexPaths(root)).problems == (), at
        collect_garbage(IndexPaths(root), 1, grace=0)
        report = verify_index(IndexPaths(root))
        assert (report.problems, report.garbage) == ((), ()), at
        assert state(root) == new
    assert seen == {old[0], old[0] + 1}


def test_a_killed_gc_leaves_whole_versions(
    start: IndexPaths, commands: Commands, tmp_path: Path
) -> None:
    commands.delete(start.root)
    commands.compact(start.root)
    newest = state(start.root)
    whole = tmp_path / "whole"
    for at, root in every_kill(start.root, tmp_path, commands.gc):
        paths = IndexPaths(root)
        assert state(root) == newest, at
        assert verify_index(paths).problems == (), at
        for version in versions(paths):
            IndexReader.open(root, version).pin()
        commands.append(root)  # a build goes on
        commands.gc(root)
        assert versions(paths) == [newest[0] + 1]
        report = verify_index(paths)
        assert (report.problems, report.garbage) == ((), ()), at
    assert {path.name for path in whole.rglob("*.arrow")} == {
        read_manifest(IndexPaths(whole)).key_table.name,
        *(pack.name for pack in read_manifest(IndexPaths(whole)).packs),
    }


@pytest.mark.parametrize("name", ["append", "delete", "compact", "gc"])
def test_a_reader_answers_at_every_step_of_a_writer(
    start: IndexPaths, commands: Commands, name: str
) -> None:
    if name == "gc":
        commands.append(start.root)
        commands.compact(start.root)
    reader = IndexReader.open(start.root, 1)
    reader.pin()
    expected = [reader.lookup(key.tobytes()) for key in reader.keys.keys()]
    newest = current_version(start)

    def look() -> None:
        assert [reader.lookup(key.tobytes()) for key in reader.keys.keys()] == expected
        assert reader.document_keys("d")
        # Who opens the index now gets a whole version.
        version, masks = state(start.root)
        assert version in (newest, (newest or 0) + 1)
        assert None not in [row for rows in masks.values() for row in rows]

    with killed_after(None, look) as switch:
        getattr(commands, name)(start.root)
    assert switch.count > 3
    look()
