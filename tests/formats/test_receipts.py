from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sift_index.formats.canonical import dump_checked
from sift_index.formats.errors import IntegrityError, UsageError
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import write_pack
from sift_index.formats.receipts import Failure, Receipt, commit, read_receipt, read_receipts
from sift_index.formats.store import IndexPaths, file_names
from tests.formats.conftest import SmallIndex
from tests.formats.files import cuts, flips, rewrite

CommitUnit = Callable[..., Receipt]
MakeDocument = Callable[..., DocumentMasks]
BUILD = "0" * 32


def test_a_receipt_comes_back_as_it_was(paths: IndexPaths, make_document: MakeDocument) -> None:
    row = make_document(300)
    info = write_pack(paths, "u", BUILD, [row])
    failed = (Failure("a.txt", "no tokens"),)
    stats: dict[str, float | int | str] = {"seconds": 1.25, "device": "cpu", "worker": 3}
    receipt = Receipt("u", BUILD, info, (row.key.hex(),), 300, failed, stats)
    assert commit(paths, receipt) == receipt
    assert read_receipts(paths) == [receipt]


def test_the_first_receipt_wins(paths: IndexPaths, make_document: MakeDocument) -> None:
    receipts = []
    for seed in (1, 2):
        row = make_document(300, seed)
        info = write_pack(paths, "u", BUILD, [row])
        receipts.append(Receipt("u", BUILD, info, (row.key.hex(),), 300))
    assert commit(paths, receipts[0]) == receipts[0]
    assert commit(paths, receipts[1]) == receipts[0]
    assert read_receipts(paths) == [receipts[0]]


def test_a_unit_may_have_lost_all_its_documents(paths: IndexPaths, commit_unit: CommitUnit) -> None:
    assert commit_unit(paths, "empty", [], BUILD).pack.rows == 0
    assert [r.keys for r in read_receipts(paths)] == [()]


def test_receipts_of_another_build_are_left_out(
    paths: IndexPaths, make_document: MakeDocument, commit_unit: CommitUnit
) -> None:
    for unit, build in (("a", BUILD), ("b", "1" * 32)):
        commit_unit(paths, unit, [make_document(20, len(unit))], build)
    assert [r.unit for r in read_receipts(paths, BUILD)] == ["a"]
    assert [r.unit for r in read_receipts(paths)] == ["a", "b"]


def test_a_receipt_without_its_pack_is_reported(
    paths: IndexPaths, make_document: MakeDocument, commit_unit: CommitUnit
) -> None:
    receipt = commit_unit(paths, "u", [make_document(20)], BUILD)
    pack = paths.pack_path(receipt.pack.name)
    data = pack.read_bytes()
    rewrite(pack, data[:-1])
    with pytest.raises(IntegrityError, match=f"{receipt.pack.name}.*{len(data)} bytes"):
        read_receipts(paths)
    pack.unlink()
    with pytest.raises(IntegrityError, match=receipt.pack.name):
        read_receipts(paths)


def test_nothing_is_committed_before_its_pack(
    paths: IndexPaths, make_document: MakeDocument
) -> None:
    row = make_document(20)
    info = write_pack(paths, "u", BUILD, [row])
    paths.pack_path(info.name).unlink()
    with pytest.raises(IntegrityError, match=info.name):
        commit(paths, Receipt("u", BUILD, info, (row.key.hex(),), 20))
    assert read_receipts(paths) == []


def test_a_receipt_that_contradicts_its_pack_is_refused(
    paths: IndexPaths, make_document: MakeDocument, commit_unit: CommitUnit
) -> None:
    receipt = commit_unit(paths, "u", [make_document(20)], BUILD)
    for wrong in (replace(receipt, keys=()), replace(receipt, unit="v")):
        with pytest.raises(UsageError, match="one key a row"):
            commit(paths, wrong)


def test_every_changed_byte_and_every_cut_is_found(
    paths: IndexPaths, make_document: MakeDocument, commit_unit: CommitUnit
) -> None:
    commit_unit(paths, "u", [make_document(20)], BUILD)
    path = paths.receipt_path("u")
    data = path.read_bytes()
    for damaged in (*flips(data), *cuts(data)):
        rewrite(path, damaged)
        with pytest.raises(IntegrityError, match="u.json"):
            read_receipts(paths)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("unit", "v"),
        ("unit", 1),
        ("keys", []),
        ("keys", ["xyz"]),
        ("keys", ["A" * 32]),
        ("keys", {}),
        ("tokens", -1),
        ("tokens", True),
        ("tokens", 1.0),
        ("failed", ["a"]),
        ("failed", [{"source": "a"}]),
        ("pack", None),
        ("pack.name", "../u-0.arrow"),
        ("pack.name", "/etc/passwd"),
        ("pack.sha256", "0"),
        ("pack.rows", 7),
        ("stats", None),
    ],
)
def test_a_forged_receipt_is_refused(
    paths: IndexPaths,
    make_document: MakeDocument,
    commit_unit: CommitUnit,
    field: str,
    value: Any,
) -> None:
    document = commit_unit(paths, "u", [make_document(20)], BUILD).to_json()
    outer, _, inner = field.partition(".")
    target = document[outer] if inner else document
    target[inner or outer] = value
    rewrite(paths.receipt_path("u"), dump_checked(document))
    with pytest.raises(IntegrityError):
        read_receipt(paths, "u")


def test_a_receipt_that_was_removed_after_it_was_listed_is_left_out(
    small_index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = small_index.paths
    listed = [*file_names(paths.commits, ".json")]
    paths.receipt_path("unit-a").unlink()
    looks = iter([listed])
    real = file_names
    monkeypatch.setattr(
        "sift_index.formats.receipts.file_names", lambda *args: next(looks, real(*args))
    )
    assert [receipt.unit for receipt in read_receipts(paths)] == ["unit-b"]


def test_a_receipt_that_stays_without_its_pack_is_damage(small_index: SmallIndex) -> None:
    small_index.paths.pack_path(small_index.receipts[0].pack.name).unlink()
    with pytest.raises(IntegrityError, match="unit-a"):
        read_receipts(small_index.paths)
