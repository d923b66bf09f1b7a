from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.formats.errors import FeatureError, FormatError, IntegrityError, UsageError
from sift_index.formats.fileinfo import sha256_hex
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packhead import read_pack_head
from sift_index.formats.packs import Codec, Pack, PackInfo, pack_bytes, write_pack
from sift_index.formats.schema import pack_schema
from sift_index.formats.store import IndexPaths
from tests.formats.files import flips, rewrite

MakeDocument = Callable[..., DocumentMasks]
Opener = Callable[[Path, PackInfo], object]


def _write(path: Path, rows: Sequence[DocumentMasks], codec: Codec = Codec.RAW) -> PackInfo:
    data = pack_bytes("u", "b", rows, codec)
    rewrite(path, data)
    return PackInfo(path.name, len(data), sha256_hex(data), len(rows))


def _info(data: bytes, rows: int) -> PackInfo:
    return PackInfo("u-0.arrow", len(data), sha256_hex(data), rows)


def _small(make: MakeDocument) -> list[DocumentMasks]:
    """Three rows of a few bytes each: with LA, without anchor, with neither."""
    shape = {"layers": 1, "heads": 2}
    rows = [make(260, 1, **shape), make(9, 2, la=False, **shape), make(15, 3, **shape)]
    return sorted(rows, key=lambda row: row.key)


def _head(path: Path, info: PackInfo) -> object:
    return read_pack_head(path, info, "b")


@pytest.fixture(params=[Pack.open, _head])
def opener(request: pytest.FixtureRequest) -> Opener:
    """Who looks at a pack: a reader, or a writer of versions, which reads no mask."""
    found: Opener = request.param
    return found


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 700), st.booleans()), max_size=6),
    levels=st.sampled_from([1, 2]),
    page=st.sampled_from([8, 32, 128]),
    codec=st.sampled_from(Codec),
)
def test_every_row_comes_back(
    make_document: MakeDocument,
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[tuple[int, bool]],
    levels: int,
    page: int,
    codec: Codec,
) -> None:
    rows = [
        make_document(tokens, i, la=la, levels=levels, page=page)
        for i, (tokens, la) in enumerate(sizes)
    ]
    path = tmp_path_factory.mktemp("pack") / "u-0.arrow"
    pack = Pack.open(path, _write(path, rows, codec))
    expected = sorted(rows, key=lambda row: row.key)
    assert [pack.row(i) for i in range(len(pack))] == expected
    assert [pack.row(i, verify=False) for i in range(len(pack))] == expected
    assert [bytes(key) for key in pack.keys()] == [row.key for row in expected]
    assert pack.anchors().tolist() == [row.anchor or 0 for row in expected]
    assert pack.tokens().tolist() == [row.tokens for row in expected]
    pack.verify()


def test_the_same_rows_in_any_order_give_the_same_file(
    paths: IndexPaths, make_document: MakeDocument
) -> None:
    rows = _small(make_document)
    first = write_pack(paths, "unit-1", "digest", rows)
    again = write_pack(paths, "unit-1", "digest", rows[::-1])
    assert first == again
    assert os.listdir(paths.packs) == [first.name]
    data = paths.pack_path(first.name).read_bytes()
    assert first.name == f"unit-1-{sha256(data).hexdigest()[:16]}.arrow"
    assert (first.bytes, first.sha256, first.unit) == (len(data), sha256_hex(data), "unit-1")


def test_another_process_writes_the_same_bytes(make_document: MakeDocument) -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests/formats'); import conftest;"
        "from sift_index.formats.packs import pack_bytes;"
        "from sift_index.formats.fileinfo import sha256_hex;"
        "print(sha256_hex(pack_bytes('u', 'b', [conftest._document(700, 5)])))"
    )
    root = Path(__file__).parents[2]
    seen = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert seen.stdout.strip() == sha256_hex(pack_bytes("u", "b", [make_document(700, 5)]))


def test_a_damaged_file_under_the_name_is_not_taken_for_the_pack(
    paths: IndexPaths, make_document: MakeDocument
) -> None:
    rows = _small(make_document)
    info = write_pack(paths, "unit", "digest", rows)
    path = paths.pack_path(info.name)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match="remove this file"):
        write_pack(paths, "unit", "digest", rows)


