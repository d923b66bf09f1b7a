"""Keep a build's summary as rows of benchmarks/results/build.json.

sift-index build CORPUS --model M --output json | python -m benchmarks.record_build CASE COMMAND
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from sift_index.evaluation.results import merge_results, result_rows

COUNTS = ("documents", "indexed", "duplicates", "empty", "too_long", "split", "keys", "workers")
RESULTS = Path(__file__).parent / "results" / "build.json"


def main() -> None:
    """Read a summary from standard input and merge its numbers."""
    case, command = sys.argv[1:]
    summary = json.load(sys.stdin)
    values = [(case, name, summary[name], "count") for name in COUNTS]
    values += [
        (case, "failed", len(summary["failed"]), "documents"),
        (case, "tokens", summary["index_tokens"], "tokens"),
        (case, "seconds", summary["seconds"], "s"),
        (case, "tokens_per_second", summary["tokens_per_second"], "tokens/s"),
        (case, "index_bytes", summary["index_bytes"], "bytes"),
        (case, "kv_bytes", summary["kv_bytes"], "bytes"),
    ]
    rows = result_rows(values, torch.device("cpu"))
    merge_results(RESULTS, "build", [replace(row, command=command) for row in rows])


if __name__ == "__main__":
    main()
