"""Results too large for memory: written under a temporary name beside it, then put if absent.

The rule of `store` for files that are streamed: whoever looks sees the whole file or folder, or
none, and nothing that is there already is replaced.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sift_index.formats.errors import UsageError
from sift_index.formats.presence import resolved, unreachable
from sift_index.formats.problems import cannot_write, misused
from sift_index.formats.store import TEMP_PREFIX

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


@contextmanager
def staged_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write; it becomes `path` when the block ends without an error.

    Raises UsageError when `path` exists, before and after, or a parent is a file; BuildError on
    OSError.
    """
    if os.path.lexists(path):
        raise _taken(resolved(path))
    path = resolved(path)
    with _temporary(path) as temp:
        yield temp
        _sync(temp)
        os.link(temp, path)


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; it becomes `path` when the block ends without an error.

    An empty folder counts as absent, and is replaced: who works in it must enter it again. Raises
    as `staged_file` does.
    """
    if not _is_free(path):
        raise _taken(resolved(path))
    if os.path.ismount(path):
        raise misused(
            resolved(path), "a folder that can be replaced", "a mount point", "name a folder in it"
        )
    path = resolved(path)  # the parent of `.` is the folder above, and no link is replaced
    with _temporary(path) as temp:
        temp.mkdir()
        yield temp
        for folder, _, names in os.walk(temp):
            for name in names:
                _sync(Path(folder, name))
            _sync(Path(folder))
        os.rename(temp, path)


def _is_free(path: Path) -> bool:
    try:
        return not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir()))
    except OSError as error:
        raise unreachable(path, error) from error


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    temp = path.parent / f"{TEMP_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    _make_parent(path.parent)
    try:
        yield temp
        _sync(path.parent)
    except OSError as error:
        raise _taken(path) if error.errno in _TAKEN else cannot_write(path, error) from error
    finally:
        shutil.rmtree(temp, ignore_errors=True)
        with suppress(OSError):
            temp.unlink()


def _make_parent(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        expected, advice = "a folder to write to", "give a path whose parents are folders"
        raise misused(folder, expected, "a file there or above", advice) from error
    except OSError as error:
        raise cannot_write(folder, error) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _taken(path: Path) -> UsageError:
    return misused(path, "a path that is free", "something there", "give another, or remove it")
