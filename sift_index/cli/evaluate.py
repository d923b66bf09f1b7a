"""`sift-index eval`: how close sparse prefill stays to dense, on questions with documents."""

import sys
from pathlib import Path
from typing import Any

import click

from sift_index.cli.frame import emit, framed, table
from sift_index.errors import UsageError


@click.command("eval")
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--model", help="Preset, folder or hub id.  [default: the model the index names]")
@click.option(
    "--questions",
    type=click.Path(path_type=Path),
    help="JSON Lines of questions with documents.  [default: the packaged examples]",
)
@click.option("--corpus", type=click.Path(path_type=Path), help="Folder that document names mean.")
@click.option(
    "--methods", default="dense,sift,paper,no-cross", show_default=True, help="Comma-separated."
)
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N questions.")
@click.option("--strict", is_flag=True, help="Refuse what would be a warning.")
@click.option("--dtype", default="auto", show_default=True)
@click.option("--device", default="auto", show_default=True)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Merge the numbers into a results file, as benchmarks/results/quality.json.",
)
@framed
def evaluate(
    index: Path,
    model: str | None,
    questions: Path | None,
    corpus: Path | None,
    methods: str,
    limit: int | None,
    strict: bool,
    dtype: str,
    device: str,
    results: Path | None,
    output: str,
) -> None:
    """Compare methods with dense attention on the same prompts.

    KL and top-1 are over the dense model's greedy answer, NLL over the given answer; each mean
    comes with its 95 % bootstrap interval over prompts.

    \b
    Example:
      sift-index eval corpus.sift --methods dense,sift
      sift-index eval corpus.sift --questions qa.jsonl --limit 40 --output json
    """
    from sift_index.evaluation.questions import example_questions, load_questions
    from sift_index.evaluation.report import report_rows, report_table, report_values
    from sift_index.evaluation.results import merge_results, read_results
    from sift_index.evaluation.run import evaluate as run
    from sift_index.models.loading import load_model
    from sift_index.models.quiet import quiet_transformers
    from sift_index.runtime.index import SiftIndex

    quiet_transformers()
    if results:
        read_results(results)  # an hour of evaluation must not end in a path that cannot be used
    opened = SiftIndex.open(index, strict=strict)
    asked = load_questions(questions, corpus) if questions else example_questions()
    name = model or _recorded_model(opened.fingerprint.advisory)
    loaded = load_model(name, dtype, device)
    opened.check_model(loaded.model, loaded.tokenizer)
    chosen = asked[:limit]
    names = [method.strip() for method in methods.split(",") if method.strip()]
    report = run(loaded, opened, chosen, names, _progress(len(chosen)))
    if results:
        data = questions.stem if questions else "examples"
        merge_results(results, "quality", report_rows(report, f"{name}/{data}", loaded.device))
    columns, rows = report_table(report)
    title = (
        f"{len(chosen)} prompts of {min(report.tokens):,} to {max(report.tokens):,} tokens, "
        f"{report.hits} documents found in the index, {report.misses} not"
    )
    if report.misses:
        click.echo(
            f"warning: {report.misses} of {report.hits + report.misses} documents are not in the "
            "index as these texts and stay dense; the numbers of sift say less than they seem to",
            err=True,
        )
    emit(report_values(report), lambda c: c.print(table(title, columns, rows)), output)


def _recorded_model(advisory: Any) -> str:
    name = advisory.get("model")
    if not name:
        raise UsageError("the index names no model that can be loaded; give --model")
    return str(name)


def _progress(total: int) -> Any:
    def show(done: int) -> None:
        end = "\r" if sys.stderr.isatty() and done < total else "\n"
        click.echo(f"question {done}/{total}{end}", nl=False, err=True)

    return show
