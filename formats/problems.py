"""One way to phrase an error, so that every message says expected, found and what to do."""

from __future__ import annotations

from sift_index.formats.errors import BuildError, IntegrityError, UsageError

RESTORE = "restore the file from a copy, or delete the index folder and build it again"
PERMIT = "let this user read it, and enter its folders (chmod, chown), or run as its owner"


def damaged(
    where: object, expected: object, found: object, advice: str = RESTORE
) -> IntegrityError:
    """Return (not raise) the error for bytes that are not the ones that were written."""
    return IntegrityError(f"{where}: expected {expected}, found {found}; {advice}")


def unreadable(where: object, expected: object, error: Exception) -> IntegrityError:
    """Return (not raise) the error for a file system that refused to let something be read."""
    advice = PERMIT if isinstance(error, PermissionError) else RESTORE
    found = getattr(error, "strerror", None) or error
    return damaged(where, expected, found, advice)


def misused(what: object, expected: object, found: object, advice: str) -> UsageError:
    """Return (not raise) the error for an argument that cannot be used as given."""
    return UsageError(f"{what}: expected {expected}, found {found}; {advice}")


def cannot_remove(path: object, error: OSError) -> BuildError:
    """Return (not raise) the error for a file system that refused to remove a file."""
    return BuildError(
        f"{path}: expected to remove this file, found {error.strerror or error}; make the folder"
        " writable and run the same command again: it goes on where it stopped"
    )


def cannot_write(path: object, error: OSError) -> BuildError:
    """Return (not raise) the error for a file system that refused a write."""
    return BuildError(
        f"{path}: expected to write this file, found {error.strerror or error}; free disk space or"
        " make the folder writable (a local or POSIX file system with hard links), then run the"
        " same command again: it resumes"
    )
