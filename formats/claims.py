"""Creating an object only if its name is free, where the store has no conditional write for us.

A writer puts its bytes under a temporary name, its claim, and lists the claims. Listings of S3 and
Google Cloud Storage show every finished write, so of two writers at least one sees the other.
Whoever is alone copies its claim to the name, inside the store and at once; others step back.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable

from pyarrow import fs

from sift_index.formats.errors import CommitConflictError
from sift_index.formats.storage import TEMP_PREFIX

# A claim this much older than another's was left by a writer that died.
LEASE_SECONDS = 60.0
PATIENCE_SECONDS = 2 * LEASE_SECONDS
Put = Callable[[str, bytes], None]


def put_by_claim(files: fs.FileSystem, put: Put, key: str, data: bytes) -> bool:
    """Create the object `key` if it is absent; say whether this call did it.

    `put` writes an object whole. Safe unless a writer stops for LEASE_SECONDS between listing and
    copying. Raises CommitConflictError when others keep claiming the name.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _exists(files, key):
        folder, _, name = key.rpartition("/")
        mine = f"{folder}/{TEMP_PREFIX}{name}-{secrets.token_hex(8)}"
        put(mine, data)
        try:
            if _alone(files, folder, f"{TEMP_PREFIX}{name}-", mine):
                if _exists(files, key):  # put between the first look and the claim
                    return False
                files.copy_file(mine, key)
                return True
        finally:
            files.delete_file(mine)
        if time.monotonic() > deadline:
            raise CommitConflictError(
                f"{key}: expected to write this object, found claims of other writers; "
                "run the same command again"
            )
        time.sleep(random.uniform(0.1, 2.0))
    return False


def _alone(files: fs.FileSystem, folder: str, prefix: str, mine: str) -> bool:
    """Say whether no other claim is alive; ages are compared by the store's own clock."""
    found = files.get_file_info(fs.FileSelector(folder))
    claims = {info.path: info.mtime for info in found if info.base_name.startswith(prefix)}
    age = {path: (claims[mine] - written).total_seconds() for path, written in claims.items()}
    return not any(path != mine and seconds < LEASE_SECONDS for path, seconds in age.items())


def _exists(files: fs.FileSystem, key: str) -> bool:
    return bool(files.get_file_info(key).type != fs.FileType.NotFound)
