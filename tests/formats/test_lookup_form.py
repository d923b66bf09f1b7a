"""The serving form in memory: rows seen before, the cache of decoded masks, preloading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sift_index.formats import residency
from sift_index.formats.blob import Layout
from sift_index.formats.errors import IntegrityError, UsageError
from sift_index.formats.maskcache import MaskCache
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import Codec, Pack, write_pack
from sift_index.formats.reader import IndexReader
from sift_index.formats.rowview import SeenRows
from sift_index.formats.store import IndexPaths
from tests.formats.files import rewrite

if TYPE_CHECKING:
    from tests.formats.conftest import MakeDocument, SmallIndex


def regular(row: DocumentMasks) -> DocumentMasks:
    """Give a document CA bits that zstd shrinks, which it does not do to random ones."""
    packed = np.full_like(row.ca.packed, 0xA0)
    packed[..., -1] = 0
    return replace(row, ca=replace(row.ca, packed=packed))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("la", [True, False])
def test_a_row_seen_before_is_the_row(
    paths: IndexPaths, make_document: MakeDocument, codec: Codec, la: bool
) -> None:
    document = regular(make_document(8000, 3, la=la))
    info = write_pack(paths, "u", "build", [document], codec)
    pack = Pack.open(paths.pack_path(info.name), info)
    first, again = pack.row(0), pack.row(0)
    assert first == again == document
    assert not again.ca.packed.flags.writeable
    assert pack.unpacked_bytes(0) == (document.ca.packed.nbytes if codec == Codec.ZSTD else 0)


def test_a_row_used_before_is_no_answer_to_another_key(
    small_index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = IndexReader.open(small_index.paths.root)
    own, other = (small_index.rows[i].key for i in (0, 1))
    assert reader.lookup(own) is not None and reader.lookup(own) is not None
    found, place = reader.keys.find(own), reader.keys.find(other)
    assert found is not None and place is not None
    monkeypatch.setattr(reader.keys, "find", lambda key: (*found[:2], place[2]))
    for _ in range(2):
        with pytest.raises(IntegrityError, match=f"expected key {other.hex()}"):
            reader.lookup(other)


def test_a_raw_mask_is_a_view_of_the_file(small_index: SmallIndex) -> None:
    reader = IndexReader.open(small_index.paths.root)
    key = small_index.rows[0].key
    reader.lookup(key)
    one, two = reader.lookup(key), reader.lookup(key)
    assert one is not None and two is not None
    assert np.shares_memory(one.ca.packed, two.ca.packed)


def test_a_row_that_was_not_verified_is_checked_at_its_next_use(small_index: SmallIndex) -> None:
    pack = small_index.paths.pack_path(small_index.receipts[0].pack.name)
    data = bytearray(pack.read_bytes())
    mask = small_index.rows[0].ca.packed.tobytes()
    data[data.index(mask)] ^= 128
    rewrite(pack, data)
    reader = IndexReader.open(small_index.paths.root)
    key = small_index.rows[0].key
    assert reader.lookup(key, verify=False) != small_index.rows[0]
    for _ in range(2):
        with pytest.raises(IntegrityError, match="checksum"):
            reader.lookup(key)


def compressible(make_document: MakeDocument, paths: IndexPaths, fingerprint: Any) -> list[bytes]:
    """Publish documents whose masks zstd shrinks."""
    from sift_index.formats.receipts import Receipt, commit
    from sift_index.formats.writer import publish

    rows = [regular(make_document(8000, seed, la=False)) for seed in range(8)]
    info = write_pack(paths, "u", fingerprint.build_digest, rows, Codec.ZSTD)
    keys = tuple(sorted(row.key.hex() for row in rows))
    receipt = commit(paths, Receipt("u", fingerprint.build_digest, info, keys, 64000))
    publish(paths, fingerprint, [receipt], {})
    return [row.key for row in rows]


def test_decoded_masks_are_kept_up_to_the_bound(
    paths: IndexPaths, make_document: MakeDocument, fingerprint: Any
) -> None:
    keys = compressible(make_document, paths, fingerprint)
    reader = IndexReader.open(paths.root)
    plain = [reader.lookup(key) for key in keys]
    assert reader.lookup(keys[0]) is not reader.lookup(keys[0])  # no cache unless asked for
    size = plain[0].ca.packed.nbytes  # type: ignore[union-attr]
    reader.keep_decoded(3 * size)
    assert [reader.lookup(key) for key in keys] == plain
    kept = reader.lookup(keys[-1])
    assert reader.lookup(keys[-1]) is kept
    assert reader._cache is not None
    assert (len(reader._cache), reader._cache.bytes) == (3, 3 * size)
    reader.keep_decoded(0)
    assert reader.lookup(keys[-1]) is not kept


def test_the_row_not_used_for_longest_goes_first(make_document: MakeDocument) -> None:
    rows = [make_document(300, seed) for seed in range(3)]
    assert rows[0].la is not None
    cache = MaskCache(2 * (rows[0].ca.packed.nbytes + rows[0].la.packed.nbytes))
    for row in rows[:2]:
        cache.add(row)
    assert cache.get(rows[0].key) is rows[0]
    cache.add(rows[2])
    assert cache.get(rows[1].key) is None
    assert cache.get(rows[0].key) is rows[0]
    small = MaskCache(1)
    small.add(rows[0])
    assert (len(small), small.bytes) == (0, 0)


def test_raw_masks_are_not_kept(small_index: SmallIndex) -> None:
    reader = IndexReader.open(small_index.paths.root)
    reader.keep_decoded(1 << 20)
    assert reader.lookup(small_index.rows[0].key) == small_index.rows[0]
    assert reader._cache is not None and len(reader._cache) == 0


def test_preload_maps_every_pack(small_index: SmallIndex) -> None:
    reader = IndexReader.open(small_index.paths.root)
    reader.preload()
    for path in small_index.paths.packs.iterdir():
        path.unlink()
    assert [reader.lookup(row.key) for row in small_index.rows] == [*small_index.rows]


def test_preload_says_what_does_not_fit(
    small_index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = IndexReader.open(small_index.paths.root)
    needed = residency.needed_bytes(reader.manifest)
    reader.preload(needed)
    with pytest.raises(UsageError, match=f"{needed:,} bytes.*found {needed - 1:,} allowed.*budget"):
        reader.preload(needed - 1)
    monkeypatch.setattr(residency, "available_bytes", lambda: needed - 1)
    with pytest.raises(UsageError, match="available; open without preload"):
        reader.preload()
    monkeypatch.setattr(residency, "available_bytes", lambda: None)
    reader.preload()  # unknown is no reason to refuse


def test_available_memory_is_the_smaller_of_system_and_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(residency, "_CGROUP", tmp_path / "memory.max")
    assert residency.available_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       7 kB\n")
    assert residency.available_bytes() == 7168
    for limit, expected in (("max", 7168), ("100", 100), ("99999999", 7168)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert residency.available_bytes() == expected


def test_more_layouts_than_can_be_numbered_stay_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sift_index.formats.rowview._MOST_LAYOUTS", 2)
    seen = SeenRows(5)
    for place, entries in enumerate((7, 8, 7, 9)):
        seen.add(place, Layout(0, (1, 1, 1), entries, 32, 1))
    assert list(seen.numbers) == [1, 2, 1, 0, 0]
    assert [layout.entries for layout in seen.layouts[1:]] == [7, 8]