def test_verify_finds_every_flipped_bit(make_document: MakeDocument, tmp_path: Path) -> None:
    path = tmp_path / "u-0.arrow"
    info = _write(path, _small(make_document))
    data = path.read_bytes()
    for damaged in flips(data):
        rewrite(path, damaged)
        with pytest.raises(FormatError, match="u-0.arrow"):
            Pack.open(path, info).verify()


@pytest.mark.parametrize("codec", Codec)
def test_a_lookup_is_right_or_an_error_whatever_bit_flips(
    make_document: MakeDocument, tmp_path: Path, codec: Codec
) -> None:
    rows = _small(make_document)
    path = tmp_path / "u-0.arrow"
    info = _write(path, rows, codec)
    data = path.read_bytes()
    found = 0
    for place in range(len(data) * 8):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        rewrite(path, changed)
        try:
            pack = Pack.open(path, info)
        except FormatError as error:
            assert "u-0.arrow" in str(error)
            found += 1
            continue
        for i, row in enumerate(rows):
            try:
                assert pack.row(i) == row
            except IntegrityError as error:
                assert f"u-0.arrow row {i}" in str(error)
                found += 1
    # Arrow's own metadata is half of so small a file, and parts of it are never read.
    assert found > len(data) * 8 // 3


def test_every_cut_is_found_when_opening(
    opener: Opener, make_document: MakeDocument, tmp_path: Path
) -> None:
    path = tmp_path / "u-0.arrow"
    info = _write(path, _small(make_document))
    data = path.read_bytes()
    for size in range(len(data)):
        rewrite(path, data[:size])
        with pytest.raises(IntegrityError, match="u-0.arrow"):
            opener(path, info)
        with pytest.raises(IntegrityError, match="u-0.arrow"):
            opener(path, replace(info, bytes=size))


def _forged(path: Path, rows: Sequence[DocumentMasks], **columns: Any) -> PackInfo:
    """Write a pack with some columns exchanged, in file order, with a right hash."""
    batch = pa.ipc.open_file(pack_bytes("u", "b", rows)).get_batch(0)
    arrays = [columns.get(f.name, c) for f, c in zip(batch.schema, batch.columns, strict=True)]
    return _store(path, pa.record_batch(arrays, schema=batch.schema))


def _store(path: Path, batch: Any, compression: str | None = None, batches: int = 1) -> PackInfo:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    data = bytes(sink.getvalue())
    rewrite(path, data)
    return _info(data, batch.num_rows)


def test_forged_offsets_are_refused(make_document: MakeDocument, tmp_path: Path) -> None:
    path = tmp_path / "u-0.arrow"
    rows = _small(make_document)
    good = pack_bytes("u", "b", rows)
    offsets = bytes(pa.ipc.open_file(good).get_batch(0).column("ca").buffers()[1])[:32]
    assert good.count(offsets) == 1
    for forged in ([0, 1 << 40, 1 << 41, 1 << 42], [0, -1, 2, 3], [5, 4, 3, 2], [-8, 0, 8, 9]):
        data = good.replace(offsets, np.array(forged, "<i8").tobytes())
        rewrite(path, data)
        with pytest.raises(IntegrityError, match="u-0.arrow: expected a valid Arrow"):
            Pack.open(path, _info(data, len(rows)))


def test_swapped_masks_of_two_rows_are_found(make_document: MakeDocument, tmp_path: Path) -> None:
    path = tmp_path / "u-0.arrow"
    rows = sorted((make_document(300, i) for i in range(2)), key=lambda row: row.key)
    batch = pa.ipc.open_file(pack_bytes("u", "b", rows)).get_batch(0)
    swap = batch.column(4).take(pa.array([1, 0]))
    pack = Pack.open(path, _forged(path, rows, ca=swap))
    with pytest.raises(IntegrityError, match="row 0: blob: expected checksum"):
        pack.row(0)
    with pytest.raises(IntegrityError, match="row 0"):
        pack.verify()


def test_a_lost_la_blob_is_not_taken_for_dense(make_document: MakeDocument, tmp_path: Path) -> None:
    path = tmp_path / "u-0.arrow"
    info = _forged(path, [make_document(300)], la=pa.array([None], pa.large_binary()))
    with pytest.raises(IntegrityError, match="row 0: blob: expected checksum"):
        Pack.open(path, info).row(0)


