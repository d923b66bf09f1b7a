"""`sift-index demo`: the whole path on a real model, from corpus to a comparison with dense."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sift_index.cli.frame import PARTIAL, emit, framed, table
from sift_index.cli.location import GivenPath, require_index_place

if TYPE_CHECKING:
    from sift_index.evaluation.run import EvalReport
    from sift_index.pipelines.summary import BuildSummary

MODEL = "smollm2-135m"
METHODS = ("dense", "sift", "no-cross")
Speak = Callable[[str], None]


@click.command()
@click.option(
    "--folder",
    type=GivenPath(path_type=Path, file_okay=False),
    default=Path("sift-demo"),
    show_default=True,
    help="Where the index and summary.json go.",
)
@click.option(
    "--questions",
    type=click.IntRange(1, 16),
    default=6,
    show_default=True,
    help="Questions to compare.",
)
@framed
def demo(folder: Path, questions: int, output: str) -> int:
    """Index the packaged example corpus with a small real model, then compare with dense.

    Needs no network and no GPU. The CPU path is the readable reference: it shows quality and
    density, not speed.

    \b
    Example:
      sift-index demo
    """
    from sift_index.models.quiet import quiet_transformers

    started = time.monotonic()
    quiet_transformers()
    say = _speaker(output)
    index = folder / "index"
    require_index_place(index)
    summary = _build(index, say)
    report = _compare(index, questions, say)
    values = _summary(summary, report, time.monotonic() - started)
    path = folder / "summary.json"
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    emit(values, lambda console: _show(console, report, values, path), output)
    return PARTIAL if summary.failed else 0


def _build(index: Path, say: Speak) -> "BuildSummary":
    from sift_index.evaluation.questions import example_corpus
    from sift_index.pipelines.build import run_build
    from sift_index.pipelines.config import BuildConfig
    from sift_index.selection.policy import read_policy

    say(f"1/3 indexing the example corpus with {MODEL}: each document runs once, offline")
    probe = read_policy("probe")
    summary = run_build(
        BuildConfig(example_corpus(), index, MODEL, probe.policy, probe.quality, device="cpu")
    )
    for line in summary.lines():
        say("    " + line)
    return summary


def _compare(index: Path, count: int, say: Speak) -> "EvalReport":
    from sift_index.evaluation.methods.registry import Setting
    from sift_index.evaluation.questions import example_questions
    from sift_index.evaluation.run import EvalOptions, evaluate
    from sift_index.models.loading import load_model
    from sift_index.runtime.index import SiftIndex

    say(f"2/3 opening the index and comparing {count} prompts, sparse prefill against dense")
    loaded = load_model(MODEL, device="cpu")
    opened = SiftIndex.open(index, loaded.model, loaded.tokenizer)
    chosen = example_questions()[:count]

    def done(number: int) -> None:
        say(f"    {number}/{count} {chosen[number - 1].question}")

    options = EvalOptions(generate=False, recall=False)
    return evaluate(Setting(loaded, opened), chosen, METHODS, options, done)


def _summary(summary: "BuildSummary", report: "EvalReport", seconds: float) -> dict[str, Any]:
    from sift_index.evaluation.report import method_intervals

    found = method_intervals(report.scores["sift"])
    return {
        "documents": summary.documents,
        "tokens": summary.index_tokens,
        "index_bytes": summary.index_bytes,
        "kv_bytes": summary.kv_bytes,
        "density": round(found["density"].mean, 4),
        "ca_density": round(found["ca_density"].mean, 4),
        "kl": round(found["kl"].mean, 6),
        "top1_agreement": round(found["top1"].mean, 4),
        "seconds": round(seconds, 1),
    }


def _show(console: Console, report: "EvalReport", values: dict[str, Any], path: Path) -> None:
    from sift_index.evaluation.report import report_table

    tokens = f"{min(report.tokens):,} to {max(report.tokens):,} tokens"
    columns, rows = report_table(report)
    console.print("3/3", table(f"{len(report.tokens)} prompts of {tokens}", columns, rows))
    console.print(
        f"\nSparse prefill computed {values['density']:.0%} of the attention scores (documents "
        f"attend to {values['ca_density']:.0%} of earlier documents) and chose the dense model's "
        f"token {values['top1_agreement']:.0%} of the time (KL {values['kl']:.4f} nats).\n"
        f"The index takes {values['index_bytes']:,} bytes; the KV cache of the same documents "
        f"would take {values['kv_bytes']:,}.\n"
        f"{values['seconds']:.0f} s in all; numbers in {path}."
    )


def _speaker(output: str) -> Speak:
    """Return a function that prints to standard error when standard output carries JSON."""
    console = Console(stderr=output == "json", highlight=False, soft_wrap=True)
    return lambda message: console.print(message, markup=False)
