"""Rewrite the README's tables of numbers from benchmarks/results/*.json.

Run `python -m benchmarks.tables`; `--check` fails when the README is not what the files say.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]


def render(text: str, results: Path = RESULTS) -> str:
    """Return the README with each marked block replaced by the table of its results file."""
    for bench, table in TABLES.items():
        start, end = f"<!-- results:{bench} -->", f"<!-- end:{bench} -->"
        before, _, rest = text.partition(start)
        _, _, after = rest.partition(end)
        rows = json.loads((results / f"{bench}.json").read_text(encoding="utf-8"))["rows"]
        text = f"{before}{start}\n{table(rows)}\n{end}{after}"
    return text


def quality_table(rows: list[Row]) -> str:
    """One line per model, data set and method."""
    columns = ["prompts", "density", "ca_density", "kl", "top1", "nll", "f1", "ca_recall"]
    header = [
        "model / data / method",
        "prompts",
        "density",
        "CA density",
        "KL, nats",
        "top-1",
        "NLL",
        "F1",
        "CA mass",
    ]
    return _table(header, _by_case(rows), lambda case: [_shown(case, name) for name in columns])


def build_table(rows: list[Row]) -> str:
    """One line per recorded build."""
    columns = ["documents", "indexed", "failed", "tokens", "seconds", "tokens_per_second"]
    header = ["build", "documents", "indexed", "failed", "tokens", "seconds", "tokens/s"]
    return _table(header, _by_case(rows), lambda case: [_shown(case, name) for name in columns])


def policies_table(rows: list[Row]) -> str:
    """One line per variation: KL at one CA density, between its measured nested thresholds."""
    cases: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for case, found in _by_case(rows).items():
        _, dataset, method = case.split("/")
        policy = method.partition(":")[2].partition("@")[0]
        point = (found["ca_density"]["value"], found["kl"]["value"])
        cases.setdefault(policy, {}).setdefault(dataset, []).append(point)
    datasets = sorted({name for found in cases.values() for name in found})
    kl = {p: [kl_at(AT_DENSITY, found[name]) for name in datasets] for p, found in cases.items()}
    ranked = sorted(kl, key=lambda policy: sum(kl[policy]))
    header = ["policy", *(f"KL, {name}" for name in datasets), "mean", f"against {REFERENCE}"]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for policy in ranked:
        mean = sum(kl[policy]) / len(datasets)
        change = mean / (sum(kl[REFERENCE]) / len(datasets)) - 1
        cells = [policy, *(f"{value:.4f}" for value in kl[policy]), f"{mean:.4f}", f"{change:+.0%}"]
        lines.append("| " + " | ".join(cells) + " |")
    prompts = {row["value"] for row in rows if row["metric"] == "prompts"}
    counted = f"{min(prompts):.0f} prompts of each data set"
    return "\n".join([*lines, "", f"{counted}, {_devices(rows)}."])


def kl_at(density: float, points: list[tuple[float, float]]) -> float:
    """Return KL at a CA density, log-linear between the two measured points around it.

    Beyond the measured densities the line through the two nearest points goes on.
    """
    ordered = sorted(points)
    upper = next((i for i, (at, _) in enumerate(ordered) if at >= density), len(ordered) - 1)
    (left, low), (right, high) = ordered[max(0, upper - 1)], ordered[max(1, upper)]
    share = (density - left) / (right - left)
    return math.exp((1 - share) * math.log(low) + share * math.log(high))


def storage_table(rows: list[Row]) -> str:
    """One line per kind of index."""
    columns = ["documents", "bytes_per_document", "x_below_kv"]
    header = ["index", "documents", "bytes a document", "times below bf16 KV"]
    return _table(header, _by_case(rows), lambda case: [_shown(case, name) for name in columns])


AT_DENSITY = 0.3
REFERENCE = "window-1"
TABLES: dict[str, Callable[[list[Row]], str]] = {
    "quality": quality_table,
    "policies": policies_table,
    "storage": storage_table,
    "build": build_table,
}


def _by_case(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row["case"], {})[row["metric"]] = row
    return cases


def _shown(case: dict[str, Row], metric: str) -> str:
    """Return a value, with its interval where the file has one."""
    if metric not in case:
        return "–"
    value = case[metric]["value"]
    text = f"{value:,.0f}" if value >= 10 or float(value).is_integer() else f"{value:.3f}"
    if f"{metric}_lo" in case:
        text += f" [{case[f'{metric}_lo']['value']:.3f}, {case[f'{metric}_hi']['value']:.3f}]"
    return text


def _table(
    header: list[str],
    cases: dict[str, dict[str, Row]],
    cells: Callable[[dict[str, Row]], list[str]],
) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    lines += [f"| {name} | " + " | ".join(cells(case)) + " |" for name, case in cases.items()]
    rows = [row for case in cases.values() for row in case.values()]
    return "\n".join([*lines, "", f"M{_devices(rows)[1:]}."])


def _devices(rows: list[Row]) -> str:
    return "measured on " + "; ".join(sorted({row["device"] for row in rows}))


def main() -> int:
    """Rewrite the README, or compare with it."""
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = render(old)
    if "--check" in sys.argv:
        return 0 if old == new else 1
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
