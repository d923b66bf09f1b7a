"""`sift-index bench compose`: what a prompt costs the host before any GPU sees it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sift_index.cli.benchoptions import folder_option, results_option, seed_option
from sift_index.cli.frame import emit, framed, table

if TYPE_CHECKING:
    from sift_index.bench.compose import Value


@click.command()
@click.option("--documents", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--tokens", type=click.IntRange(min=16), default=1024, show_default=True)
@click.option("--layers", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--heads", type=click.IntRange(min=1), default=32, show_default=True)
@click.option(
    "--among",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Documents in the index of which the prompt is composed; 4.3 KB of disk each.",
)
@click.option(
    "--find-among",
    type=click.IntRange(min=0),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Documents among which those of a raw prompt are found; 0 leaves this out.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=50, show_default=True)
@seed_option
@folder_option("Where indexes are written, and removed.  [default: the system's temporary folder]")
@results_option("lookup")
@framed
def compose(
    documents: int,
    tokens: int,
    layers: int,
    heads: int,
    among: int,
    find_among: int,
    repeats: int,
    seed: int,
    folder: Path | None,
    results: Path | None,
    output: str,
) -> None:
    """Time the composing of a prompt, and the finding of documents in one that nobody declared.

    Medians, hashing included, in synthetic indexes of the shape of Llama-3.1-8B unless said
    otherwise; files lie in the system's cache. To find documents, anchors are sorted once
    (find_first_ms).

    \b
    Example:
      sift-index bench compose --find-among 0
      sift-index bench compose --results benchmarks/results/lookup.json
    """
    from sift_index.bench.compose import BENCH, ComposeOptions, bench_compose, compose_rows
    from sift_index.bench.lookup_index import IndexShape
    from sift_index.evaluation.results import merge_results, read_results

    if results is not None:
        read_results(results)  # before minutes of work
    shape = IndexShape(max(among, documents), min(10, among), tokens, layers, heads)
    options = ComposeOptions(shape, documents, find_among, repeats, seed, folder)
    found = list(bench_compose(options))
    if results is not None:
        merge_results(results, BENCH, compose_rows(found, shape))
    values: dict[str, dict[str, float]] = {}
    for case, metric, value, _ in found:
        values.setdefault(case, {})[metric] = value
    emit({"cases": values}, lambda console: _show(console, found), output)


def _show(console: Console, found: "list[Value]") -> None:
    lines = [[case, metric, f"{value:,.2f}", unit] for case, metric, value, unit in found]
    console.print(table("host time of a prompt", ["case", "metric", "value", ""], lines))
