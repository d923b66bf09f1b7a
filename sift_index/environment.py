"""Every environment variable the project reads, in one place."""

import os
from pathlib import Path

CACHE_VARIABLE = "SIFT_CACHE_DIR"
CROSSOVER_VARIABLE = "SIFT_CROSSOVER"


def cache_directory() -> Path:
    """Return the folder for converted models: $SIFT_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "sift-index"


def crossover_setting() -> str | None:
    """Return $SIFT_CROSSOVER (auto, off or a table's path), which stands in for the default."""
    return os.environ.get(CROSSOVER_VARIABLE) or None
