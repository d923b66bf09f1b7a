"""`sift-index build`: a corpus in, an index out; the same command resumes and extends."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sift_index.cli.frame import FAILED, PARTIAL, emit, framed
from sift_index.cli.location import GIVEN_PATH, index_location, require_index_place
from sift_index.formats.location import Location, anchored, parse_location
from sift_index.formats.presence import resolved

if TYPE_CHECKING:
    from sift_index.pipelines.config import BuildConfig
    from sift_index.pipelines.summary import BuildSummary


@click.command()
@click.argument("corpus", type=GIVEN_PATH)
@click.option("--model", required=True, help="Preset, local folder or hub id.")
@click.option(
    "--index",
    "output_folder",
    type=index_location,
    metavar="PATH",
    help="Folder or s3://bucket/prefix.  [default: the corpus's name with .sift, in this folder]",
)
@click.option("--policy", default="probe", show_default=True, help="probe, paper or a YAML file.")
@click.option("--text-field", default="text", show_default=True, help="Field holding the text.")
@click.option("--id-field", help="Field holding the document id.  [default: id or doc_id]")
@click.option("--prefix", help="Text in front of the first document.  [default: the model's]")
@click.option("--span-prefix", help="Text before each document, part of its key.")
@click.option("--span-suffix", help="Text behind each document, part of its key.")
@click.option(
    "--long",
    type=click.Choice(["split", "skip", "error"]),
    default="split",
    show_default=True,
    help="What to do with documents longer than fit.",
)
@click.option("--max-tokens", type=int, help="Longest piece.  [default: the model's context]")
@click.option(
    "--dtype", default="auto", show_default=True, help="auto, float32, bfloat16, float16."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--codec", type=click.Choice(["raw", "zstd"]), default="raw", show_default=True)
@click.option("--unit-tokens", type=int, default=16384, show_default=True, help="Tokens of a unit.")
@click.option(
    "--batch-tokens", type=int, default=16384, show_default=True, help="Tokens of a forward pass."
)
@click.option("--workers", type=int, help="Workers.  [default: one per GPU, or CPUs / threads]")
@click.option("--threads", type=int, default=2, show_default=True, help="CPU threads of a worker.")
@click.option(
    "--unit-timeout",
    type=float,
    metavar="SECONDS",
    help="Replace a worker that takes longer for a unit.  [default: 10 minutes and 20 times what "
    "the slowest unit so far would have taken]",
)
@click.option(
    "--max-failures",
    type=int,
    metavar="N",
    help="Stop when more than N documents failed; committed units stay.  [default: never]",
)
@click.option(
    "--prune", is_flag=True, help="Also take out documents that the corpus does not have any more."
)
@click.option("--address", help="Ray cluster.  [default: the job's cluster, else start one here]")
@click.option("--dry-run", is_flag=True, help="Measure a sample, say what it takes, build nothing.")
@framed
def build(
    corpus: Path,
    output_folder: Location | None,
    policy: str,
    dry_run: bool,
    output: str,
    **rest: Any,
) -> int:
    """Index every document of CORPUS for a model.

    CORPUS is a folder of .txt, .md, .jsonl or .parquet files, one such file, or anything the
    datasets library opens locally. Running the same command again resumes an interrupted build
    and adds new documents. Press Ctrl-C at any time: committed work is kept. On a cluster, nodes
    may join and leave while it runs, and workers that die or hang are replaced.

    \b
    Example:
      sift-index build corpus/ --model smollm2-135m --index corpus.sift
      sift-index build corpus/ --model smollm2-135m --index corpus.sift --dry-run
      sift-index build corpus/ --model smollm2-135m --index s3://bucket/corpus.sift
      ray job submit -- sift-index build /data/corpus --model llama-3.1-8b --index /data/corpus.sift
    """
    from sift_index.models.quiet import quiet_transformers
    from sift_index.pipelines.build import run_build
    from sift_index.pipelines.config import BuildConfig
    from sift_index.selection.policy import read_policy

    quiet_transformers()
    target = output_folder or default_index(corpus)
    require_index_place(target)
    chosen = read_policy(policy)
    config = BuildConfig(
        corpus=corpus,
        output=anchored(target),
        policy=chosen.policy,
        quality=chosen.quality,
        **rest,
    )
    if dry_run:
        return _estimate(config, output)
    with redirect_stdout(sys.stderr):  # Ray prints there when a worker or a node is lost
        summary = run_build(config)
    values = {"index": str(config.output), **summary.to_json()}
    emit(values, lambda console: _print(console, summary.lines()), output)
    return _outcome(summary)


def _estimate(config: "BuildConfig", output: str) -> int:
    from sift_index.pipelines.estimate import estimate_build

    with redirect_stdout(sys.stderr):
        found = estimate_build(config)
    emit(found.to_json(), lambda console: _print(console, found.lines()), output)
    return 0


def _print(console: Console, lines: list[str]) -> None:
    for line in lines:  # as they are: a file's name may look like markup
        console.print(line, markup=False, soft_wrap=True)


def _outcome(summary: "BuildSummary") -> int:
    """Say what failed and return the exit code."""
    for failure in summary.failed:
        click.echo(f"failed: {failure.line()}", err=True)
    if summary.version is None:
        click.echo("error: no document could be indexed, so there is no index", err=True)
        return FAILED
    return PARTIAL if summary.failed else 0


def default_index(corpus: Path) -> Location:
    """Return the index folder for a corpus that was given without one."""
    return parse_location(f"{resolved(corpus).stem}.sift")
