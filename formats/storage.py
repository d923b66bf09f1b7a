"""What an index asks of the place it lies in: few operations, each whole or without effect.

`local` answers for folders, `remote` for object stores. The rest of the format goes through
`store`, which picks one by the path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa

TEMP_PREFIX = ".tmp-"
MAX_JSON_BYTES = 1 << 28

# Path or RemotePath. Not their union: who knows that an index is a folder may use it as one.
Place = Any
# (first byte, number of bytes) to these bytes of a file; fewer at its end.
ReadPiece = Callable[[int, int], bytes]


class Storage(Protocol):
    """Files by path. A name is written once, except through `replace`."""

    # Seconds in which two writes may get the same modification time.
    clock_step: float

    def create(self, root: Place, folders: Sequence[Place]) -> None:
        """Make the folders; raise BuildError or StorageError when that is impossible."""

    def require_writable(self, folders: Sequence[Place]) -> None:
        """Raise BuildError for a folder that no file can be written to, as far as can be told."""

    def require_real_folders(self, folders: Sequence[Place]) -> None:
        """Raise IntegrityError for a folder that is a link."""

    def absence(self, root: Place) -> str:
        """Say what is there instead of an index."""

    def put_if_absent(self, path: Place, data: bytes) -> bool:
        """Publish `data` unless the name exists; say whether this call did it."""

    def put_folder_if_absent(self, folder: Place, files: Mapping[str, bytes]) -> bool:
        """Publish a whole folder unless it exists; say whether this call did it."""

    def replace(self, path: Place, data: bytes) -> None:
        """Write or replace a small file that nobody maps."""

    def freshen(self, path: Place) -> bool:
        """Set the modification time to now; False when the file is gone."""

    def remove(self, found: Sequence[Place]) -> None:
        """Remove files in this order; what is gone already is no error."""

    def read(self, path: Place, limit: int) -> bytes:
        """Return the bytes of a file of at most `limit` bytes, or raise IntegrityError."""

    def map(self, path: Place, size: int, sha256: str) -> pa.Buffer:
        """Return a file of `size` bytes as memory that processes share."""

    def pieces(self, path: Place, size: int) -> AbstractContextManager[ReadPiece]:
        """Open a file of `size` bytes of which only pieces are needed; no copy is kept."""

    def refetch(self, path: Place, size: int, sha256: str) -> None:
        """Let the next `map` see what is stored now, not an earlier copy."""

    def size(self, path: Place) -> int:
        """Return the size of a file; raise IntegrityError for none."""

    def names(self, folder: Place) -> list[str]:
        """Return all names in a folder, temporary ones too; none for a missing folder."""

    def sizes(self, folder: Place) -> dict[str, int]:
        """Return the bytes of the regular files in a folder by name, as `names` lists them."""

    def modified(self, path: Place) -> float:
        """Return when a file, or the newest of a folder, was written.

        0 for none, infinity where that cannot be seen.
        """

    def total(self, path: Place) -> int:
        """Return the bytes of a file or folder; 0 where there is none."""
