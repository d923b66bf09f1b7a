"""Rewrite the tables of numbers in README.md and benchmarks/README.md from benchmarks/results.

Run `python -m benchmarks.tables`; `--check` fails when a page is not what the files say. A table
stands between `<!-- results:NAME -->` and `<!-- end:NAME -->`, NAME one of BLOCKS.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ttft_table import ENERGY, HEADING, REUSE, TTFT, arranged, is_reuse

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "README.md")
MARKED = re.compile(r"<!-- results:([a-z0-9-]+) -->.*?<!-- end:\1 -->", re.DOTALL)
AT_DENSITY = 0.3
REFERENCE = "window-1"
# Metrics by their column, in the order of the tables.
QUALITY = {
    "prompts": "prompts",
    "density": "density",
    "ca_density": "CA density",
    "kl": "KL, nats",
    "top1": "top-1",
    "nll": "NLL",
    "f1": "F1",
    "ca_recall": "CA mass",
}
LONG = {
    "prompts": "prompts",
    "density": "density",
    "la_density": "LA density",
    "kl": "KL, nats",
    "top1": "top-1",
    "nll": "NLL",
}
UNION = {
    "prompts": "prompts",
    "density": "density",
    "ca_density": "CA density",
    "kl": "KL, nats",
    "kl_ratio": "of probes alone at this CA density",
    "top1": "top-1",
}
LA_KEYS = {
    "prompts": "prompts",
    "density": "density",
    "la_density": "LA density",
    "la_density_ratio": "of 128 keys at this KL",
    "kl": "KL, nats",
    "top1": "top-1",
}
PAIRS = {
    "prompts": "prompts",
    "kl": "KL, nats",
    "kl_other": "the other's",
    "kl_change": "change",
    "kl_ratio": "ratio",
    "kl_ratio_at_density": "at the other's density",
    "top1_change": "change of top-1",
    "density_change": "of density",
}
LOCAL = {
    "tile_recall": "high tiles found",
    "precision": "precision",
    "cell_recall": "high scores found",
    "mass": "attention found",
    "density_alone": "tiles high alone",
    "density_prompt": "in the prompt",
}
CROSS = {
    "density": "CA density",
    "cells": "high scores found",
    "mass": "attention found",
    "high": "scores that are high",
}
SPEED = {
    "dense_ms": "dense FA3, ms",
    "ms": "sparse, ms",
    "speedup": "speed-up",
    "ideal_speedup": "if scores alone counted",
    "share_of_fa3": "rate over issued tiles, of FA3's",
}
PATHS = {
    "ms": "ms",
    "tflops": "TFLOP/s",
    "speedup": "times dense FA3",
    "share_of_fa3": "rate, of FA3's",
    "compaction_share": "compaction",
    "error_vs_fa3": "error, of FA3's",
}
LOOKUP = {
    "p50_us": "p50, us",
    "p99_us": "p99, us",
    "first_p50_us": "first use, p50",
    "absent_p50_us": "absent key, p50",
    "cached_p50_us": "cached, p50",
    "open_s": "open, s",
    "pss_ratio_4proc": "memory of 4 processes / 1",
    "key_bytes": "key table, bytes a key",
    "document_map_bytes": "document ids, bytes a key",
}
PLAN = {
    "documents": "documents",
    "seconds": "seconds",
    "cpu_s": "driver's CPU, s",
    "units": "units",
    "tokens_per_second": "tokens/s",
    "tokens_per_cpu_second": "tokens/s of CPU",
    "core_hours_at_100m": "CPU hours at 100 million",
    "plan_s": "planning, s",
    "hand_out_s": "handing out, s",
    "publish_s": "publishing, s",
    "unchanged_s": "nothing new, s",
    "units_per_second": "units/s",
    "driver_cpu_share": "driver, of a core",
    "peak_gib": "driver's peak memory, GiB",
}
WORKERS = {
    "tokens_per_second": "tokens/s",
    "times_one_worker": "times one worker",
    "packs": "packs",
    "packs_differing": "unlike one worker's",
}
FAULTS = {
    "flips": "flipped bits",
    "flips_missed": "missed",
    "cuts": "truncations",
    "cuts_missed": "missed ones",
    "fuzz_inputs": "fuzzed inputs",
    "fuzz_seconds": "seconds",
    "fuzz_crashes": "crashes",
    "fuzz_hangs": "hangs",
    "fuzz_peak_mb": "most memory, MiB",
}
KILLS = {
    "builds": "builds",
    "kills": "kills",
    "lost": "documents lost",
    "duplicated": "rows twice",
    "recomputed": "computed again",
    "replaced": "files replaced",
    "different": "unlike undisturbed",
    "stopped": "gave up",
    "units": "units",
    "computed": "units begun",
    "split": "builds with a unit split",
}
KILL_PHASES = {
    "scanning": "while scanning",
    "loading": "loading models",
    "first_commit": "first commit",
    "units": "units",
    "publishing": "publishing",
}
BUILD_SPEED = {
    "tokens_per_second": "tokens/s",
    "throughput_vs_dense": "of a dense prefill",
    "rest_ms": "rest, ms",
    "attention_ms": "attention",
    "skipped_ms": "skipped layers",
    "statistics_ms": "statistics",
    "probe_bank_ms": "probe bank",
    "packing_ms": "packing",
    "peak_above_model": "memory above the model, GiB",
    "peak_above_model_2x": "with twice the tokens",
}
MEANS = {"pooled": "all together", "overall": "by head and layer"}
Row = dict[str, Any]
Case = dict[str, Row]  # by metric


@dataclass(frozen=True)
class Block:
    """One table: of which results file, which of its cases, and how it is made."""

    file: str
    table: Callable[[list[Row]], str]
    shows: Callable[[str], bool] = lambda case: True

    def render(self, results: Path) -> str:
        """Return the table of a folder of results files."""
        rows = json.loads((results / f"{self.file}.json").read_text(encoding="utf-8"))["rows"]
        return self.table([row for row in rows if self.shows(row["case"])])


def render(text: str, results: Path = RESULTS) -> str:
    """Return a page with each marked block replaced by its table."""

    def replaced(found: re.Match[str]) -> str:
        name = found[1]
        table = BLOCKS[name].render(results)
        return f"<!-- results:{name} -->\n{table}\n<!-- end:{name} -->"

    return MARKED.sub(replaced, text)


def quality_table(
    rows: list[Row], columns: dict[str, str] = QUALITY, heading: str = "model / data / method"
) -> str:
    """One line per model, data set and method, the closest first; columns that were measured."""
    cases = _by_case(rows)
    names = sorted(cases, key=lambda name: (name.split("/")[:-1], cases[name]["kl"]["value"]))
    return _cases_table(heading, {name: cases[name] for name in names}, columns)


def study_table(rows: list[Row], columns: dict[str, str]) -> str:
    """One line per family and threshold of a study, the closest to dense first."""
    return quality_table(rows, columns, "study / model / data / family@threshold")


def build_table(rows: list[Row]) -> str:
    """One line per recorded build."""
    columns = ["documents", "indexed", "failed", "tokens", "seconds", "tokens_per_second"]
    header = ["documents", "indexed", "failed", "tokens", "seconds", "tokens/s"]
    return _cases_table("build", _by_case(rows), dict(zip(columns, header, strict=True)))


def storage_table(rows: list[Row]) -> str:
    """One line per kind of index."""
    columns = ["documents", "bytes_per_document", "x_below_kv"]
    header = ["documents", "bytes a document", "times below bf16 KV"]
    return _cases_table("index", _by_case(rows), dict(zip(columns, header, strict=True)))


def pairs_table(rows: list[Row]) -> str:
    """One line per method compared with another on the same questions."""
    return _cases_table("model / data / methods", _by_case(rows), PAIRS)


def invariance_table(rows: list[Row], columns: dict[str, str]) -> str:
    """Two lines per limit and policy: everything together, and means over heads and layers."""
    cases: dict[str, Case] = {}
    for name, case in _by_case(rows).items():
        for kind, label in MEANS.items():
            of_kind = {m.removeprefix(f"{kind}_"): row for m, row in case.items()}
            cases[f"{name}, {label}"] = of_kind
    depth = max(name.count("/") for name in cases)
    heading = " / ".join(("model", "data", "limit", "policy")[: depth + 1])
    counts = {"prompts": "prompts", "documents": "documents"}
    return _cases_table(heading, cases, {**counts, **columns})


def speed_table(rows: list[Row]) -> str:
    """One line per case of the Hopper kernel, beside dense attention on the same data."""
    cases = _by_case(rows)
    found = {}
    for name, case in cases.items():
        path, _, label = name.partition("/")
        if path == "gluon":
            found[label] = {**case, "dense_ms": cases[f"fa3/{label}"]["ms"]}
    return _cases_table("head_dim / tokens / documents / CA density", found, SPEED)


def paths_table(rows: list[Row]) -> str:
    """One line per implementation and case, dense ones too."""
    cases = {name: case for name, case in _by_case(rows).items() if "tflops" in case}
    named = {"/".join([*name.split("/")[1:], name.split("/")[0]]): name for name in cases}
    return _cases_table("case / path", {name: cases[named[name]] for name in sorted(named)}, PATHS)


def lookup_table(rows: list[Row]) -> str:
    """One line per index looked up in."""
    return _cases_table("index", _by_case(rows), LOOKUP)


def plan_table(rows: list[Row]) -> str:
    """One line per kind of work of a driver and number of documents or workers."""
    return _cases_table("work / size", _by_case(rows), PLAN)


def workers_table(rows: list[Row]) -> str:
    """One line per model and number of workers."""
    return _cases_table("model / workers", _by_case(rows), WORKERS)


def faults_table(rows: list[Row]) -> str:
    """Damage and hostile input that was tried, and what of it was missed."""
    return _cases_table("index", _by_case(rows), FAULTS)


def kills_table(rows: list[Row], heading: str, columns: dict[str, str]) -> str:
    """Builds that were killed: what was lost, or a line per victim with the moments."""
    return _cases_table(heading, _by_case(rows), columns)


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
    lines = []
    for policy in ranked:
        mean = sum(kl[policy]) / len(datasets)
        change = mean / (sum(kl[REFERENCE]) / len(datasets)) - 1
        values = [f"{value:.4f}" for value in (*kl[policy], mean)]
        lines.append([policy, *values, f"{change:+.0%}"])
    prompts = {row["value"] for row in rows if row["metric"] == "prompts"}
    counted = f"{min(prompts):.0f} prompts of each data set"
    return f"{_markdown(header, lines)}\n\n{counted}, {_devices(rows)}."


def kl_at(density: float, points: list[tuple[float, float]]) -> float:
    """Return KL at a density, log-linear between the two measured points around it.

    Beyond the measured densities the line through the two nearest points goes on.
    """
    ordered = sorted(points)
    upper = next((i for i, (at, _) in enumerate(ordered) if at >= density), len(ordered) - 1)
    (left, low), (right, high) = ordered[max(0, upper - 1)], ordered[max(1, upper)]
    share = (density - left) / (right - left)
    return math.exp((1 - share) * math.log(low) + share * math.log(high))


def of_data(*names: str, own_probes: bool = False) -> Callable[[str], bool]:
    """Return what picks the cases of these data sets: those of `own-probes`, or all others."""
    return lambda case: case.split("/")[1] in names and ("own-probes" in case) == own_probes


def of_study(name: str) -> Callable[[str], bool]:
    """Return what picks the cases of a study."""
    return lambda case: case.split("/")[0] == name


POOLED = "musique+wikimqa"


def ttft_table(rows: list[Row], columns: dict[str, str] = TTFT) -> str:
    """One line per prompt and row of prefills."""
    return _cases_table(HEADING, arranged(_by_case(rows), columns), columns)


def build_speed_table(rows: list[Row]) -> str:
    """One line per document length of `sift-index bench build`, those of other shapes last."""
    cases = sorted(
        _by_case(rows).items(),
        key=lambda item: (
            "/" in item[0],
            -item[1]["batch_documents"]["value"],
            item[1]["batch_tokens"]["value"],
        ),
    )
    return _cases_table("documents", dict(cases), BUILD_SPEED)


def is_build_speed(case: str) -> bool:
    """Whether a case is of `sift-index bench build`: `len512` and its like."""
    return case.split("/")[-1].startswith("len")


BLOCKS = {
    "quality": Block("quality", quality_table, of_data(POOLED)),
    "held-out": Block("quality", quality_table, of_data(f"{POOLED} (held out)")),
    "data-sets": Block("quality", quality_table, of_data("musique", "wikimqa")),
    "examples": Block("quality", quality_table, of_data("examples")),
    "needle": Block("quality", quality_table, of_data("needle")),
    "long": Block(
        "quality", partial(quality_table, columns=LONG), of_data("multifieldqa_zh+qasper")
    ),
    "prefix": Block("quality", quality_table, of_data(f"{POOLED} (other prefix)")),
    "own-probes": Block("quality", quality_table, of_data(POOLED, own_probes=True)),
    "pairs": Block("pairs", pairs_table),
    "local": Block(
        "invariance", partial(invariance_table, columns=LOCAL), lambda case: "/alpha " in case
    ),
    "cross": Block(
        "invariance", partial(invariance_table, columns=CROSS), lambda case: "/beta " in case
    ),
    "workers": Block("workers", workers_table),
    "ttft": Block("ttft", ttft_table, lambda case: not is_reuse(case)),
    "energy": Block("ttft", partial(ttft_table, columns=ENERGY), lambda case: not is_reuse(case)),
    "reuse": Block("ttft", partial(ttft_table, columns=REUSE), is_reuse),
    "build-speed": Block("build", build_speed_table, is_build_speed),
    "speed": Block("kernels", speed_table, lambda case: "/docs-1024/" in case),
    "paths": Block("kernels", paths_table),
    "lookup": Block("lookup", lookup_table, lambda case: case.startswith("1m")),
    "plan": Block("plan", plan_table),
    "faults": Block("faults", faults_table, lambda case: case == "format"),
    "kills": Block(
        "kills", partial(kills_table, heading="case", columns=KILLS), lambda case: case == "build"
    ),
    "kill-points": Block(
        "kills",
        partial(kills_table, heading="victim", columns=KILL_PHASES),
        lambda case: case != "build",
    ),
    "policies": Block("policies", policies_table),
    "union": Block("studies", partial(study_table, columns=UNION), of_study("union")),
    "la-keys": Block("studies", partial(study_table, columns=LA_KEYS), of_study("la-keys")),
    "storage": Block("storage", storage_table),
    "build": Block("build", build_table, lambda case: not is_build_speed(case)),
}


def _by_case(rows: Iterable[Row]) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for row in rows:
        cases.setdefault(row["case"], {})[row["metric"]] = row
    return cases


def _cases_table(heading: str, cases: dict[str, Case], columns: dict[str, str]) -> str:
    """Return a line per case; what all names begin with, and unmeasured columns, are left out."""
    measured = {name for case in cases.values() for name in case}
    shown = {name: label for name, label in columns.items() if name in measured}
    parts = [name.split("/") for name in cases]
    shared = _shared(parts)
    first = " / ".join(heading.split(" / ")[len(shared) :])
    lines = [
        ["/".join(names[len(shared) :]), *(_shown(case, name) for name in shown)]
        for names, case in zip(parts, cases.values(), strict=True)
    ]
    devices = _devices(row for case in cases.values() for row in case.values())
    measured_on = ": ".join([f"M{devices[1:]}", *([", ".join(shared)] if shared else [])])
    return f"{_markdown([first, *shown.values()], lines)}\n\n{measured_on}."


def _shared(parts: Sequence[list[str]]) -> list[str]:
    """Return what all names begin with, at most all but the last part of the shortest."""
    found = []
    for column in list(zip(*parts, strict=False))[:-1]:
        if len(set(column)) > 1:
            break
        found.append(column[0])
    return found


def _shown(case: Case, metric: str) -> str:
    """Return a value, with its interval where the file has one."""
    if metric not in case:
        return "–"
    value = case[metric]["value"]
    digits = 4 if case[metric]["unit"] == "nats" or metric == "high" else 3
    text = f"{value:,.0f}" if value >= 10 or float(value).is_integer() else f"{value:z.{digits}f}"
    if f"{metric}_lo" in case:
        low, high = (case[f"{metric}_{end}"]["value"] for end in ("lo", "hi"))
        text += f" [{low:z.{digits}f}, {high:z.{digits}f}]"
    return text


def _markdown(header: list[str], lines: list[list[str]]) -> str:
    rule = "|---" * len(header) + "|"
    first, *rest = ("| " + " | ".join(cells) + " |" for cells in (header, *lines))
    return "\n".join([first, rule, *rest])


def _devices(rows: Iterable[Row]) -> str:
    return "measured on " + "; ".join(sorted({row["device"] for row in rows}))


def main() -> int:
    """Rewrite the pages, or compare with them."""
    status = 0
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = render(old)
        if "--check" not in sys.argv:
            page.write_text(new, encoding="utf-8")
        elif old != new:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
