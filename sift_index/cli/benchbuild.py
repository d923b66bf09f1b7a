"""`sift-index bench build`: what extraction costs on top of a dense prefill."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sift_index.cli.benchoptions import (
    budget_option,
    check_resume,
    effort_options,
    numbers,
    results_option,
)
from sift_index.cli.frame import emit, framed, table
from sift_index.errors import UsageError

if TYPE_CHECKING:
    from sift_index.bench.build import BuildOptions, BuildResult

WIDTH = 140


@click.command("build")
@click.option(
    "--model-shape",
    default="llama-3.1-8b",
    show_default=True,
    help="Preset or folder with a config.json; weights are random.",
)
@click.option("--layers", type=click.IntRange(min=1), help="Of the shape.  [default: all]")
@click.option(
    "--documents",
    default="128,512,2048,8192,32768",
    show_default=True,
    metavar="LIST",
    help="Tokens of a document.",
)
@click.option(
    "--batch-tokens",
    type=click.IntRange(min=1),
    default=16384,
    show_default=True,
    help="Of a forward pass; a longer document runs alone.",
)
@click.option("--policy", default="probe", show_default=True, help="probe or a YAML file.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--dtype", default="auto", show_default=True)
@effort_options(warmup=1, repeats=3)
@click.option(
    "--split/--no-split", default=True, help="Time the parts of a build too, not only both sides."
)
@budget_option
@click.option("--resume", is_flag=True, help="Leave out cases that --results has already.")
@results_option("build", by_case=True)
@framed
def bench_build_command(
    model_shape: str,
    layers: int | None,
    documents: str,
    batch_tokens: int,
    policy: str,
    device: str,
    dtype: str,
    warmup: int,
    repeats: int,
    split: bool,
    budget: float | None,
    resume: bool,
    results: Path | None,
    output: str,
) -> None:
    """Time extraction against a dense prefill of the same packed documents.

    Documents of random tokens, about as long as asked for, fill a batch behind one shared prefix.
    Both sides run the same model code; medians until the device is done, contenders take turns.
    Also where the time goes, and the peak memory beside the model at two sizes of a batch.

    \b
    Example:
      sift-index bench build --results benchmarks/results/build.json
      sift-index bench build --documents 131024 --no-split --repeats 1
      sift-index bench build --model-shape smollm2-135m --device cpu --documents 128,512
    """
    from sift_index.bench.build import BuildOptions
    from sift_index.bench.measure import Effort
    from sift_index.selection.policy import load_policy

    check_resume(resume, results)
    options = BuildOptions(
        policy=load_policy(policy),
        documents=numbers("--documents", documents, int),
        batch_tokens=batch_tokens,
        effort=Effort(warmup, repeats),
        split=split,
        budget=budget,
    )
    if not options.documents or min(options.documents) < 1:
        raise UsageError(
            f"--documents: expected lengths of at least 1 token, found {documents!r}; see --help"
        )
    found = _run(options, model_shape, layers, device, dtype, resume, results)
    emit(
        {"cases": [_json(case, result) for case, result in found]},
        lambda c: _show(c, found),
        output,
    )


def _run(
    options: "BuildOptions",
    shape: str,
    layers: int | None,
    device: str,
    dtype: str,
    resume: bool,
    results: Path | None,
) -> "list[tuple[str, BuildResult]]":
    """Check everything that can be wrong, then measure."""
    from sift_index.bench.build import bench_build
    from sift_index.bench.build_model import loaded_model
    from sift_index.bench.build_report import (
        BENCH,
        build_rows,
        case_name,
        missing_lengths,
        progress_line,
    )
    from sift_index.bench.ttft_laps import prefill_clock
    from sift_index.bench.ttft_model import shape_config
    from sift_index.evaluation.results import merge_results, read_results
    from sift_index.models.loading import resolve_device, resolve_dtype

    config, place = shape_config(shape, layers), resolve_device(device)
    known = read_results(results) if results else {}
    lengths = list(options.documents)
    label = Path(shape).name
    if resume:
        lengths = missing_lengths(lengths, label, layers, known)
    loaded = loaded_model(label, config, place, resolve_dtype(dtype, place))
    found: list[tuple[str, BuildResult]] = []

    def done(result: "BuildResult") -> None:
        case = case_name(result.length, label, layers)
        found.append((case, result))
        click.echo(f"[{len(found)}/{len(lengths)}] {progress_line(result, case)}", err=True)
        if results is not None:
            merge_results(results, BENCH, build_rows(result, case, place))

    left_out = bench_build(options, lengths, loaded, prefill_clock(place), done)
    if left_out:
        names = ", ".join(case_name(length, label, layers) for length in left_out)
        click.echo(f"left out, the budget of {options.budget:g} s is spent: {names}", err=True)
    return found


def _json(case: str, result: "BuildResult") -> dict[str, object]:
    from sift_index.bench.build_report import result_json

    return result_json(result, case)


def _show(console: Console, found: "list[tuple[str, BuildResult]]") -> None:
    from sift_index.bench.build_report import table_columns, table_row

    if not found:
        return
    results = [result for _, result in found]
    console.width = max(console.width, WIDTH)  # a log has no width
    title = "extraction against a packed dense prefill, medians of a batch"
    rows = [table_row(result) for result in results]
    console.print(table(title, table_columns(results), rows))
