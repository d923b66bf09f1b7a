"""Below which length and above which density a prompt runs faster dense: a table for each GPU.

Sparse attention has costs of its own: decoding the plan, gathering keys, half-empty tiles. A short
prompt, or one of which most scores count, does not win them back. Where that is depends on the GPU,
hence is measured (`sift-index bench ttft --crossover`) and packaged as `configs/crossover/*.yaml`.
"""

import logging
import os
import threading
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import torch

from sift_index import configs
from sift_index.environment import crossover_setting
from sift_index.errors import UsageError
from sift_index.kernels.api import SparsePlan
from sift_index.runtime.estimate import estimated_density

AUTO, OFF = "auto", "off"
_log = logging.getLogger("sift_index.runtime")


@dataclass(frozen=True)
class CrossoverRow:
    """Prompts of `tokens` tokens run faster sparse up to this density of all scores."""

    tokens: int
    max_density: float


@dataclass(frozen=True)
class Crossover:
    """What was measured on one device; rows by ascending tokens.

    Between rows the density is interpolated over the logarithm of the length. Shorter prompts than
    those of the first row run dense, longer ones than the last row's take its density.
    """

    device: str
    model_shape: str
    rows: tuple[CrossoverRow, ...]

    def max_density(self, tokens: int) -> float:
        """Return up to which density prompts of this length run sparse; 0 below the first row."""
        if tokens < self.rows[0].tokens:
            return 0.0
        for low, high in pairwise(self.rows):
            if tokens < high.tokens:
                share = log(tokens / low.tokens) / log(high.tokens / low.tokens)
                return low.max_density + share * (high.max_density - low.max_density)
        return self.rows[-1].max_density

    def decide(self, plan: SparsePlan) -> "Decision":
        """Return how a plan runs here; its density is estimated where it can matter."""
        limit = self.max_density(plan.length)
        density = estimated_density(plan) if 0 < limit < 1 else None
        sparse = limit >= 1 or (density is not None and density <= limit)
        return Decision(not sparse, plan.length, density, limit, self.device)


@dataclass(frozen=True)
class Decision:
    """How a prompt runs. density: about that of its plan, None where the length alone decides."""

    dense: bool
    tokens: int
    density: float | None
    limit: float
    device: str

    def __str__(self) -> str:
        how = "dense: below crossover" if self.dense else "sparse"
        found = "" if self.density is None else f", density about {self.density:.2f}"
        return (
            f"runs {how} ({self.tokens:,} tokens{found}; on {self.device} sparse pays up to "
            f"{self.limit:.2f} at this length)"
        )


class Counters:
    """How many prompts of this process ran dense and sparse under a crossover table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.dense = 0
        self.sparse = 0

    def count(self, decision: Decision) -> None:
        """Count a prompt; the first dense one is said in the log (`sift_index.runtime`)."""
        with self._lock:
            if decision.dense and not self.dense:
                _log.info("%s; said once, counted in runtime.crossover.counters", decision)
            self.dense += decision.dense
            self.sparse += not decision.dense


counters = Counters()


def find_crossover(
    chosen: "Crossover | str | os.PathLike[str] | None", device: torch.device
) -> Crossover | None:
    """Return the table to use on a device, or None for sparse always.

    chosen: a table, the path of one, `off`, or `auto`: the packaged table of this GPU, where there
    is one. None takes $SIFT_CROSSOVER, else `auto`. Raises UsageError for what is no table.
    """
    wanted = crossover_setting() or AUTO if chosen is None else chosen
    if isinstance(wanted, Crossover):
        return wanted
    if wanted == OFF:
        return None
    if not isinstance(wanted, (str, os.PathLike)):
        raise UsageError(
            f"crossover: expected {AUTO}, {OFF}, the path of a table or a table, found "
            f"{wanted!r:.100}; leave it out to take the table of this GPU"
        )
    if wanted != AUTO:
        return read_crossover(Path(wanted))
    if device.type != "cuda":
        return None
    return _packaged(packaged_tables(), torch.cuda.get_device_name(device))


@lru_cache(maxsize=16)  # asked for with every prompt
def _packaged(folder: Path, device: str) -> Crossover | None:
    tables = (read_crossover(path) for path in sorted(folder.glob("*.yaml")))
    return next((table for table in tables if table.device == device), None)


def packaged_tables() -> Path:
    """Return the folder of the tables that come with the package."""
    return configs.resource("crossover")


def read_crossover(path: Path) -> Crossover:
    """Read a table: `device`, `model_shape`, `rows` of `tokens` and `max_density`.

    Raises UsageError for a file that is none.
    """
    try:
        values = configs.load_yaml(path)
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"crossover: expected {AUTO}, {OFF} or the path of a table, found {str(path)!r} "
            f"({problem}); measure one with `sift-index bench ttft --crossover`"
        ) from problem
    names = ("device", "model_shape", "rows")
    if set(values) != set(names):
        raise _bad(path, f"the entries {', '.join(names)}", sorted(values))
    for name in names[:2]:
        if not isinstance(values[name], str) or not values[name]:
            raise _bad(path, f"{name} as a text", values[name])
    return Crossover(values["device"], values["model_shape"], _rows(path, values["rows"]))


def _rows(path: Path, found: Any) -> tuple[CrossoverRow, ...]:
    if not isinstance(found, list) or not found:
        raise _bad(path, "at least one row", found)
    rows = tuple(_row(path, one) for one in found)
    if any(low.tokens >= high.tokens for low, high in pairwise(rows)):
        raise _bad(path, "rows by ascending tokens", [row.tokens for row in rows])
    return rows


def _row(path: Path, found: Any) -> CrossoverRow:
    if not isinstance(found, dict) or set(found) != {"tokens", "max_density"}:
        raise _bad(path, "rows of tokens and max_density", found)
    tokens, density = found["tokens"], found["max_density"]
    if type(tokens) is not int or tokens < 1:
        raise _bad(path, "tokens of 1 or more", tokens)
    if type(density) not in (int, float) or not 0 <= density <= 1:
        raise _bad(path, "a max_density of 0 to 1", density)
    return CrossoverRow(tokens, float(density))


def _bad(path: Path, expected: str, found: object) -> UsageError:
    return UsageError(
        f"crossover table {path.name}: expected {expected}, found {found!r:.100}; write it with "
        "`sift-index bench ttft --crossover`"
    )
