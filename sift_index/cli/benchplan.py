"""`sift-index bench plan`: what the driver of a large build costs in time, memory and CPU."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sift_index.cli.benchoptions import folder_option, numbers, results_option, seed_option
from sift_index.cli.frame import emit, framed, table

if TYPE_CHECKING:
    from sift_index.pipelines.bench.plan import PlanResult


@click.command()
@click.option("--texts", default="1000000", show_default=True, metavar="LIST")
@click.option("--lengths", default="1000000,10000000", show_default=True, metavar="LIST")
@click.option("--published", default="1000000", show_default=True, metavar="LIST")
@click.option("--workers", default="1000", show_default=True, metavar="LIST")
@click.option("--model", default="smollm2-135m", show_default=True, help="Of the tokenizer.")
@click.option("--unit-tokens", type=click.IntRange(min=1), default=16384, show_default=True)
@click.option(
    "--driver-unit-tokens",
    type=click.IntRange(min=1),
    default=1 << 20,
    show_default=True,
    help="Tokens of the units that simulated workers do.",
)
@click.option(
    "--driver-rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Units of each simulated worker.",
)
@seed_option
@folder_option("Where texts and units are written, and removed.  [default: the temporary folder]")
@results_option("plan")
@framed
def plan(
    texts: str,
    lengths: str,
    published: str,
    workers: str,
    model: str,
    unit_tokens: int,
    driver_unit_tokens: int,
    driver_rounds: int,
    seed: int,
    folder: Path | None,
    results: Path | None,
    output: str,
) -> None:
    """Measure planning, publishing and the driver of large builds, without a model.

    Lists are numbers of documents, "" leaves one out. `texts` are written (1.2 GB for a million),
    read and tokenised on all CPUs; `lengths` are planned without texts; `published` are committed
    with tiny masks and made a version; `workers` are simulated for the runner of builds.

    \b
    Example:
      sift-index bench plan --texts 20000 --lengths 1000000 --published "" --workers ""
      sift-index bench plan --results benchmarks/results/plan.json
    """
    from sift_index.evaluation.results import merge_results, read_results
    from sift_index.pipelines.bench.plan import BENCH, PlanOptions, bench_plan

    if results is not None:
        read_results(results)  # before minutes of work
    options = PlanOptions(
        texts=_counts("--texts", texts),
        lengths=_counts("--lengths", lengths),
        published=_counts("--published", published),
        workers=_counts("--workers", workers),
        model=model,
        unit_tokens=unit_tokens,
        driver_unit_tokens=driver_unit_tokens,
        driver_rounds=driver_rounds,
        seed=seed,
        folder=folder,
    )
    found = []
    for result in bench_plan(options, lambda line: click.echo(line, err=True)):
        found.append(result)
        if results is not None:
            merge_results(results, BENCH, result.rows())
    values = {result.case: {m: v for _, m, v, _ in result.values()} for result in found}
    emit({"cases": values}, lambda console: _show(console, found), output)


def _counts(option: str, value: str) -> tuple[int, ...]:
    return numbers(option, value, _positive)


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError("a count below 1")
    return int(text)


def _show(console: Console, found: "list[PlanResult]") -> None:
    lines = [
        [case, metric, f"{value:,.3f}" if value < 10 else f"{value:,.0f}", unit]
        for result in found
        for case, metric, value, unit in result.values()
    ]
    console.print(table("planning, publishing, driving", ["case", "metric", "value", ""], lines))
