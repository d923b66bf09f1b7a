"""Results files: one JSON per benchmark, rows replaced by (case, metric), everything else kept."""

import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sift_index.errors import UsageError

PACKAGES = ("sift-index", "torch", "transformers", "triton", "ray", "pyarrow", "numpy")


@dataclass(frozen=True)
class ResultRow:
    """One measured number with all that is needed to repeat it."""

    case: str
    metric: str
    value: float
    unit: str
    baseline: str
    date: str
    device: str
    versions: dict[str, str]
    command: str


def result_rows(
    values: Iterable[tuple[str, str, float, str]], device: torch.device, baseline: str = ""
) -> list[ResultRow]:
    """Turn (case, metric, value, unit) into rows that carry date, device, versions and command."""
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    command = " ".join([Path(sys.argv[0]).name, *(Path(a).name or a for a in sys.argv[1:])])
    context = (baseline, date, device_name(device), installed_versions(), command)
    return [ResultRow(case, metric, value, unit, *context) for case, metric, value, unit in values]


def merge_results(path: Path, bench: str, rows: list[ResultRow]) -> None:
    """Replace a file's rows of the same (case, metric), keep the others; UsageError if foreign."""
    new = {(row.case, row.metric): asdict(row) for row in rows}
    new = {**read_results(path), **new}
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"bench": bench, "rows": [new[key] for key in sorted(new)]}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_results(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return a file's rows by (case, metric), none where there is no file yet.

    Raises UsageError for anything that is no results file, or a place where none can be.
    """
    if not path.exists():
        _writable(path)
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {(row["case"], row["metric"]): row for row in found["rows"]}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UsageError(f"{path} is no results file: {problem}; give another path") from problem


def _writable(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"{path} cannot be written: {problem}; give another path") from problem


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or the kind of CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {torch.get_num_threads()} threads"


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that decide results."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
