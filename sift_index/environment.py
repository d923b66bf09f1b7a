"""Every environment variable the project reads, in one place."""

import os
from pathlib import Path

CACHE_VARIABLE = "SIFT_CACHE_DIR"


def cache_directory() -> Path:
    """Return the folder for converted models: $SIFT_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "sift-index"
