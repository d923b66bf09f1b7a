"""An index in an object store: objects appear whole, and what is mapped is a local copy.

Small files are read from the store each time. Packs and key tables are downloaded once, checked
by size and SHA-256, and mapped from this machine's cache.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
from pyarrow import fs

from sift_index.formats import downloads
from sift_index.formats.buckets import filesystem, s3_client, store_errors
from sift_index.formats.claims import put_by_claim
from sift_index.formats.errors import IntegrityError, StorageError
from sift_index.formats.location import RemotePath
from sift_index.formats.problems import damaged, misused, unreadable
from sift_index.formats.storage import TEMP_PREFIX, ReadPiece
from sift_index.formats.uploads import freshen_conditionally, put_conditionally

# Less than any store's smallest part: a stream of pyarrow is one request, or none if it fails.
ONE_REQUEST_BYTES = 5 << 20
# S3 copies this much in one request, and pyarrow's copy_file makes one (Google's has no limit).
COPIED_BYTES = 5 << 30


class RemoteStorage:
    """`Storage` by requests to S3, Google Cloud Storage or what speaks like them."""

    clock_step = 1.0  # HTTP dates have whole seconds

    def create(self, root: RemotePath, folders: Sequence[RemotePath]) -> None:
        """Make nothing, for names need no folders; raise StorageError without the bucket."""
        if self._info(RemotePath(root.scheme, root.bucket)) is None:
            raise StorageError(
                f"{root}: expected the bucket {root.bucket}, found none; make it, or correct the "
                "name"
            )

    def require_writable(self, folders: Sequence[RemotePath]) -> None:
        """Do nothing: what a key may do is known once it is tried."""

    def require_real_folders(self, folders: Sequence[RemotePath]) -> None:
        """Do nothing: an object store has no links."""

    def absence(self, root: RemotePath) -> str:
        """Say what is there instead of an index."""
        if self._info(RemotePath(root.scheme, root.bucket)) is None:
            return f"no bucket {root.bucket}"
        return "a prefix without manifests" if self._info(root) else "nothing there"

    def put_if_absent(self, path: RemotePath, data: bytes) -> bool:
        """Publish `data` unless the name exists: by a conditional write, or else by a claim.

        A claim in S3 has at most 5 GiB, see `replace`; conditional writes go up to 2.5 TiB.
        """
        client = s3_client(path) if path.scheme == "s3" else None
        if client is not None:
            return put_conditionally(client, path, data)

        def put(key: str, content: bytes) -> None:
            self.replace(RemotePath(path.scheme, key), content)

        with store_errors(path):
            return put_by_claim(filesystem(path), put, path.key, data)

    def put_folder_if_absent(self, folder: RemotePath, files: Mapping[str, bytes]) -> bool:
        """Refuse: several objects cannot appear as one."""
        raise misused(
            folder,
            "a file system for texts taken from the corpus",
            "an object store",
            "build into a folder and upload it, or give the policy a folder of probe texts",
        )

    def replace(self, path: RemotePath, data: bytes) -> None:
        """Write an object; who reads sees the old one or the new one.

        A stream of pyarrow cannot be given up: closing it after a part failed makes an object of
        the parts before. So more than one request's bytes are written beside it and copied, which
        S3 does for 5 GiB; StorageError for more.
        """
        if len(data) < ONE_REQUEST_BYTES:
            _stream(path, data)
            return
        _require_copyable(path, len(data))
        temp = path.with_name(f"{TEMP_PREFIX}{path.name}-{secrets.token_hex(8)}")
        try:
            _stream(temp, data)
            with store_errors(path):
                filesystem(path).copy_file(temp.key, path.key)
        finally:
            with suppress(StorageError):  # what failed before is the error to tell
                self.remove([temp])

    def freshen(self, path: RemotePath) -> bool:
        """Write the same bytes again, the only way to a new modification time.

        A conditional write (`If-Match`) lets the store itself refuse when `gc` removed the object
        since it was read, so nothing comes back. Without one (no boto3, not S3, or a store that
        knows none) what is removed between reading and writing does come back. `gc` looks for
        receipts that did before it removes packs; a receipt without its pack remains where it
        lands after that look, and is then reported by whoever reads it.
        """
        client = s3_client(path) if path.scheme == "s3" else None
        if client is not None and (done := freshen_conditionally(client, path)) is not None:
            return done
        try:
            with store_errors(path), filesystem(path).open_input_file(path.key) as source:
                data = source.read()
        except IntegrityError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        self.replace(path, data)
        return True

    def remove(self, found: Sequence[RemotePath]) -> None:
        """Remove objects in this order; what is gone already is no error."""
        for path in found:
            with store_errors(path), suppress(FileNotFoundError):
                filesystem(path).delete_file(path.key)

    def read(self, path: RemotePath, limit: int) -> bytes:
        """Return the bytes of an object of at most `limit` bytes."""
        with store_errors(path), filesystem(path).open_input_file(path.key) as source:
            if source.size() > limit:
                raise damaged(path, f"at most {limit} bytes", source.size())
            return bytes(source.read())

    def map(self, path: RemotePath, size: int, sha256: str) -> pa.Buffer:
        """Map the local copy, downloaded first where it is missing or damaged."""
        data = downloads.kept(size, sha256)
        if data is None:
            self.refetch(path, size, sha256)
            data = downloads.kept(size, sha256)
        if data is None:
            cache = downloads.cache_folder()
            raise damaged(cache / sha256, "the bytes just written", "others", "check this disk")
        return data

    @contextmanager
    def pieces(self, path: RemotePath, size: int) -> Iterator[ReadPiece]:
        """Open an object of exactly `size` bytes; each piece is one ranged request."""
        with store_errors(path):
            source = filesystem(path).open_input_file(path.key)

        def read(start: int, count: int) -> bytes:
            with store_errors(path):
                return bytes(source.read_at(count, start))

        with source:
            if source.size() != size:
                raise damaged(path, f"{size} bytes", source.size())
            yield read

    def refetch(self, path: RemotePath, size: int, sha256: str) -> None:
        """Download again, whatever copy there is; IntegrityError when the object is damaged."""
        with store_errors(path), filesystem(path).open_input_file(path.key) as source:
            downloads.keep(source, path, size, sha256)

    def size(self, path: RemotePath) -> int:
        """Return the size of an object; raise IntegrityError for none."""
        info = self._info(path)
        if info is None or info.type != fs.FileType.File:
            gone = FileNotFoundError(f"no object {path.key}")
            raise unreadable(path, "an object", gone) from gone
        return int(info.size)

    def names(self, folder: RemotePath) -> list[str]:
        """Return the names of the objects with this prefix, up to the next slash."""
        return [*self.sizes(folder)]

    def sizes(self, folder: RemotePath) -> dict[str, int]:
        """Return the bytes of the objects that `names` lists; one request for a thousand."""
        with store_errors(folder):
            selector = fs.FileSelector(folder.key, allow_not_found=True)
            found = filesystem(folder).get_file_info(selector)
        return {info.base_name: int(info.size) for info in found if info.type == fs.FileType.File}

    def modified(self, path: RemotePath) -> float:
        """Return when an object was written; see `Storage`."""
        try:
            info = self._info(path)
        except StorageError:
            return math.inf
        return 0.0 if info is None or info.mtime is None else float(info.mtime.timestamp())

    def total(self, path: RemotePath) -> int:
        """Return the bytes of an object; 0 where there is none."""
        info = self._info(path)
        return int(info.size or 0) if info else 0

    def _info(self, path: RemotePath) -> fs.FileInfo | None:
        with store_errors(path):
            info = filesystem(path).get_file_info(path.key)
        return None if info.type == fs.FileType.NotFound else info


def _stream(path: RemotePath, data: bytes) -> None:
    with store_errors(path), filesystem(path).open_output_stream(path.key) as out:
        out.write(data)


def _require_copyable(path: RemotePath, size: int) -> None:
    if path.scheme == "s3" and size > COPIED_BYTES:
        raise StorageError(
            f"{path}: expected at most {COPIED_BYTES} bytes to write without conditional requests, "
            f"found {size}; install sift-index[s3] (boto3), which writes it in parts, and run the "
            "same command again"
        )
