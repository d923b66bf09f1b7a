"""Parquet and back: nothing lost, nothing damaged let through, readable by other tools."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sift_index.formats import alignment, exchange, export
from sift_index.formats.compaction import compact
from sift_index.formats.deletion import delete_documents
from sift_index.formats.errors import (
    BuildError,
    FeatureError,
    FormatError,
    IndexNotFoundError,
    IntegrityError,
    UsageError,
)
from sift_index.formats.exchange import FILES_NAME, ROWS_NAME, table_schema, table_writer
from sift_index.formats.export import export_index
from sift_index.formats.failures import FailedDocument, record_failure
from sift_index.formats.garbage import collect_garbage
from sift_index.formats.importing import import_index
from sift_index.formats.packs import Codec
from sift_index.formats.reader import IndexReader
from sift_index.formats.store import IndexPaths, file_names
from sift_index.formats.writer import publish
from tests.formats.files import rewrite

if TYPE_CHECKING:
    from tests.formats.conftest import CommitUnit, MakeDocument, SmallIndex


@dataclass(frozen=True)
class Busy:
    """An index with everything an export must keep, at version 2, and its two export forms."""

    paths: IndexPaths
    keys: tuple[bytes, ...]

    def files(self) -> dict[str, bytes]:
        """What version 2 consists of: version 1's manifest and key table are not part of it."""
        first = {self.paths.manifest_path(1), self.paths.keytable_path(1)}
        return contents(self.paths.root, first)


def contents(root: Path, but: set[Path] = frozenset()) -> dict[str, bytes]:  # type: ignore[assignment]
    found = (path for path in root.rglob("*") if path.is_file() and path not in but)
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


@pytest.fixture
def busy(
    small_index: SmallIndex, make_document: MakeDocument, commit_unit: CommitUnit, fingerprint: Any
) -> Busy:
    """Shared keys, a split document, one without keys, failures, an empty unit, probe texts."""
    paths, keys = small_index.paths, [row.key for row in small_index.rows]
    empty = commit_unit(paths, "unit-none", [], fingerprint.build_digest)
    twice = commit_unit(paths, "unit-z", small_index.rows[:1], fingerprint.build_digest)
    documents = {"é/ü": [keys[1], keys[0], keys[1]], "none": [], "a b": [keys[2]]}
    paths.manifest_path(2).unlink()
    paths.keytable_path(2).unlink()
    receipts = [*small_index.receipts, twice, empty]
    publish(paths, fingerprint, receipts, documents, previous=small_index.versions[0])
    record_failure(paths, FailedDocument("notes/x", "no text"))
    paths.probes.mkdir()
    (paths.probes / "probe-1.txt").write_text("What did the author say?")
    return Busy(paths, tuple(keys))


