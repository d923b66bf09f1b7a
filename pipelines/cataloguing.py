"""From scanned batches to the catalogue: ids and keys are told apart once, at the end."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sift_index.formats.failures import FailedDocument
from sift_index.formats.keyorder import Keys
from sift_index.pipelines.catalogue import Catalogue, Clash, Places, text_column
from sift_index.pipelines.scanned import ScannedBatch
from sift_index.pipelines.segments import offsets_of, same_keys, values_of


@dataclass
class CatalogueBuilder:
    """Takes in batches, in corpus order; each column is joined when the last one is in."""

    id_text: list[NDArray[np.uint8]] = field(default_factory=list)
    id_bytes: list[NDArray[np.int32]] = field(default_factory=list)
    pieces: list[NDArray[np.int32]] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    tokens: list[NDArray[np.uint32]] = field(default_factory=list)
    file: list[NDArray[np.int32]] = field(default_factory=list)
    position: list[NDArray[np.int64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._columns = [column.name for column in fields(self)]
        self._files = _FileNames()
        self._skipped: Counter[str] = Counter()
        self._unread: list[FailedDocument] = []
        self._overlong: list[FailedDocument] = []
        self._kept: list[str] = []
        self.read = 0

    def add(self, batch: ScannedBatch) -> None:
        """Take in a batch; its arrays are copied, for they may lie in Ray's store."""
        for name in self._columns:
            getattr(self, name).append(np.array(getattr(batch, name)))
        self.file[-1] += self._files.add(batch.files)
        self._skipped.update(batch.skipped)
        self._unread += batch.failed[: batch.unread]
        self._overlong += batch.failed[batch.unread :]
        self._kept += batch.kept_ids
        self.read += batch.read

    def finish(self) -> Catalogue:
        """Return the catalogue; the builder is empty then."""
        ids = text_column(self._joined("id_text", np.uint8), self._joined("id_bytes", np.int32))
        ids = ids.cast(pa.large_string())
        offsets = offsets_of(self._joined("pieces", np.int32))
        keys = self._joined("keys", np.uint8).reshape(-1, 16)
        tokens = self._joined("tokens", np.uint32)
        places = Places(
            self._files.column(), self._joined("file", np.int32), self._joined("position", np.int64)
        )
        first, later = _occurrences(ids, offsets, keys)
        clashing = ids.take(pa.array(later.clashes)).to_pylist()
        clashes = map(Clash, clashing, places.at(later.clashes))
        if len(first) < len(ids):
            rows = values_of(offsets, first)
            keys, tokens, ids = keys[rows], tokens[rows], ids.take(pa.array(first))
            offsets, places = offsets_of(np.diff(offsets)[first]), places.take(first)
        return Catalogue(
            ids=ids,
            offsets=offsets,
            keys=keys,
            tokens=tokens,
            places=places,
            read=self.read,
            skipped=dict(self._skipped),
            failed=(*self._unread, *self._overlong),
            clashes=tuple(clashes),
            repeats=later.repeats,
            unread=len(self._unread),
            kept_ids=frozenset(self._kept),
        )

    def _joined(self, name: str, kind: Any) -> NDArray[Any]:
        parts = getattr(self, name)
        found: NDArray[Any] = np.concatenate(
            [part.reshape(-1) for part in parts] or [np.zeros(0, kind)]
        )
        parts.clear()
        return found


def catalogue_of(batches: Iterable[ScannedBatch]) -> Catalogue:
    """Return the catalogue of batches in corpus order."""
    builder = CatalogueBuilder()
    for batch in batches:
        builder.add(batch)
    return builder.finish()


class _FileNames:
    """File names of all batches; a file that goes on in the next batch keeps its number."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._lengths: list[int] = []
        self._last: str | None = None

    def add(self, files: tuple[str, ...]) -> int:
        """Take in a batch's files; return the number of its first one."""
        goes_on = bool(files) and files[0] == self._last
        start = len(self._lengths) - goes_on
        for name in files[goes_on:]:
            encoded = name.encode("utf-8", "surrogateescape")
            self._text += encoded
            self._lengths.append(len(encoded))
        self._last = files[-1] if files else self._last
        return start

    def column(self) -> pa.LargeBinaryArray:
        """Return all names."""
        return text_column(np.frombuffer(bytes(self._text), np.uint8), self._lengths)


@dataclass(frozen=True)
class _Later:
    """Documents under an id that came before: those with its text counted, the others named."""

    repeats: int
    clashes: NDArray[np.int64]


def _occurrences(
    ids: pa.Array, offsets: NDArray[np.int64], keys: Keys
) -> tuple[NDArray[np.int64], _Later]:
    """Return the documents that come first under their id, and what became of the others."""
    # Codes are given in order of appearance: an id is new when its code is the highest so far.
    codes = np.asarray(ids.dictionary_encode().indices)
    new = np.ones(len(codes), bool)
    new[1:] = codes[1:] > np.maximum.accumulate(codes)[:-1]
    first, later = np.flatnonzero(new), np.flatnonzero(~new)
    lengths = np.diff(offsets)
    before = first[codes[later]]
    same = same_keys(
        keys[values_of(offsets, before)],
        offsets_of(lengths[before]),
        keys[values_of(offsets, later)],
        offsets_of(lengths[later]),
    )
    return first, _Later(int(same.sum()), later[~same])
