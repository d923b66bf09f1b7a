"""Packs and key tables of an object store, kept on this machine's disk under their SHA-256.

The name is the content, so an entry serves every index and version that names it, a damaged one is
found by hashing it, and openers that fetch the same file at once put the same bytes in its place.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from sift_index.formats.errors import IntegrityError, StorageError
from sift_index.formats.local import LocalStorage
from sift_index.formats.problems import damaged
from sift_index.formats.storage import TEMP_PREFIX

CHUNK = 1 << 23
_LOCAL = LocalStorage()


def cache_folder() -> Path:
    """Return where copies are kept: $SIFT_CACHE, else sift-index in the user's cache folder."""
    if chosen := os.environ.get("SIFT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sift-index"


def kept(size: int, sha256: str) -> pa.Buffer | None:
    """Map the copy with this hash; None where there is none, or a damaged one.

    The copy is read whole, once a process and file.
    """
    try:
        data = _LOCAL.map(cache_folder() / sha256, size)
    except IntegrityError:
        return None
    return data if new_sha256(data).hexdigest() == sha256 else None


def keep(source: pa.NativeFile, where: object, size: int, sha256: str) -> None:
    """Copy a stream into the cache, in place of a damaged copy.

    Raises IntegrityError for other bytes than `sha256` says (then nothing is kept), StorageError
    when the cache cannot be written; what reading `source` raises passes through.
    """
    with _temporary() as temp:
        found = _copied(source, temp)
        if found != (size, sha256):
            expected = f"{size} bytes with sha256 {sha256}"
            raise damaged(where, expected, f"{found[0]} bytes with sha256 {found[1]}")
        with _cache_errors():
            os.replace(temp, cache_folder() / sha256)


def _copied(source: pa.NativeFile, temp: Path) -> tuple[int, str]:
    """Write all of a stream to a file; return its size and SHA-256."""
    digest, size = new_sha256(), 0
    with _cache_errors():
        file: BinaryIO = temp.open("xb")
    with file:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            with _cache_errors():
                file.write(chunk)
                file.flush()
    return size, digest.hexdigest()


@contextmanager
def _temporary() -> Iterator[Path]:
    folder = cache_folder()
    with _cache_errors():
        folder.mkdir(parents=True, exist_ok=True)
    temp = folder / f"{TEMP_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    try:
        yield temp
    finally:
        with suppress(OSError):
            temp.unlink()


@contextmanager
def _cache_errors() -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise StorageError(
            f"{cache_folder()}: expected a folder for copies of the index, found a file there or"
            " above; set SIFT_CACHE to a folder (it is made if absent), or move the file away"
        ) from error
    except OSError as error:
        raise StorageError(
            f"{cache_folder()}: expected to keep a copy of the index here, found "
            f"{error.strerror or error}; free disk space, or set SIFT_CACHE to another folder"
        ) from error
