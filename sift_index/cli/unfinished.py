"""An index that no build has finished yet: who finds none is told where to look instead."""

from pathlib import Path

from sift_index.errors import IndexNotFoundError, SiftError
from sift_index.formats.buildstate import state_names
from sift_index.formats.location import RemotePath
from sift_index.formats.manifest import versions
from sift_index.formats.store import IndexPaths, file_names


def explained(error: SiftError, index: object) -> SiftError:
    """Return the error, or one that names `sift-index status` where only a build is to be found.

    `index` is the argument of the command that failed; for commands without one it is None.
    """
    if not isinstance(error, IndexNotFoundError) or not isinstance(index, Path | RemotePath):
        return error
    try:
        units = _unpublished(IndexPaths(index))
    except (SiftError, OSError):
        return error
    if units is None:
        return error
    return IndexNotFoundError(
        f"expected a version of the index in {index}, found a build that has not published one "
        f"yet, with {units:,} committed units; `sift-index status {index}` says whether it runs, "
        "how far it is and its command: if it was interrupted, run that again to resume"
    )


def _unpublished(paths: IndexPaths) -> int | None:
    """Return the units of an index without a version; None where there is no build either."""
    units = len(file_names(paths.commits, ".json"))
    there = units or state_names(paths)
    return units if there and not versions(paths) else None
