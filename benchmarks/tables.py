"""Rewrite the README's tables of numbers from benchmarks/results/*.json.

Run `python -m benchmarks.tables`; `--check` fails when the README is not what the files say.
"""

import json
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
    columns = ["prompts", "density", "ca_density", "kl", "top1", "nll"]
    header = [
        "model / data / method",
        "prompts",
        "density",
        "CA density",
        "KL, nats",
        "top-1",
        "NLL",
    ]
    return _table(header, _by_case(rows), lambda case: [_shown(case, name) for name in columns])


def build_table(rows: list[Row]) -> str:
    """One line per recorded build."""
    columns = ["documents", "indexed", "failed", "tokens", "seconds", "tokens_per_second"]
    header = ["build", "documents", "indexed", "failed", "tokens", "seconds", "tokens/s"]
    return _table(header, _by_case(rows), lambda case: [_shown(case, name) for name in columns])


TABLES: dict[str, Callable[[list[Row]], str]] = {"quality": quality_table, "build": build_table}


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
    devices = sorted({row["device"] for case in cases.values() for row in case.values()})
    return "\n".join([*lines, "", f"Measured on {'; '.join(devices)}."])


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