@pytest.fixture(params=["index.parquet", "folder"])
def exported(busy: Busy, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    export_index(busy.paths, tmp_path / request.param)
    return tmp_path / str(request.param)


def rows_file(exported: Path) -> Path:
    return exported / ROWS_NAME if exported.is_dir() else exported


def test_there_and_back_every_file_is_the_same(busy: Busy, exported: Path, tmp_path: Path) -> None:
    report = import_index(exported, tmp_path / "again")
    assert report.identical
    assert contents(tmp_path / "again") == busy.files()
    assert "packs/unit-none-" in " ".join(busy.files())  # the empty unit is part of what is kept


def test_an_imported_index_verifies_and_answers_alike(
    busy: Busy, exported: Path, tmp_path: Path
) -> None:
    import_index(exported, tmp_path / "again")
    before, after = IndexReader.open(busy.paths.root), IndexReader.open(tmp_path / "again")
    report = after.verify()
    report.require_clean()
    assert report.garbage == ()
    assert [after.lookup(key) for key in busy.keys] == [before.lookup(key) for key in busy.keys]
    assert [*after.keys.documents()] == [*before.keys.documents()]
    assert after.document_keys("é/ü") == (busy.keys[1], busy.keys[0], busy.keys[1])
    assert after.document_keys("none") == () and "none" in [*after.document_ids()]


def test_rows_are_what_the_index_says(busy: Busy, exported: Path) -> None:
    rows = pq.read_table(rows_file(exported)).to_pylist()
    current = {row["key"]: row for row in rows if row["current"]}
    assert len(rows) == 4 and {*current} == {*busy.keys}  # one row is in a later pack again
    ids = dict(zip(current[busy.keys[1]]["document_ids"],
                   current[busy.keys[1]]["document_pieces"], strict=False))  # fmt: skip
    assert ids == {"ab": 1, "é/ü": 2}
    assert [row["document_ids"] for row in rows if not row["current"]] == [[]]
    assert [(row["pack"], row["row"]) for row in rows] == sorted(
        (row["pack"], row["row"]) for row in rows
    )
    assert current[busy.keys[1]]["anchor"] == 0  # nine tokens have none


def test_many_row_groups_give_the_same(
    busy: Busy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "GROUP_BYTES", 20)
    export_index(busy.paths, tmp_path / "many")
    assert pq.ParquetFile(tmp_path / "many" / ROWS_NAME).num_row_groups == 4
    assert pq.ParquetFile(tmp_path / "many" / FILES_NAME).num_row_groups > 3
    import_index(tmp_path / "many", tmp_path / "again")
    assert contents(tmp_path / "again") == busy.files()


def test_same_index_same_parquet(busy: Busy, tmp_path: Path) -> None:
    for name in ("one.parquet", "two.parquet"):
        export_index(busy.paths, tmp_path / name)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_an_older_version_can_be_exported(small_index: SmallIndex, tmp_path: Path) -> None:
    report = export_index(small_index.paths, tmp_path / "old", version=1)
    assert (report.version, report.rows, report.receipts, report.left_out) == (1, 2, 1, 1)
    import_index(tmp_path / "old", tmp_path / "again")
    reader = IndexReader.open(tmp_path / "again")
    assert reader.manifest == small_index.versions[0]
    assert reader.lookup(small_index.rows[2].key) is None


def test_an_index_without_documents_survives(
    paths: IndexPaths, fingerprint: Any, tmp_path: Path
) -> None:
    publish(paths, fingerprint, [], {})
    for name in ("none.parquet", "none"):
        export_index(paths, tmp_path / name)
        import_index(tmp_path / name, tmp_path / f"again-{name}")
        assert contents(tmp_path / f"again-{name}") == contents(paths.root)


def test_other_arrow_bytes_get_new_names_and_the_same_content(
    busy: Busy, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "ALIGNMENT", 128)  # stands in for another Arrow version
    report = import_index(exported, tmp_path / "again")
    assert not report.identical
    before, after = IndexReader.open(busy.paths.root), IndexReader.open(tmp_path / "again")
    assert after.verify().problems == ()
    assert {pack.name for pack in before.manifest.packs}.isdisjoint(
        pack.name for pack in after.manifest.packs
    )
    assert [after.lookup(key) for key in busy.keys] == [before.lookup(key) for key in busy.keys]
    assert [*after.keys.documents()] == [*before.keys.documents()]


def test_a_flipped_bit_is_an_error_or_changes_nothing(
    busy: Busy, exported: Path, tmp_path: Path
) -> None:
    """Flip one bit at about 80 places of each file."""
    wanted = busy.files()
    caught = 0
    for path in [exported] if exported.is_file() else [*exported.rglob("*.parquet")]:
        data = path.read_bytes()
        for place in range(0, len(data), max(1, len(data) // 80)):
            rewrite(path, data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
            target = tmp_path / f"again-{path.name}-{place}"
            try:
                import_index(exported, target)
            except FormatError as error:
                caught += 1
                assert str(exported) in str(error)
                assert not target.exists()
            else:
                assert contents(target) == wanted
        rewrite(path, data)
    assert caught > 40
    assert not [name for name in tmp_path.iterdir() if name.name.startswith(".tmp-")]


def test_a_cut_file_is_an_error(exported: Path, tmp_path: Path) -> None:
    path = rows_file(exported)
    data = path.read_bytes()
    for size in range(0, len(data), len(data) // 40):
        rewrite(path, data[:size])
        with pytest.raises(IntegrityError, match="whole Parquet file.*export the index again"):
            import_index(exported, tmp_path / "again")


def test_a_corrupted_page_is_named(exported: Path, tmp_path: Path) -> None:
    path = rows_file(exported)
    column = pq.ParquetFile(path).metadata.row_group(0).column(4)
    assert column.path_in_schema == "ca"
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    rewrite(path, data)
    with pytest.raises(IntegrityError, match="row group 0.*CRC checksum"):
        import_index(exported, tmp_path / "again")


def changed(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write the rows of an export again, changed, as an editor that keeps metadata would."""
    file = pq.ParquetFile(path)
    metadata, table = dict(file.metadata.metadata), change(file.read())
    kept = {k: v for k, v in metadata.items() if k.startswith(b"sift.")}
    kept |= {k: v for k, v in (table.schema.metadata or {}).items() if v != kept.get(k)}
    path.unlink()
    pq.write_table(table.replace_schema_metadata(kept), path)


def without(name: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.drop_columns([name])


def with_metadata(name: bytes, value: bytes) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.replace_schema_metadata({name: value})


def with_ids(table: pa.Table) -> pa.Table:
    place = table.schema.get_field_index("document_ids")
    lists = [["x"] * len(ids) for ids in table["document_ids"].to_pylist()]
    return table.set_column(place, table.schema.field(place), pa.array(lists))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (without("ca"), IntegrityError, r"the columns \['key'.*without \['ca'\]"),
        (without("document_ids"), IntegrityError, r"without \['document_ids'\]"),
        (with_metadata(b"sift.exchange", b"2"), FeatureError, "exchange = 1, found b'2'; upgrade"),
        (with_metadata(b"sift.format", b"2"), FeatureError, "format = 1, found b'2'; upgrade"),
        (with_metadata(b"sift.kind", b"files"), IntegrityError, "'rows'.*found b'files'"),
        (with_metadata(b"sift.manifest", b"00"), IntegrityError, "tables of one index"),
        (lambda table: table.slice(1), IntegrityError, "rows of pack 0"),
        (lambda table: table.slice(0, 1), IntegrityError, "rows of pack"),
        (lambda table: pa.concat_tables([table, table]), IntegrityError, "rows of 3 packs"),
        (with_ids, IntegrityError, "keys and documents of digest"),
    ],
)
def test_an_edited_export_is_refused_by_name(
    exported: Path, tmp_path: Path, change: Any, error: type[Exception], message: str
) -> None:
    changed(rows_file(exported), change)
    with pytest.raises(error, match=message):
        import_index(exported, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_foreign_files_are_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "foreign.parquet")
    with pytest.raises(IntegrityError, match="an exported index.*found None.*export"):
        import_index(tmp_path / "foreign.parquet", tmp_path / "again")
    (tmp_path / "text.parquet").write_text("no parquet at all")
    with pytest.raises(IntegrityError, match="text.parquet: expected a whole Parquet file"):
        import_index(tmp_path / "text.parquet", tmp_path / "again")
    (tmp_path / "empty").mkdir()
    with pytest.raises(IntegrityError, match=ROWS_NAME):
        import_index(tmp_path / "empty", tmp_path / "again")


def test_rows_without_their_side_table_are_refused(
    busy: Busy, small_index: SmallIndex, tmp_path: Path
) -> None:
    export_index(busy.paths, tmp_path / "out")
    with pytest.raises(IntegrityError, match="sift.files.*give its folder"):
        import_index(tmp_path / "out" / ROWS_NAME, tmp_path / "again")
    export_index(busy.paths, tmp_path / "older", version=1)
    (tmp_path / "out" / FILES_NAME).unlink()
    with pytest.raises(IntegrityError, match="files.parquet"):
        import_index(tmp_path / "out", tmp_path / "again")
    (tmp_path / "older" / FILES_NAME).rename(tmp_path / "out" / FILES_NAME)
    with pytest.raises(IntegrityError, match="tables of one index"):
        import_index(tmp_path / "out", tmp_path / "again")


def forged(exported: Path, rename: Callable[[str], str]) -> None:
    """Give the side files of a folder other names."""
    path = exported / FILES_NAME
    file = pq.ParquetFile(path)
    table = file.read()
    names = pa.array([rename(name) for name in table["name"].to_pylist()])
    path.unlink()
    pq.write_table(table.set_column(0, table.schema.field(0), names), path)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "commits/../../x", "packs/x", "a/b/c", ""])
def test_a_side_file_cannot_leave_the_index(busy: Busy, tmp_path: Path, name: str) -> None:
    export_index(busy.paths, tmp_path / "out")
    forged(tmp_path / "out", lambda old: name if old.startswith("probes/") else old)
    with pytest.raises(IntegrityError, match="plain file name|forged"):
        import_index(tmp_path / "out", tmp_path / "deep" / "again")
    assert not [*tmp_path.rglob("x")]


def test_nothing_is_written_over(busy: Busy, exported: Path, tmp_path: Path) -> None:
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="a path that is free"):
        export_index(busy.paths, exported)
    with pytest.raises(UsageError, match="a path that is free"):
        import_index(exported, busy.paths.root)
    assert contents(tmp_path) == before
    (tmp_path / "empty").mkdir()
    import_index(exported, tmp_path / "empty")
    assert contents(tmp_path / "empty") == busy.files()


def test_a_name_taken_meanwhile_is_kept(
    busy: Busy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files = exchange.write_files

    def slow(*arguments: Any) -> int:
        (tmp_path / "out.parquet").write_text("mine")
        return write_files(*arguments)

    monkeypatch.setattr(export, "write_files", slow)
    with pytest.raises(UsageError, match="a path that is free"):
        export_index(busy.paths, tmp_path / "out.parquet")
    assert (tmp_path / "out.parquet").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"index", "out.parquet"}


@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_a_damaged_index_is_not_exported(busy: Busy, tmp_path: Path, name: str) -> None:
    path = next(path for path in busy.paths.packs.iterdir() if path.name.startswith("unit-a"))
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    rewrite(path, data)
    with pytest.raises(IntegrityError, match=path.name):
        export_index(busy.paths, tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"index"}


def test_no_index_is_said_so(busy: Busy, tmp_path: Path) -> None:
    with pytest.raises(IndexNotFoundError):
        export_index(IndexPaths(tmp_path / "nothing"), tmp_path / "out")


def test_every_page_has_a_checksum_and_is_zstd(exported: Path) -> None:
    files = [exported] if exported.is_file() else [*exported.rglob("*.parquet")]
    for path in files:
        metadata = pq.ParquetFile(path).metadata
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(0).column(column)
            assert chunk.compression == "ZSTD"


def test_the_side_table_of_a_single_file_is_the_one_of_a_folder(busy: Busy, tmp_path: Path) -> None:
    for name in ("one.parquet", "one"):
        export_index(busy.paths, tmp_path / name)
    metadata = pq.ParquetFile(tmp_path / "one.parquet").metadata.metadata
    embedded = base64.b64decode(metadata[exchange.META_FILES])
    assert embedded == (tmp_path / "one" / FILES_NAME).read_bytes()


def test_zstd_blobs_travel_as_they_are(
    paths: IndexPaths, make_document: MakeDocument, commit_unit: CommitUnit,
    fingerprint: Any, tmp_path: Path,
) -> None:  # fmt: skip
    rows = [make_document(2000, seed, levels=2) for seed in range(20)]
    receipt = commit_unit(paths, "u", rows, fingerprint.build_digest, Codec.ZSTD)
    publish(paths, fingerprint, [receipt], {str(i): [row.key] for i, row in enumerate(rows)})
    export_index(paths, tmp_path / "out.parquet")
    assert import_index(tmp_path / "out.parquet", tmp_path / "again").identical
    assert contents(tmp_path / "again") == contents(paths.root)


@pytest.fixture
def shown(exported: Path) -> Iterator[str]:
    yield str(rows_file(exported))


def test_datasets_loads_it(busy: Busy, exported: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    where: dict[str, Any] = {"data_files": str(exported)}
    if exported.is_dir():  # the side table beside the rows is passed over
        where = {"data_dir": str(exported)}
    rows = load_dataset("parquet", **where, cache_dir=str(tmp_path / "cache"))["train"]
    assert {row["key"] for row in rows} == {*busy.keys}
    assert rows.column_names[:3] == ["key", "anchor", "tokens"]


def test_duckdb_opens_it(busy: Busy, shown: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(
        f"SELECT key, tokens FROM '{shown}' WHERE current AND list_contains(document_ids, 'a b')"
    ).fetchall()
    assert found == [(busy.keys[2], 40)]


def test_pandas_opens_it(busy: Busy, exported: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = pandas.read_parquet(exported)
    assert {*rows.key} == {*busy.keys}
    assert str(rows.anchor.dtype) == "uint64"  # a null would have made it a float, inexact


def test_unknown_reader_features_of_the_index_are_refused(busy: Busy, tmp_path: Path) -> None:
    """An export of a later index, told to this reader by its manifest."""
    from hashlib import sha256

    from sift_index.formats.canonical import dump_checked, load_checked

    export_index(busy.paths, tmp_path / "out")
    path = tmp_path / "out" / FILES_NAME
    table = pq.ParquetFile(path).read()
    files = table.to_pylist()
    manifest = load_checked(files[0]["data"], "manifest")
    files[0]["data"] = dump_checked({**manifest, "reader_features": ["sparse-ids"]})
    digest = sha256(files[0]["data"]).hexdigest().encode()
    path.unlink()
    schema = table_schema(exchange.FILES_KIND, {exchange.META_MANIFEST: digest})
    with table_writer(path, schema) as writer:
        writer.write_table(pa.Table.from_pylist(files, schema))
    changed(tmp_path / "out" / ROWS_NAME, with_metadata(exchange.META_MANIFEST, digest))
    with pytest.raises(FeatureError, match="sparse-ids"):
        import_index(tmp_path / "out", tmp_path / "again")


def test_what_was_deleted_travels_until_it_is_compacted(
    small_index: SmallIndex, tmp_path: Path
) -> None:
    paths, rows = small_index.paths, small_index.rows
    delete_documents(paths, ["c"])
    export_index(paths, tmp_path / "deleted")
    flags = pq.read_table(tmp_path / "deleted" / ROWS_NAME)["current"].to_pylist()
    assert sorted(flags) == [False, True, True]
    assert import_index(tmp_path / "deleted", tmp_path / "one").identical
    assert compact(paths) is not None
    report = export_index(paths, tmp_path / "compacted")
    assert (report.rows, report.left_out) == (2, 0)
    assert import_index(tmp_path / "compacted", tmp_path / "two").identical
    for name in ("one", "two"):
        after = IndexReader.open(tmp_path / name)
        after.verify().require_clean()
        assert [after.lookup(row.key) for row in rows] == [rows[0], rows[1], None]


@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_a_version_that_gc_removes_meanwhile_is_not_damage(
    small_index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    paths, verified = small_index.paths, export._verified_pack

    def late(*arguments: Any) -> Any:
        monkeypatch.undo()
        delete_documents(paths, ["c"])
        compact(paths)
        collect_garbage(paths, 1, grace=0)
        return verified(*arguments)

    monkeypatch.setattr(export, "_verified_pack", late)
    with pytest.raises(IndexNotFoundError, match=r"version 2 .*`sift-index gc` removed this vers"):
        export_index(paths, tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"index"}
    assert export_index(paths, tmp_path / name).version == 4


def test_a_receipt_that_gc_removes_meanwhile_is_no_loss(
    small_index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version exported is kept, and its packs are not those of the receipts any more."""
    paths = small_index.paths
    assert compact(paths) is not None
    listed = file_names

    def late(folder: Path, suffix: str) -> list[str]:
        found = listed(folder, suffix)
        collect_garbage(paths, 1, grace=0)
        return found

    monkeypatch.setattr("sift_index.formats.sidefiles.file_names", late)
    assert export_index(paths, tmp_path / "out").receipts == 0


@pytest.mark.parametrize("name", ["out.PARQUET", "out.Parquet"])
def test_the_suffix_counts_in_any_case(busy: Busy, tmp_path: Path, name: str) -> None:
    export_index(busy.paths, tmp_path / name)
    assert (tmp_path / name).is_file()
    assert import_index(tmp_path / name, tmp_path / "again").identical


def test_the_folder_one_is_in_can_be_the_result(
    busy: Busy, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    import_index(exported, Path())
    assert contents(tmp_path / "here") == busy.files()
    monkeypatch.chdir(tmp_path / "there")
    export_index(busy.paths, Path())
    assert (tmp_path / "there" / ROWS_NAME).is_file()
    monkeypatch.chdir(tmp_path / "there")
    with pytest.raises(UsageError, match="there: expected a path that is free"):
        export_index(busy.paths, Path())
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    import_index(exported, tmp_path / "link")
    assert contents(tmp_path / "empty") == busy.files()
    assert not [*tmp_path.rglob(".tmp-*")]


@pytest.mark.parametrize("name", ["file/out.parquet", "file/out", "file/a/b/out"])
def test_a_parent_that_is_a_file_is_blamed_itself(busy: Busy, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"expected a folder to write to, found a file") as caught:
        export_index(busy.paths, tmp_path / name)
    assert str(caught.value).startswith(f"{(tmp_path / name).parent}: ")


def test_a_parent_that_cannot_be_made_is_named(
    busy: Busy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(BuildError, match="new: expected to write .*Permission denied"):
        export_index(busy.paths, tmp_path / "new" / "out.parquet")


def test_an_index_or_nothing_instead_of_an_export_is_said_so(
    small_index: SmallIndex, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="`sift-index export` wrote, found an index already"):
        import_index(small_index.paths.root, tmp_path / "again")
    with pytest.raises(UsageError, match="missing: .*found no such file or folder; check the path"):
        import_index(tmp_path / "missing", tmp_path / "again")
