"""Bringing a whole index into memory before the first request, if it fits.

Files stay mapped: processes share one copy, and the system may still drop pages when memory runs
short. So this is a warm start, checked against what is free; no lock and no private copy.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa

from sift_index.formats.errors import UsageError
from sift_index.formats.manifest import Manifest

PAGE = 4096
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def needed_bytes(manifest: Manifest) -> int:
    """Return the bytes of a version's packs and key table."""
    return sum(pack.bytes for pack in manifest.packs) + manifest.key_table.bytes


def available_bytes() -> int | None:
    """Return memory that can be had without swapping, file caches included; None if unknown.

    The smaller of what Linux says is available and the limit of the control group.
    """
    found = []
    if _MEMINFO.is_file():
        match = re.search(r"MemAvailable:\s+(\d+) kB", _MEMINFO.read_text())
        found += [1024 * int(match[1])] if match else []
    if _CGROUP.is_file():
        limit = _CGROUP.read_text().strip()
        found += [int(limit)] if limit.isdigit() else []
    return min(found, default=None)


def require_room(manifest: Manifest, budget: int | None) -> None:
    """Raise UsageError unless the version fits `budget` bytes, or without one free memory."""
    needed = needed_bytes(manifest)
    room = available_bytes() if budget is None else budget
    if room is not None and needed > room:
        whose = "available" if budget is None else "allowed"
        raise UsageError(
            f"preload: expected {needed:,} bytes of memory for version {manifest.version}, found "
            f"{room:,} {whose}; open without preload (pages are read when first needed), or say "
            "preload_budget=BYTES if you know better"
        )


def touch(data: pa.Buffer) -> None:
    """Read a byte of every page of a mapped file."""
    np.frombuffer(data, np.uint8)[::PAGE].max(initial=0)
