"""The files below a folder, in an order that does not depend on the file system.

A build must list the same corpus the same way on every machine, never leave the folder it was
pointed at, and never lose a file silently.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Kind(Enum):
    """What the walk found at a path."""

    FILE = "file"
    FOLDER = "folder"
    SKIPPED = "skipped"  # a link out of the folder or to a folder, or not a regular file
    UNLISTED = "unlisted"  # a folder that cannot be opened


@dataclass(frozen=True)
class Entry:
    """One path below the root, relative and posix."""

    file: str
    kind: Kind


def walk(root: Path, without: str | None = None) -> Iterator[Entry]:
    """Stream everything below `root` but hidden names, a folder's files before its folders.

    The folder `without`, relative to the root, is left out as if it were not there.
    """
    top = os.path.realpath(root)
    pending = [""]
    while pending:
        folder = pending.pop()
        found = [entry for entry in _listed(root, folder, top) if entry.file != without]
        yield from (entry for entry in found if entry.kind is not Kind.FOLDER)
        pending += [entry.file for entry in reversed(found) if entry.kind is Kind.FOLDER]


def _listed(root: Path, folder: str, top: str) -> list[Entry]:
    try:
        with os.scandir(root / folder) as scan:
            seen = sorted((e for e in scan if not e.name.startswith(".")), key=lambda e: e.name)
    except OSError:
        return [Entry(folder, Kind.UNLISTED)]
    prefix = f"{folder}/" if folder else ""
    return [Entry(prefix + entry.name, _kind(entry, top)) for entry in seen]


def _kind(entry: "os.DirEntry[str]", top: str) -> Kind:
    if entry.is_symlink():
        return _linked_kind(os.path.realpath(entry.path), top)
    if entry.is_dir(follow_symlinks=False):
        return Kind.FOLDER
    return Kind.FILE if entry.is_file(follow_symlinks=False) else Kind.SKIPPED


def _linked_kind(target: str, top: str) -> Kind:
    # A folder inside the root is walked where it lies: following links to it could run in circles.
    # A broken link counts as a file, so that reading it reports the document as missing.
    inside = os.path.commonpath([top, target]) == top
    usable = os.path.isfile(target) or not os.path.exists(target)
    return Kind.FILE if inside and usable else Kind.SKIPPED