def test_wrong_order_doubles_and_zero_anchors_are_refused(
    opener: Opener, make_document: MakeDocument, tmp_path: Path
) -> None:
    path = tmp_path / "u-0.arrow"
    rows = sorted((make_document(300, i) for i in range(2)), key=lambda row: row.key)
    for keys in ([rows[1].key, rows[0].key], [rows[0].key] * 2):
        info = _forged(path, rows, key=pa.array(keys, pa.binary(16)))
        with pytest.raises(IntegrityError, match="sorted keys"):
            opener(path, info)
    info = _forged(path, rows, anchor=pa.array([0, 1], pa.uint64()))
    with pytest.raises(IntegrityError, match="anchor 0"):
        opener(path, info)


def test_a_foreign_arrow_file_is_refused(
    opener: Opener, make_document: MakeDocument, tmp_path: Path
) -> None:
    path = tmp_path / "u-0.arrow"
    with pytest.raises(IntegrityError, match="kind b'pack'"):
        opener(path, _store(path, pa.record_batch({"x": pa.array([1])})))
    batch = pa.ipc.open_file(pack_bytes("u", "b", _small(make_document))).get_batch(0)
    cut = batch.select(["key", "anchor", "tokens", "la"])
    with pytest.raises(IntegrityError, match="the columns"):
        opener(path, _store(path, cut.replace_schema_metadata(batch.schema.metadata)))
    with pytest.raises(IntegrityError, match="one record batch"):
        opener(path, _store(path, batch, batches=2))
    with pytest.raises(IntegrityError, match="not compressed"):
        opener(path, _store(path, batch, "zstd"))


def test_other_sizes_units_and_row_counts_than_named_are_refused(
    opener: Opener, make_document: MakeDocument, tmp_path: Path
) -> None:
    path = tmp_path / "u-0.arrow"
    info = _write(path, _small(make_document))
    for wrong, message in (
        (replace(info, bytes=info.bytes + 1), f"{info.bytes + 1} bytes"),
        (replace(info, rows=2), "2 rows"),
        (replace(info, name="other-0.arrow"), "sift.unit"),
    ):
        with pytest.raises(IntegrityError, match=message):
            opener(path, wrong)
    with pytest.raises(IntegrityError, match="sha256"):
        Pack.open(path, replace(info, sha256="0" * 64)).verify()


def test_a_newer_format_is_named(
    opener: Opener, make_document: MakeDocument, tmp_path: Path
) -> None:
    path = tmp_path / "u-0.arrow"
    batch = pa.ipc.open_file(pack_bytes("u", "b", _small(make_document))).get_batch(0)
    newer = {**pack_schema("u", "b").metadata, b"sift.format": b"2"}
    with pytest.raises(FeatureError, match="found b'2'"):
        opener(path, _store(path, batch.replace_schema_metadata(newer)))


def test_a_checked_row_is_not_checked_again(make_document: MakeDocument, tmp_path: Path) -> None:
    path = tmp_path / "u-0.arrow"
    pack = Pack.open(path, _write(path, [make_document(300)]))
    assert not any(pack._verified)
    pack.row(0, verify=False)
    assert not any(pack._verified)
    pack.row(0)
    assert all(pack._verified)


def test_raw_masks_are_views_of_the_mapped_file(
    make_document: MakeDocument, tmp_path: Path
) -> None:
    path = tmp_path / "u-0.arrow"
    pack = Pack.open(path, _write(path, [make_document(300)]))
    address = pack.row(0).ca.packed.__array_interface__["data"][0]
    assert 0 < address - pack._data.address < pack._data.size
    assert not pack.row(0).ca.packed.flags.writeable


def test_mixed_rows_are_not_written(make_document: MakeDocument) -> None:
    row = make_document(300)
    with pytest.raises(UsageError, match="one row a key"):
        pack_bytes("u", "b", [row, row])
    with pytest.raises(UsageError, match="do not mix builds"):
        pack_bytes("u", "b", [row, make_document(300, 1, page=64)])


@pytest.mark.parametrize("i", [-1, 3])
def test_a_row_that_does_not_exist_is_refused(
    make_document: MakeDocument, tmp_path: Path, i: int
) -> None:
    path = tmp_path / "u-0.arrow"
    pack = Pack.open(path, _write(path, _small(make_document)))
    with pytest.raises(UsageError, match=r"0\.\.2"):
        pack.row(i)
