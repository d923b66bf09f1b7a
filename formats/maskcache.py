"""Masks that cost time to decode, kept up to a bound: of zstd blobs, not of raw ones (views)."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from sift_index.formats.masks import DocumentMasks


class MaskCache:
    """The last used rows by key, up to `limit` bytes of decoded bits; safe between threads."""

    def __init__(self, limit: int) -> None:
        """Bound the cache; what is larger alone is never kept."""
        self._limit, self.bytes = limit, 0
        self._rows: OrderedDict[bytes, DocumentMasks] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: bytes) -> DocumentMasks | None:
        """Return a row that is kept, which makes it the last to go, or None."""
        with self._lock:
            row = self._rows.get(key)
            if row is not None:
                self._rows.move_to_end(key)
            return row

    def add(self, row: DocumentMasks) -> None:
        """Keep a row, in place of those not used for longest."""
        size = _size(row)
        with self._lock:
            if size > self._limit or row.key in self._rows:
                return
            self._rows[row.key] = row
            self.bytes += size
            while self.bytes > self._limit:
                self.bytes -= _size(self._rows.popitem(last=False)[1])


def _size(row: DocumentMasks) -> int:
    return row.ca.packed.nbytes + (0 if row.la is None else row.la.packed.nbytes)
