"""`sift-index bench lookup`: the cost of finding a document, and of sharing an index."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sift_index.cli.benchoptions import folder_option, results_option, seed_option
from sift_index.cli.frame import emit, framed, table

if TYPE_CHECKING:
    from sift_index.bench.lookup import LookupResult


@click.command()
@click.option("--documents", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--packs", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--tokens", type=click.IntRange(min=1), default=1024, show_default=True)
@click.option("--layers", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--heads", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--density", type=float, default=0.3, show_default=True, help="Share of pages on.")
@click.option(
    "--codec", type=click.Choice(["both", "raw", "zstd"]), default="both", show_default=True
)
@click.option("--samples", type=click.IntRange(min=100), default=20_000, show_default=True)
@click.option(
    "--cache",
    type=click.IntRange(min=0),
    default=1 << 28,
    show_default=True,
    metavar="BYTES",
    help="Of decoded masks, timed beside zstd without a cache.",
)
@seed_option
@folder_option("Where the index is written, and removed.  [default: the system's temporary folder]")
@results_option("lookup")
@framed
def lookup(
    documents: int,
    packs: int,
    tokens: int,
    layers: int,
    heads: int,
    density: float,
    codec: str,
    samples: int,
    cache: int,
    seed: int,
    folder: Path | None,
    results: Path | None,
    output: str,
) -> None:
    """Time lookups in a synthetic index, and weigh one process and four that read it.

    Documents have the shape of Llama-3.1-8B unless said otherwise: 4.3 KB each, so the default
    needs 4.7 GB of disk for some minutes. Random keys: rows used before, rows used for the first
    time (checksums are checked then), and keys that are not there. Files lie in the system's cache.

    \b
    Example:
      sift-index bench lookup --documents 20000 --packs 10
      sift-index bench lookup --results benchmarks/results/lookup.json
    """
    from sift_index.bench.lookup import BENCH, LookupOptions, bench_lookup
    from sift_index.bench.lookup_index import IndexShape
    from sift_index.evaluation.results import merge_results, read_results
    from sift_index.formats.blob import Codec

    if results is not None:
        read_results(results)  # before minutes of work
    shape = IndexShape(documents, packs, tokens, layers, heads, density=density)
    codecs = tuple(Codec) if codec == "both" else (Codec[codec.upper()],)
    options = LookupOptions(shape, codecs, samples, cache, seed, folder)
    found = []
    for result in bench_lookup(options, lambda line: click.echo(line, err=True)):
        found.append(result)
        if results is not None:
            merge_results(results, BENCH, result.rows(shape))
    values = {result.case: {m: v for _, m, v, _ in result.values()} for result in found}
    emit({"cases": values}, lambda console: _show(console, found), output)


def _show(console: Console, found: "list[LookupResult]") -> None:
    lines = [
        [case, metric, f"{value:,.2f}", unit]
        for result in found
        for case, metric, value, unit in result.values()
    ]
    console.print(table("lookups in a synthetic index", ["case", "metric", "value", ""], lines))
