"""What a missing file means while `gc` may run: a version that was replaced, not damage.

A writer or an export that holds no mapping of a pack loses it when its version is removed. Both
look again before they tell a user to restore a file that nobody lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sift_index.formats.errors import IndexNotFoundError, IntegrityError
from sift_index.formats.manifest import Manifest, conflict, current_version, versions
from sift_index.formats.store import IndexPaths


@contextmanager
def conflict_when_replaced(paths: IndexPaths, base: Manifest | None) -> Iterator[None]:
    """Turn damage found by a writer on top of `base` into CommitConflictError if it came too late.

    Nothing could be published after `base` (None: no version) any more; damage that is real is
    found again.
    """
    before = base.version if base else 0
    try:
        yield
    except IntegrityError as error:
        if (current_version(paths) or 0) <= before:
            raise
        version = before + 1
        raise conflict(paths.manifest_path(version), version) from error


@contextmanager
def not_found_when_removed(paths: IndexPaths, manifest: Manifest) -> Iterator[None]:
    """Turn damage found in a version into IndexNotFoundError if that version is gone."""
    try:
        yield
    except IntegrityError as error:
        if manifest.version in versions(paths):
            raise
        raise IndexNotFoundError(
            f"{paths.root}: expected version {manifest.version} to stay while it is read, found"
            " that `sift-index gc` removed this version; run the same command for one that"
            " `sift-index versions` lists"
        ) from error
