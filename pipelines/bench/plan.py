"""`sift-index bench plan`: what a driver needs for a corpus of millions: time, memory, CPU.

Each measurement runs in a process of its own, because its peak memory is one of the numbers.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sift_index.bench.lookup_index import IndexShape, write_units
from sift_index.errors import SiftError
from sift_index.evaluation.results import ResultRow, result_rows
from sift_index.formats.blob import Codec
from sift_index.formats.canonical import canonical_bytes
from sift_index.formats.store import IndexPaths
from sift_index.pipelines.bench.plan_inputs import write_texts

BENCH = "plan"
GIB = 1 << 30
EXTRAPOLATED = 100_000_000
PUBLISHED_TOKENS = 32
UNITS = {
    "seconds": "s",
    "cpu_s": "s",
    "scan_s": "s",
    "plan_s": "s",
    "hand_out_s": "s",
    "publish_s": "s",
    "unchanged_s": "s",
    "units": "units",
    "keys": "keys",
    "tokens": "tokens",
    "driver_cpu_share": "share of a core",
    "units_per_second": "units/s",
    "simulated_tokens_per_second": "tokens/s",
}
Say = Callable[[str], None]


@dataclass(frozen=True)
class PlanOptions:
    """What to measure: numbers of documents by kind, and of workers; an empty list leaves out.

    `texts` are written and tokenised, `lengths` given without texts, `published` have tiny masks.
    `unit_tokens` is the budget of a unit, `driver_unit_tokens` that of the simulated workers'.
    """

    texts: Sequence[int] = (1_000_000,)
    lengths: Sequence[int] = (1_000_000, 10_000_000)
    published: Sequence[int] = (1_000_000,)
    workers: Sequence[int] = (1_000,)
    model: str = "smollm2-135m"
    unit_tokens: int = 16384
    driver_unit_tokens: int = 1 << 20
    driver_rounds: int = 5
    seed: int = 0
    folder: Path | None = None


@dataclass(frozen=True)
class PlanResult:
    """What one measurement gave, by metric, and in words what was measured."""

    case: str
    documents: int
    found: dict[str, float]
    what: str

    def values(self) -> Iterator[tuple[str, str, float, str]]:
        """Yield (case, metric, value, unit) for the results file."""
        yield self.case, "documents", float(self.documents), "documents"
        for metric, unit in UNITS.items():
            if metric in self.found:
                yield self.case, metric, self.found[metric], unit
        yield self.case, "peak_gib", self.found["peak_bytes"] / GIB, "GiB"
        if "scan_s" in self.found:
            yield self.case, "tokens_per_second", self.tokens_per_second, "tokens/s"
            yield (
                self.case,
                "tokens_per_cpu_second",
                self.found["tokens_per_cpu_second"],
                "tokens/s",
            )
            yield self.case, "core_hours_at_100m", self.core_hours, "h"

    @property
    def tokens_per_second(self) -> float:
        """Tokens that were read and tokenised in a second."""
        return self.found["tokens"] / self.found["scan_s"]

    @property
    def core_hours(self) -> float:
        """Hours of one CPU for so many documents as these, 100 million of them."""
        tokens = self.found["tokens"] / self.documents * EXTRAPOLATED
        return tokens / self.found["tokens_per_cpu_second"] / 3600

    def rows(self) -> list[ResultRow]:
        """Return the rows; the baseline says what was measured."""
        return result_rows(self.values(), torch.device("cpu"), self.what)


def bench_plan(options: PlanOptions, say: Say) -> Iterator[PlanResult]:
    """Measure what the options ask for, one after the other; temporary files are removed."""
    for documents in options.lengths:
        yield _lengths(options, documents)
    for documents in options.published:
        yield _published(options, documents, say)
    for documents in options.texts:
        yield _texts(options, documents, say)
    for workers in options.workers:
        yield _driver(options, workers)


def size_name(count: int) -> str:
    """Return a round number in short: 1m, 20k, 300."""
    for factor, letter in ((1_000_000, "m"), (1_000, "k")):
        if count >= factor and count % factor == 0:
            return f"{count // factor}{letter}"
    return str(count)


def _lengths(options: PlanOptions, documents: int) -> PlanResult:
    found = _measured(
        "lengths", documents=documents, unit_tokens=options.unit_tokens, seed=options.seed
    )
    what = (
        f"documents of 20 to 400 tokens, lengths and keys given, planned in units of "
        f"{options.unit_tokens:,} tokens and handed out; one process, imports included in memory"
    )
    return PlanResult(f"plan/{size_name(documents)}", documents, found, what)


def _published(options: PlanOptions, documents: int, say: Say) -> PlanResult:
    shape = IndexShape(documents, max(1, documents // 1000), PUBLISHED_TOKENS, 1, 1)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="sift-plan-") as folder:
        built, _, _ = write_units(IndexPaths(Path(folder)), shape, Codec.RAW, options.seed)
        Path(folder, "fingerprint.json").write_bytes(canonical_bytes(built.to_json()))
        say(f"{documents:,} documents committed in {shape.packs:,} units")
        found = _measured("publish", root=folder, tokens=PUBLISHED_TOKENS)
    what = (
        f"first version of {documents:,} documents in {shape.packs:,} committed units with tiny "
        "masks; `unchanged`: a second build compares and finds nothing to do"
    )
    return PlanResult(f"publish/{size_name(documents)}", documents, found, what)


def _texts(options: PlanOptions, documents: int, say: Say) -> PlanResult:
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="sift-plan-") as folder:
        corpus = Path(folder, "texts.jsonl")
        write_texts(corpus, documents, options.seed)
        say(f"{documents:,} texts written, {corpus.stat().st_size:,} bytes")
        found = _measured(
            "texts", corpus=str(corpus), model=options.model, unit_tokens=options.unit_tokens
        )
    what = (
        f"JSON Lines of texts of about 20 to 400 tokens, read, tokenised by {options.model}'s "
        "tokenizer in Ray tasks on all CPUs of this machine and planned; tokens_per_cpu_second "
        "is CPU time of one process on a sample, core_hours_at_100m that rate for "
        f"{EXTRAPOLATED:,} such documents"
    )
    return PlanResult(f"tokenise/{size_name(documents)}", documents, found, what)


def _driver(options: PlanOptions, workers: int) -> PlanResult:
    found = _measured(
        "driver",
        workers=workers,
        unit_tokens=options.driver_unit_tokens,
        rounds=options.driver_rounds,
        seed=options.seed,
    )
    what = (
        f"the runner with {workers:,} simulated workers at 50,000 tokens/s each on units of "
        f"{options.driver_unit_tokens:,} tokens made of documents of 20 to 400, each answered with "
        "a receipt of its keys; CPU time of the driver's process over the time of the run"
    )
    documents = int(found["keys"])
    return PlanResult(f"driver/{size_name(workers)}", documents, found, what)


def _measured(kind: str, **options: Any) -> dict[str, float]:
    """Run one measurement in a process of its own; raises SiftError when it fails."""
    command = [
        sys.executable,
        "-m",
        "sift_index.pipelines.bench.plan_child",
        kind,
        json.dumps(options),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SiftError(f"expected numbers from measuring {kind}, found that it ended: {reason}")
    return dict(json.loads(lines[-1]))
