"""Which numbers of prefills the tables show, and in which order, for `benchmarks.tables`.

A line for each case and row of benchmarks/results/ttft.json; the cases in order of their length,
the dense rows first in each.
"""

import re
from typing import Any

HEADING = "prompt and row"

TTFT = {
    "ttft_ms": "TTFT, ms",
    "attention_ms": "attention",
    "rest_ms": "rest",
    "upload_decode_ms": "upload and decode",
    "compose_ms": "compose, apart",
    "ca_density": "CA density",
    "density": "density",
    "speedup_vs_fa3": "times dense FA3",
    "speedup_vs_cudnn": "times dense cuDNN",
}
ENERGY = {
    "energy_j": "J",
    "edp": "EDP, J s",
    "ed2p": "ED2P, J s^2",
    "edp_vs_dense": "dense EDP / its",
}
REUSE = {
    "ttft_ms": "TTFT, ms",
    "load_ms": "loading KV",
    "wait_ms": "waiting for it",
    "attention_ms": "attention",
    "rest_ms": "rest",
    "bytes": "bytes moved",
    "speedup_vs_fa3": "times dense FA3",
}
ORDER = ("dense-fa3", "dense-cudnn", "dense-sdpa", "default", "ca", "kv-reuse", "cacheblend15")
NAME = re.compile(r"(?P<tokens>\d+)(?P<k>k?)-(?P<row>.+?)(?P<document>-doc\d+k?)?")


def arranged(
    cases: dict[str, dict[str, Any]], columns: dict[str, str] = TTFT
) -> dict[str, dict[str, Any]]:
    """Return the cases that have any of the columns, in the order in which they are shown.

    cases: by name, then metric, the rows of a results file.
    """
    moved = {name: _moved(case) for name, case in cases.items()}
    shown = [name for name, case in moved.items() if set(columns) & set(case)]
    return {name: moved[name] for name in sorted(shown, key=place)}


def is_reuse(case: str) -> bool:
    """Whether a case is one of reused KV, or what it is compared with."""
    return any(name in case for name in ("kv-reuse", "cacheblend"))


def place(case: str) -> tuple[str, int, int, str]:
    """Return what a case such as `64k-ca10-doc4k` is sorted by: documents, length, row."""
    found = NAME.fullmatch(case)
    if found is None:
        return "", 0, len(ORDER), case
    tokens = int(found["tokens"]) * (1024 if found["k"] else 1)
    kinds = (number for number, kind in enumerate(ORDER) if found["row"].startswith(kind))
    # cacheblend15 begins with `ca` too; the last kind that fits is the right one.
    return found["document"] or "", tokens, max(kinds, default=len(ORDER)), found["row"]


def _moved(case: dict[str, Any]) -> dict[str, Any]:
    """Add what a row moves to the GPU, of metadata or of KV, under one name."""
    moved = case.get("metadata_bytes") or case.get("kv_bytes")
    return case if moved is None else {**case, "bytes": moved}
