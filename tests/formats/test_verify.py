from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from sift_index.formats.canonical import dump_checked
from sift_index.formats.errors import IndexNotFoundError, IntegrityError
from sift_index.formats.failures import FailedDocument, record_failure
from sift_index.formats.fileinfo import FileInfo, sha256_hex
from sift_index.formats.keytable import KeyColumns, keytable_bytes
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import write_pack
from sift_index.formats.reader import IndexReader
from sift_index.formats.store import TEMP_PREFIX, IndexPaths
from sift_index.formats.verify import find_garbage, verify_index
from tests.formats.files import rewrite

if TYPE_CHECKING:
    from tests.formats.conftest import SmallIndex

MakeDocument = Callable[..., DocumentMasks]


def test_a_sound_index_is_clean(small_index: SmallIndex) -> None:
    record_failure(small_index.paths, FailedDocument("a.txt", "empty"))
    report = IndexReader.open(small_index.paths.root).verify()
    files = [path for path in small_index.paths.root.rglob("*") if path.is_file()]
    assert (report.files, report.rows) == (len(files), 3)
    assert report.bytes == sum(path.stat().st_size for path in files)
    assert not report.garbage
    assert not report.problems
    report.require_clean()


def test_every_changed_byte_of_every_file_is_found(small_index: SmallIndex) -> None:
    record_failure(small_index.paths, FailedDocument("a.txt", "empty"))
    for path in [path for path in small_index.paths.root.rglob("*") if path.is_file()]:
        data = path.read_bytes()
        # All bytes of each kind of file are covered by its own test; here every 7th.
        for place in range(len(path.name) % 7, len(data), 7):
            rewrite(path, data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
            report = verify_index(small_index.paths)
            assert any(path.name in str(problem) for problem in report.problems), (path, place)
        rewrite(path, data)
    assert verify_index(small_index.paths).ok


def test_all_problems_are_in_one_report(small_index: SmallIndex) -> None:
    paths = small_index.paths
    pack = paths.pack_path(small_index.receipts[0].pack.name)
    rewrite(pack, pack.read_bytes()[:-8])
    rewrite(paths.manifest_path(1), b"{}")
    report = verify_index(paths)
    assert not report.ok
    with pytest.raises(IntegrityError) as caught:
        report.require_clean()
    assert pack.name in str(caught.value)
    assert "manifest-00000001.json" in str(caught.value)


def test_a_single_problem_is_raised_as_it_is(paths: IndexPaths) -> None:
    with pytest.raises(IndexNotFoundError):
        verify_index(paths).require_clean()


def test_the_quick_check_finds_missing_and_cut_files(small_index: SmallIndex) -> None:
    pack = small_index.paths.pack_path(small_index.receipts[0].pack.name)
    data = pack.read_bytes()
    assert verify_index(small_index.paths, full=False).ok
    rewrite(pack, data[:-1])
    assert not verify_index(small_index.paths, full=False).ok
    pack.unlink()
    assert not verify_index(small_index.paths, full=False).ok


def test_files_nobody_names_are_garbage_not_problems(
    small_index: SmallIndex, make_document: MakeDocument
) -> None:
    paths = small_index.paths
    loser = write_pack(paths, "unit-a", "x", [make_document(50, 9)])
    temp = paths.packs / f"{TEMP_PREFIX}1-ff"
    rewrite(temp, b"half")
    assert verify_index(paths).ok
    assert set(find_garbage(paths)) == {paths.pack_path(loser.name), temp}


@pytest.mark.parametrize("wrong", ["row", "pack", "anchor", "key", "far row"])
def test_a_forged_table_that_points_elsewhere_is_found(small_index: SmallIndex, wrong: str) -> None:
    table = IndexReader.open(small_index.paths.root).keys
    pack, row = (np.array(values) for values in table.locations())
    keys, anchor = np.array(table.keys()), np.array(table.anchors())
    inside = np.flatnonzero(pack == 0)
    if wrong == "row":
        row[inside] = row[inside][::-1]
    elif wrong == "far row":
        row[0] = 99
    elif wrong == "pack":
        pack[:] = 1 - pack
    elif wrong == "anchor":
        anchor[0] += 1
    else:
        keys[-1] = 255
    columns = KeyColumns(
        keys, pack, row, anchor, ["a", "ab", "c"], np.array([0, 1, 2, 3]), np.arange(3, dtype="u4")
    )
    data = keytable_bytes(columns)
    rewrite(small_index.paths.keytable_path(2), data)
    info = FileInfo("keys-00000002.arrow", len(data), sha256_hex(data))
    forged = replace(small_index.versions[1], key_table=info)
    rewrite(small_index.paths.manifest_path(2), dump_checked(forged.to_json()))
    report = verify_index(small_index.paths)
    assert ["keys-00000002.arrow" in str(problem) for problem in report.problems] == [True]
    index = IndexReader.open(small_index.paths.root)
    for i, document in enumerate(small_index.rows):
        try:
            found = index.lookup(document.key)
        except IntegrityError:
            continue
        assert found in (document, None), i
