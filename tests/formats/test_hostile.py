"""Indexes made to hurt: each ends in a named error, before anything is unpacked or followed."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sift_index.formats import blob
from sift_index.formats.canonical import dump_checked
from sift_index.formats.errors import IndexNotFoundError, IntegrityError
from sift_index.formats.failures import FailedDocument, record_failure
from sift_index.formats.fileinfo import sha256_hex
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.manifest import versions
from sift_index.formats.masks import DocumentMasks, MaskKind
from sift_index.formats.maskshape import MaskShape, check_header, promised_shape
from sift_index.formats.packs import Codec, Pack, PackInfo, pack_bytes
from sift_index.formats.reader import IndexReader
from sift_index.formats.schema import pack_schema
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import verify_index
from sift_index.formats.writer import publish
from tests.formats.files import rewrite

if TYPE_CHECKING:
    from tests.formats.conftest import CommitUnit, SmallIndex

MakeDocument = Callable[..., DocumentMasks]
ROOT = Path(__file__).parents[2]
LAYOUT = {"layers": 2, "mask_heads": 3, "page_size": 32, "levels": 1}
PROMISED = Fingerprint({"policy": "probe"}, {"layout": LAYOUT})
SHAPE = MaskShape(2, 3, 32, 1)


def _problems(paths: IndexPaths) -> list[str]:
    return [str(problem) for problem in verify_index(paths).problems]


def test_a_compressed_file_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    rows = [[bytes(16)], [1], [1], [None], [bytes(50_000_000)]]
    schema = pack_schema("u", "b")
    arrays = [pa.array(values, f.type) for values, f in zip(rows, schema, strict=True)]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    data = bytes(sink.getvalue())
    path = tmp_path / "u-0.arrow"
    path.write_bytes(data)
    assert len(data) < 20_000
    pool = pa.proxy_memory_pool(before := pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(IntegrityError, match="buffers that are not compressed"):
            Pack.open(path, PackInfo(path.name, len(data), sha256_hex(data), 1))
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 1_000_000


@pytest.mark.parametrize(
    "shape", [{"layers": 3}, {"heads": 2}, {"page": 64}, {"levels": 2}], ids=str
)
def test_masks_of_another_shape_than_promised_are_not_unpacked(
    paths: IndexPaths,
    make_document: MakeDocument,
    commit_unit: CommitUnit,
    monkeypatch: pytest.MonkeyPatch,
    shape: dict[str, int],
) -> None:
    good, bad = make_document(90, 1), make_document(2000, 2, **shape)
    for unit, row in (("good", good), ("bad", bad)):
        receipt = commit_unit(paths, unit, [row], PROMISED.build_digest, Codec.ZSTD)
        publish(paths, PROMISED, [receipt], {}, previous=_newest(paths))
    monkeypatch.setattr(blob, "_decompress", None)  # fails when called
    index = IndexReader.open(paths.root)
    assert index.lookup(good.key) == good
    with pytest.raises(IntegrityError, match="bad-.*layers, heads, granule, levels"):
        index.lookup(bad.key, verify=False)
    assert ["bad-" in problem for problem in _problems(paths)] == [True]


def _newest(paths: IndexPaths) -> Any:
    try:
        return IndexReader.open(paths.root).manifest
    except IndexNotFoundError:
        return None


@pytest.mark.parametrize(
    ("change", "kind", "tokens", "message"),
    [
        ({}, MaskKind.LA, 90, "kind, entries"),
        ({}, MaskKind.CA, 97, "kind, entries .2, 4. for 97 tokens"),
        ({"layers": 65_535}, MaskKind.CA, 90, "layers, heads"),
        ({"heads": 65_535}, MaskKind.CA, 90, "layers, heads"),
    ],
)
def test_an_absurd_header_is_refused(
    change: dict[str, Any], kind: MaskKind, tokens: int, message: str
) -> None:
    header = blob.Header(b"SB", 2, 1, 1, 0, 2, 3, 32, 3, 1, 6)
    check_header(header, MaskKind.CA, 90, SHAPE)
    with pytest.raises(IntegrityError, match=message):
        check_header(header._replace(**change), kind, tokens, SHAPE)


@pytest.mark.parametrize(
    "layout", [None, [], {}, {**LAYOUT, "layers": "2"}, {**LAYOUT, "levels": True}]
)
def test_a_layout_that_says_nothing_promises_nothing(layout: Any) -> None:
    assert promised_shape(Fingerprint({}, {"layout": layout})) is None
    assert promised_shape(PROMISED) == SHAPE


def test_a_pack_of_another_build_is_refused(
    small_index: SmallIndex, make_document: MakeDocument
) -> None:
    paths, manifest = small_index.paths, small_index.versions[1]
    rows = sorted(small_index.rows[:2], key=lambda row: row.key)
    data = pack_bytes("unit-a", "another", rows)
    info = PackInfo(manifest.packs[0].name, len(data), sha256_hex(data), 2)
    rewrite(paths.pack_path(info.name), data)
    forged = replace(manifest, packs=(info, *manifest.packs[1:]))
    rewrite(paths.manifest_path(2), dump_checked(forged.to_json()))
    with pytest.raises(IntegrityError, match="a pack of build .*, found another"):
        IndexReader.open(paths.root).lookup(rows[0].key)
    assert any("a pack of build" in problem for problem in _problems(paths))


@pytest.mark.parametrize("folder", ["packs", "commits", "failed"])
def test_a_linked_folder_is_refused(small_index: SmallIndex, folder: str) -> None:
    path = small_index.paths.root / folder
    path.rename(small_index.paths.root.parent / "elsewhere")
    path.symlink_to(small_index.paths.root.parent / "elsewhere")
    with pytest.raises(IntegrityError, match=f"{folder}: expected a folder, found a link"):
        IndexReader.open(small_index.paths.root)
    assert any("found a link" in problem for problem in _problems(small_index.paths))


@pytest.mark.parametrize("unit", ["../unit-a", "/etc/passwd", "a/b", ""])
def test_a_unit_that_is_a_path_is_refused_when_opening(small_index: SmallIndex, unit: str) -> None:
    forged = replace(small_index.versions[1], units=(unit,))
    rewrite(small_index.paths.manifest_path(2), dump_checked(forged.to_json()))
    with pytest.raises(IntegrityError, match="manifest-00000002.json: expected a plain file name"):
        IndexReader.open(small_index.paths.root)
    assert ["plain file name" in problem for problem in _problems(small_index.paths)] == [True]


@pytest.mark.parametrize("wrong", ["keys", "tokens", "build_digest"])
def test_a_receipt_that_contradicts_its_pack_is_found(small_index: SmallIndex, wrong: str) -> None:
    receipt = small_index.receipts[0]
    changes: dict[str, Any] = {
        "keys": (receipt.keys[0], "f" * 32), "tokens": 1, "build_digest": "0" * 32
    }  # fmt: skip
    forged = replace(receipt, **{wrong: changes[wrong]})
    rewrite(small_index.paths.receipt_path("unit-a"), dump_checked(forged.to_json()))
    assert ["unit-a.json" in problem for problem in _problems(small_index.paths)] == [True]


def test_a_manifest_that_counts_its_tokens_wrong_is_found(small_index: SmallIndex) -> None:
    manifest = small_index.versions[1]
    forged = replace(manifest, counts=replace(manifest.counts, tokens=1))
    rewrite(small_index.paths.manifest_path(2), dump_checked(forged.to_json()))
    assert ["349 tokens" in problem for problem in _problems(small_index.paths)] == [True]


def test_every_damaged_failure_record_is_in_the_report(small_index: SmallIndex) -> None:
    for source in ("a.txt", "b.txt"):
        rewrite(record_failure(small_index.paths, FailedDocument(source, "empty")), b"{}")
    assert len(_problems(small_index.paths)) == 2


def test_other_digits_make_no_version(small_index: SmallIndex) -> None:
    (small_index.paths.root / "manifest-0000000٩.json").write_bytes(b"{}")
    assert versions(small_index.paths) == [1, 2]
    assert IndexReader.open(small_index.paths.root).manifest.version == 2


def test_nothing_in_the_project_unpickles() -> None:
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    for path in [p for folder in _FOLDERS for p in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            if isinstance(node, ast.ImportFrom):
                names = {str(node.module)}
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                names = {"pickle"}
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
                names = {"pickle"}
            assert not {name.partition(".")[0] for name in names} & banned, path


_FOLDERS = ("formats", "kernels", "sift_index", "pipelines", "configs", "benchmarks")
