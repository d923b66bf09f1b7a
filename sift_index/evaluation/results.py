"""Results files: one JSON per benchmark, rows replaced by (case, metric), everything else kept."""

import json
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sift_index.errors import UsageError
from sift_index.evaluation.metrics import Interval
from sift_index.formats.presence import is_there
from sift_index.outputs import require_writable, write_whole

# Folders of an absolute path, also inside a comma-separated list or behind `name:`.
_LEADING_FOLDERS = re.compile(r"(?<![^,:=])/(?:[^/,]+/)*")
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
    given = shlex.join(_LEADING_FOLDERS.sub("", argument) for argument in sys.argv[1:])
    command = f"{_program()} {given}".rstrip()
    context = (baseline, date, device_name(device), installed_versions(), command)
    return [ResultRow(case, metric, value, unit, *context) for case, metric, value, unit in values]


def data_label(datasets: Iterable[str]) -> str:
    """Return what a case calls data sets taken together: `musique+wikimqa`."""
    return "+".join(sorted(set(datasets)))


def interval_values(
    case: str, metric: str, found: Interval, unit: str
) -> Iterator[tuple[str, str, float, str]]:
    """Yield (case, metric, value, unit) of a mean and, as `_lo` and `_hi`, of its bounds."""
    yield case, metric, found.mean, unit
    yield case, f"{metric}_lo", found.low, unit
    yield case, f"{metric}_hi", found.high, unit


def _program() -> str:
    """Return how this program was started, without its place on this machine."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name:  # python -m package.module
        return f"python -m {spec.name}"
    name = Path(sys.argv[0]).name
    return "sift-index" if name in ("-c", "") else name


def merge_results(path: Path, bench: str, rows: list[ResultRow]) -> None:
    """Replace a file's rows of the same (case, metric), keep the others; the file changes whole.

    Raises UsageError for a file of anything else, or a place that cannot be written.
    """
    new = {(row.case, row.metric): asdict(row) for row in rows}
    new = {**read_results(path), **new}
    # A line a row, so that a change of one number is a change of one line.
    lines = ",\n".join(json.dumps(new[key], ensure_ascii=False) for key in sorted(new))
    text = f'{{"bench": {json.dumps(bench)}, "rows": [\n{lines}\n]}}\n'
    write_whole(path, text)


def read_results(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return a file's rows by (case, metric), none where there is no file yet.

    Raises UsageError for anything that is no results file, or a place where none can be.
    """
    if not is_there(path):
        require_writable(path)
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = {(row["case"], row["metric"]): row for row in found["rows"]}
        if not all(type(name) is str for key in rows for name in key):
            raise TypeError("a row's case or metric is no text")
        return rows
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UsageError(f"{path} is no results file: {problem}; give another path") from problem


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or the kind of CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {torch.get_num_threads()} threads"


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that decide results."""
    return {"python": platform.python_version(), **versions_of(PACKAGES)}


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
