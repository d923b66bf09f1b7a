"""What `sift-index bench build` says: rows of the results file, a table, and values for JSON."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from sift_index.bench.build import GIB, BuildResult
from sift_index.evaluation.results import ResultRow, result_rows

BENCH = "build"
BASELINE = "packed dense prefill of the same documents, same run"
COLUMNS = ["documents", "tokens/s", "of dense"]
HEADLINE = "throughput_vs_dense"
# Fixed names under which tables and checks find the numbers of DESIGN section 8.
CASES = {128: "len128", 512: "len512", 2048: "len2k", 8192: "len8k", 32768: "len32k"}
SHAPE = "llama-3.1-8b"  # of the rows with a bare name


def case_name(length: int, shape: str, layers: int | None) -> str:
    """Return a case's name: `len2k` for the shape of the project's numbers, else with its own."""
    short = CASES.get(length, f"len{length}")
    if shape == SHAPE and layers is None:
        return short
    return f"{shape}/{short}" if layers is None else f"{shape}-{layers}-layers/{short}"


def missing_lengths(
    lengths: Sequence[int],
    shape: str,
    layers: int | None,
    known: Collection[tuple[str, str]],
) -> list[int]:
    """Return the lengths of which a results file has no number yet."""
    return [n for n in lengths if (case_name(n, shape, layers), HEADLINE) not in known]


def build_rows(result: BuildResult, case: str, device: torch.device) -> list[ResultRow]:
    """Return the rows of one document length."""
    return result_rows(_values(result, case), device, BASELINE)


def _values(result: BuildResult, case: str) -> Iterator[tuple[str, str, float, str]]:
    yield case, HEADLINE, result.throughput_vs_dense, "x"
    yield case, "tokens_per_second", result.tokens_per_second, "tokens/s"
    yield case, "batch_tokens", result.tokens, "tokens"
    yield case, "batch_documents", result.documents, "documents"
    for part, ms in result.split.items():
        yield case, f"{part}_ms", ms, "ms"
    for times, (tokens, size) in enumerate(result.peak.items(), 1):
        suffix = "" if times == 1 else f"_{times}x"
        yield case, f"peak_above_model{suffix}", size / GIB, "GiB"
        yield case, f"peak_bytes_per_token{suffix}", size / tokens, "bytes"


def table_columns(results: Iterable[BuildResult]) -> list[str]:
    """Return the columns of `table_row`."""
    parts = next(iter(results)).split
    return [*COLUMNS, *(f"{part} ms" for part in parts), "peak GiB", "twice"]


def table_row(result: BuildResult) -> list[str]:
    """Return a line of the table."""
    peaks = [f"{size / GIB:.2f}" for size in result.peak.values()]
    return [
        f"{result.documents} x {result.length}",
        f"{result.tokens_per_second:,.0f}",
        f"{result.throughput_vs_dense:.3f}",
        *(f"{ms:.1f}" for ms in result.split.values()),
        *[*peaks, "", ""][:2],
    ]


def progress_line(result: BuildResult, case: str) -> str:
    """Return a case in one line."""
    return (
        f"{case}: {result.tokens_per_second:,.0f} tokens/s, {result.throughput_vs_dense:.3f} of a "
        f"dense prefill ({result.documents} documents, {result.tokens} tokens)"
    )


def result_json(result: BuildResult, case: str) -> dict[str, Any]:
    """Return a case as JSON values."""
    return {
        "case": case,
        "documents": result.documents,
        "tokens": result.tokens,
        HEADLINE: result.throughput_vs_dense,
        "tokens_per_second": result.tokens_per_second,
        "ms": result.ms,
        "split_ms": result.split,
        "peak_bytes_above_model": {str(tokens): size for tokens, size in result.peak.items()},
    }
