"""Receipts: the proof that a unit is done, and the only thing workers send to the driver.

A receipt is created if absent. When two workers did the same unit, the first receipt counts and
the other worker's pack is garbage, whatever the driver believed about who was alive.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from sift_index.formats.canonical import dump_checked, load_checked
from sift_index.formats.errors import IntegrityError
from sift_index.formats.failures import FailedDocument
from sift_index.formats.fields import Fields
from sift_index.formats.fileinfo import PackInfo
from sift_index.formats.keyorder import Keys, stack_keys
from sift_index.formats.location import Location
from sift_index.formats.parallel import ask_all
from sift_index.formats.problems import damaged, misused
from sift_index.formats.store import (
    IndexPaths,
    file_names,
    file_sizes,
    freshen,
    read_file,
    regular_size,
    write_if_absent,
)

_FEW = 64
Failure = FailedDocument
Stat = float | int | str


@dataclass(frozen=True)
class Receipt:
    """One finished unit.

    `keys` are hexadecimal, one a row of the pack; `tokens` counts the tokens of those rows;
    `failed` names documents left out; `stats` holds seconds, worker and device.
    """

    unit: str
    build_digest: str
    pack: PackInfo
    keys: tuple[str, ...]
    tokens: int
    failed: tuple[Failure, ...] = ()
    stats: Mapping[str, Stat] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "unit": self.unit,
            "build_digest": self.build_digest,
            "pack": self.pack.to_json(),
            "keys": list(self.keys),
            "tokens": self.tokens,
            "failed": [failure.to_json() for failure in self.failed],
            "stats": dict(self.stats),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Receipt:
        """Read the fields back; raise IntegrityError naming a missing or impossible one."""
        return cls(
            fields.text("unit"),
            fields.text("build_digest"),
            PackInfo.from_json(fields.child("pack")),
            tuple(fields.hex(key, "keys", 32) for key in fields.items("keys")),
            fields.number("tokens"),
            tuple(Failure.from_json(child) for child in fields.children("failed")),
            fields.mapping("stats"),
        )


def commit(paths: IndexPaths, receipt: Receipt) -> Receipt:
    """Publish a receipt, or find that the unit was committed before; return the one on disk.

    Raises UsageError for a receipt that contradicts itself, IntegrityError when its pack is not
    there or the earlier receipt is damaged, BuildError when nothing can be written.
    """
    if receipt.pack.unit != receipt.unit or receipt.pack.rows != len(receipt.keys):
        found = f"pack {receipt.pack.name} with {receipt.pack.rows} rows, {len(receipt.keys)} keys"
        raise misused(f"receipt {receipt.unit}", "one key a row", found, "write the pack first")
    _check_pack(paths, receipt, paths.receipt_path(receipt.unit))
    if write_if_absent(paths.receipt_path(receipt.unit), dump_checked(receipt.to_json())):
        return read_receipt(paths, receipt.unit)
    return reuse_receipt(paths, receipt.unit) or commit(paths, receipt)


def reuse_receipt(paths: IndexPaths, unit: str) -> Receipt | None:
    """Return the receipt of a unit that was committed before, None if it was not.

    It is marked as used, for `gc` removes those of deleted documents, which may come again. Raises
    IntegrityError for a damaged one or a lost pack.
    """
    return _read_if_there(paths, unit) if freshen(paths.receipt_path(unit)) else None


def read_receipt(
    paths: IndexPaths, unit: str, packs: Mapping[str, int] = MappingProxyType({})
) -> Receipt:
    """Return the receipt of one unit; raise IntegrityError for a damaged one or a lost pack.

    `packs` are sizes that are known of packs by name; others are asked for.
    """
    path = paths.receipt_path(unit)
    receipt = Receipt.from_json(Fields(load_checked(read_file(path), path), path))
    if receipt.unit != unit or receipt.pack.unit != unit:
        raise damaged(path, f"unit {unit}", f"{receipt.unit} with pack {receipt.pack.name}")
    if receipt.pack.rows != len(receipt.keys):
        raise damaged(path, f"{receipt.pack.rows} keys", len(receipt.keys))
    if packs.get(receipt.pack.name) != receipt.pack.bytes:
        _check_pack(paths, receipt, path)
    return receipt


def receipt_keys(receipts: Iterable[Receipt]) -> Keys:
    """Return the keys of receipts, uint8 [n, 16], one receipt behind another."""
    return stack_keys(b"".join(bytes.fromhex("".join(receipt.keys)) for receipt in receipts))


def read_receipts(
    paths: IndexPaths, build_digest: str | None = None, without: Container[str] = ()
) -> list[Receipt]:
    """Return all receipts sorted by unit, or those of one build; units in `without` are not read.

    Those that `gc` removes meanwhile are left out. Raises IntegrityError for a damaged receipt and
    for one whose pack is missing or cut.
    """
    names = [name.removesuffix(".json") for name in file_names(paths.commits, ".json")]
    units = [unit for unit in names if unit not in without]
    # All are listed by the thousand, one request after another; alone, several are asked at once.
    packs = file_sizes(paths.packs) if len(units) > len(names) // _FEW else {}
    found = ask_all(partial(_read_if_there, paths, packs=packs), units)
    receipts = filter(None, found)
    return [r for r in receipts if build_digest is None or r.build_digest == build_digest]


def _read_if_there(
    paths: IndexPaths, unit: str, packs: Mapping[str, int] = MappingProxyType({})
) -> Receipt | None:
    try:
        return read_receipt(paths, unit, packs)
    except IntegrityError:
        if paths.receipt_path(unit).name in file_names(paths.commits, ".json"):
            raise
        return None  # gc removed it, and then its pack, after it was listed


def _check_pack(paths: IndexPaths, receipt: Receipt, where: Location) -> None:
    path = paths.pack_path(receipt.pack.name)
    size = regular_size(path)
    if size != receipt.pack.bytes:
        advice = f"remove {where.name} so that the unit is built again"
        raise damaged(path, f"{receipt.pack.bytes} bytes", size, advice)
