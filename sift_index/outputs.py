"""Files a command writes for its user: checked before hours of work, never left half-written."""

import os
import tempfile
from pathlib import Path

from sift_index.errors import UsageError
from sift_index.formats.presence import is_there

ADVICE = "give another path"


def require_writable(path: Path, advice: str = ADVICE) -> None:
    """Raise UsageError when no file can be written at `path`; creates nothing."""
    folder = next(parent for parent in path.absolute().parents if is_there(parent))
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise _unwritable(path, problem, advice) from problem


def write_whole(path: Path, text: str, advice: str = ADVICE) -> None:
    """Write a text file and its folder; a file there is replaced whole, or stays as it is.

    Raises UsageError when it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as problem:
        part.unlink(missing_ok=True)
        raise _unwritable(path, problem, advice) from problem


def _unwritable(path: Path, problem: OSError, advice: str) -> UsageError:
    return UsageError(f"{path} cannot be written: {problem}; {advice}")
