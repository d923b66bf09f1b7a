"""A file of which pyarrow sees all and only pieces are fetched: each may be a request to a store.

What is needed is known beforehand, nearly: both ends of the file. So they come in one request each,
or in one for both, and anything else pyarrow asks for comes when it asks.
"""

from __future__ import annotations

import io
import os
from typing import Any

from sift_index.formats.storage import ReadPiece


class FilePieces(io.RawIOBase):
    """`size` bytes behind `read`; the first `head` and the last `tail` of them are fetched once."""

    def __init__(self, read: ReadPiece, size: int, head: int, tail: int) -> None:
        """Fetch both ends now; raise what `read` raises."""
        self.size, self._read, self._place = size, read, 0
        ends = [(0, size)] if head + tail >= size else [(0, head), (size - tail, tail)]
        self._held = [(start, read(start, count)) for start, count in ends]

    def piece(self, start: int, count: int) -> bytes:
        """Return the bytes from `start`, fewer at the end of the file; ValueError for beyond it."""
        if not 0 <= start <= self.size:  # a store would call that its own trouble
            raise ValueError(f"expected a place within {self.size} bytes, found {start}")
        count = max(0, min(count, self.size - start))
        for first, data in self._held:
            if first <= start and start + count <= first + len(data):
                return data[start - first : start - first + count]
        return self._read(start, count)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the place on, and go behind what was read."""
        view = memoryview(buffer).cast("B")
        data = self.piece(self._place, len(view))
        view[: len(data)] = data
        self._place += len(data)
        return len(data)
