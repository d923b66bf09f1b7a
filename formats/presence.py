"""Is something there? Where this user may not look, that is said: it is neither yes nor no.

`pathlib` raises OSError there and `os.path` answers no, which would be taken for a free path.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from sift_index.formats.errors import UsageError
from sift_index.formats.problems import misused

REACH = "let this user enter the folders above it (chmod, chown), or give another path"
SHORTEN = "give a shorter one"
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)  # as pathlib has it
_SHOWN = 80


def is_there(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to anything; UsageError where the system does not tell."""
    return _mode(path) is not None


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to a folder; UsageError where the system does not tell."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to a regular file; UsageError where the system does not tell."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path without links; UsageError where the system does not tell it.

    A link that leads to itself stays as it is.
    """
    try:
        return Path(os.path.realpath(path))
    except OSError as error:
        raise unreachable(path, error) from error


def unreachable(path: str | os.PathLike[str], error: OSError) -> UsageError:
    """Return (not raise) the error for a path at which the system lets nobody look."""
    text = os.fsdecode(path).encode("utf-8", "backslashreplace").decode()
    long = error.errno == errno.ENAMETOOLONG
    where = f"{text[:_SHOWN]}…" if long else text
    advice = SHORTEN if long else REACH
    return misused(where, "a path that can be looked at", error.strerror or error, advice)


def _mode(path: str | os.PathLike[str]) -> int | None:
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in _NOTHING:
            return None
        raise unreachable(path, error) from error
    except ValueError:  # a text that no path can be: a zero byte, a lone surrogate
        return None
