"""Planning: from scanned documents to units, without running the model.

The same corpus and configuration always give the same units in the same order, whatever has been
committed so far: that is what lets a rerun recognise finished work by its name.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sift_index.formats.failures import FailedDocument
from sift_index.pipelines.documents import (
    Piece,
    Scanned,
    ScannedDocument,
    SkippedDocument,
)


@dataclass(frozen=True)
class Unit:
    """The atom of work, retry and commit: pieces cut by token budget, ordered by length."""

    id: str
    pieces: tuple[Piece, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all pieces."""
        return sum(piece.tokens for piece in self.pieces)

    def halves(self, build_digest: str) -> tuple["Unit", "Unit"]:
        """Split a unit that keeps failing, to isolate the document at fault."""
        middle = len(self.pieces) // 2
        parts = self.pieces[:middle], self.pieces[middle:]
        first, second = (Unit(unit_id(part, build_digest), part) for part in parts)
        return first, second


@dataclass
class Catalogue:
    """What the corpus holds: documents by id, one piece per key, and what was left out.

    `duplicate_ids` have the text of an earlier id; `repeats` counts documents that came twice
    under one id; `clashes` came under an earlier id with another text.
    """

    documents: dict[str, ScannedDocument] = field(default_factory=dict)
    pieces: dict[bytes, Piece] = field(default_factory=dict)
    skipped: list[SkippedDocument] = field(default_factory=list)
    failed: list[FailedDocument] = field(default_factory=list)
    clashes: list[ScannedDocument] = field(default_factory=list)
    duplicate_ids: set[str] = field(default_factory=set)
    read: int = 0
    repeats: int = 0
    split: int = 0

    def add(self, found: Iterable[Scanned]) -> None:
        """Take in scanned documents, in corpus order."""
        for item in found:
            self.read += 1
            if isinstance(item, ScannedDocument):
                self._add_document(item)
            elif isinstance(item, SkippedDocument):
                self.skipped.append(item)
            else:
                self.failed.append(item)

    def _add_document(self, item: ScannedDocument) -> None:
        known = self.documents.get(item.id)
        if known is not None and known.keys != item.keys:
            self.clashes.append(item)
            return
        if known is not None:
            self.repeats += 1
            return
        if all(piece.key in self.pieces for piece in item.pieces):
            self.duplicate_ids.add(item.id)
        self.split += len(item.pieces) > 1
        self.documents[item.id] = item
        for piece in item.pieces:
            self.pieces.setdefault(piece.key, piece)


def unit_id(pieces: Sequence[Piece], build_digest: str) -> str:
    """Return 32 hex digits: a hash of the sorted keys and the build fingerprint."""
    digest = hashlib.blake2b(bytes.fromhex(build_digest), digest_size=16)
    for key in sorted(piece.key for piece in pieces):
        digest.update(key)
    return digest.hexdigest()


def cut_units(pieces: Iterable[Piece], unit_tokens: int, build_digest: str) -> list[Unit]:
    """Cut pieces, ordered by length, into units of at most `unit_tokens` tokens.

    A piece longer than the budget is a unit of its own.
    """
    units: list[list[Piece]] = []
    room = 0
    for piece in sorted(pieces, key=lambda piece: (piece.tokens, piece.key)):
        if not units or piece.tokens > room:
            units.append([])
            room = unit_tokens
        units[-1].append(piece)
        room -= piece.tokens
    return [Unit(unit_id(part, build_digest), tuple(part)) for part in units]
