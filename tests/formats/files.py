"""Changing files of an index the way a test must: as new files under the old name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def rewrite(path: Path, data: bytes | bytearray) -> None:
    """Put other bytes under a name; writing into a file that is mapped is slow, and wrong."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def flips(data: bytes) -> Iterator[bytes]:
    """Yield `data` with one bit, and with all bits, of each byte in turn changed."""
    for place in range(len(data)):
        for bits in (1 << place % 8, 0xFF):
            yield data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


def cuts(data: bytes) -> Iterator[bytes]:
    """Yield every proper beginning of `data`."""
    return (data[:size] for size in range(len(data)))
