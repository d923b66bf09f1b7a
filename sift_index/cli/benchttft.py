"""`sift-index bench ttft`: from a prompt to its first token, dense, sparse and with reused KV."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sift_index.cli.benchoptions import (
    budget_option,
    check_resume,
    effort_options,
    names,
    numbers,
    results_option,
    seed_option,
)
from sift_index.cli.frame import FAILED, emit, framed, table
from sift_index.cli.location import GIVEN_PATH, GivenPath
from sift_index.errors import UsageError

if TYPE_CHECKING:
    import torch

    from sift_index.bench.ttft_measure import Instruments
    from sift_index.bench.ttft_session import TTFTReport, TTFTRun
    from sift_index.runtime.crossover import CrossoverRow

WIDTH = 140


@click.command()
@click.option(
    "--model-shape",
    default="llama-3.1-8b",
    show_default=True,
    help="Preset, or folder with a config.json; weights are random.",
)
@click.option("--layers", type=int, help="Cut the model to its first layers, to try things out.")
@click.option(
    "--tokens",
    metavar="LIST",
    help="Lengths of prompts.  [default: 16384,32768,65536,131072; with --crossover 1K to 16K]",
)
@click.option(
    "--documents", default="1024,4096", show_default=True, metavar="LIST", help="Tokens of each."
)
@click.option(
    "--densities",
    metavar="LIST",
    help="Mean CA densities of `sift`; `default` is what the default policy was measured at.  "
    "[default: default,0.25,0.10]",
)
@click.option(
    "--rows",
    metavar="LIST",
    help="Some of dense-fa3, dense-cudnn, dense-sdpa, sift, kv-reuse, cacheblend15.  "
    "[default: all but dense-sdpa]",
)
@click.option(
    "--kv-disk",
    type=GivenPath(path_type=Path, exists=True, file_okay=False, writable=True),
    metavar="DIR",
    help="Also load reused KV from files, written to DIR and removed.",
)
@click.option("--compile/--no-compile", default=True, help="Compile the model's pointwise parts.")
@click.option("--device", default="cuda", show_default=True, help="auto, cpu or cuda[:n].")
@effort_options(warmup=1, repeats=3)
@click.option(
    "--window",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Where energy is counted, a turn repeats a prefill this long.",
)
@seed_option
@budget_option
@click.option("--resume", is_flag=True, help="Leave out cases that --results has all rows of.")
@results_option("ttft", by_case=True)
@click.option(
    "--crossover",
    type=GIVEN_PATH,
    metavar="FILE",
    help="Instead, write to FILE (YAML) the densities up to which sparse is faster.",
)
@framed
def ttft(
    model_shape: str,
    layers: int | None,
    device: str,
    resume: bool,
    results: Path | None,
    crossover: Path | None,
    output: str,
    **rest: Any,
) -> int:
    """Time the prefill of whole prompts on one GPU, to the logits of the first token.

    All rows run one model with random weights through the same attention hook and fill its KV
    cache. `sift` uploads and decodes its plan inside the time; composing it is reported apart. Its
    masks are random bits, spread over layers and heads as in a real index. `kv-reuse` and
    `cacheblend15` load KV layer by layer while they compute, under conditions that favour them.
    Rows take turns; times are medians, energy is the GPU's own counter. LIST is comma-separated.

    \b
    Example:
      sift-index bench ttft
      sift-index bench ttft --tokens 65536 --documents 1024 --rows dense-fa3,sift
      sift-index bench ttft --tokens 65536 --rows dense-fa3,kv-reuse,cacheblend15 --kv-disk /scratch
      sift-index bench ttft --budget 300 --results ttft.json --resume
      sift-index bench ttft --crossover h200.yaml
    """
    from sift_index.models.quiet import quiet_transformers

    quiet_transformers()
    run = _crossover_run(**rest) if crossover else _run(**rest)
    _check_files(resume, results, crossover)
    if crossover:
        return _cross(run, model_shape, layers, device, crossover, output)
    return _bench(run, model_shape, layers, device, resume, results, output)


def _run(
    tokens: str | None,
    documents: str,
    densities: str | None,
    rows: str | None,
    kv_disk: Path | None,
    seed: int,
    warmup: int,
    repeats: int,
    window: float,
    **rest: Any,
) -> "TTFTRun":
    from sift_index.bench.ttft_cases import TTFTOptions
    from sift_index.bench.ttft_measure import TTFTEffort
    from sift_index.bench.ttft_session import TTFTRun

    usual = TTFTOptions()
    options = TTFTOptions(
        tokens=usual.tokens if tokens is None else numbers("--tokens", tokens, int),
        documents=numbers("--documents", documents, int),
        densities=usual.densities if densities is None else _densities(densities),
        kinds=usual.kinds if rows is None else tuple(names(rows)),
        disk=kv_disk is not None,
        seed=seed,
    )
    return TTFTRun(options, TTFTEffort(warmup, repeats, window), disk=kv_disk, **rest)


def _crossover_run(
    tokens: str | None, densities: str | None, documents: str, **rest: Any
) -> "TTFTRun":
    from sift_index.bench.ttft_crossover import DENSITIES, SHORTEST, TOKENS

    return _run(
        tokens=tokens or ",".join(map(str, TOKENS)),
        densities=densities or ",".join(map(str, DENSITIES)),
        documents=str(SHORTEST),  # each length has its own
        **rest,
    )


def _densities(text: str) -> tuple[float | None, ...]:
    def density(name: str) -> float | None:
        return None if name == "default" else float(name)

    return numbers("--densities", text, density)


def _check_files(resume: bool, results: Path | None, crossover: Path | None) -> None:
    """Refuse what would fail after minutes of work."""
    from sift_index.evaluation.results import read_results
    from sift_index.outputs import require_writable

    check_resume(resume, results)
    if crossover and (resume or results):
        raise UsageError(
            "expected --crossover alone, found --results beside it; run the command twice"
        )
    if results:
        read_results(results)
    if crossover:
        require_writable(crossover)


def _model(run: "TTFTRun", shape: str, layers: int | None, device: str) -> Any:
    from sift_index.bench.ttft_model import check_context, random_model, shape_config
    from sift_index.models.loading import resolve_device, resolve_dtype

    config = shape_config(shape, layers)
    check_context(config, max(run.options.tokens))
    place = resolve_device(device)
    return random_model(config, place, resolve_dtype("auto", place), run.options.seed)


def _bench(
    run: "TTFTRun",
    shape: str,
    layers: int | None,
    device: str,
    resume: bool,
    results: Path | None,
    output: str,
) -> int:
    from sift_index.bench.ttft_session import bench_ttft, missing_cases
    from sift_index.evaluation.results import read_results

    cases = run.options.cases()
    if resume and results:
        cases = missing_cases(cases, run.options.rows(), read_results(results))
    model = _model(run, shape, layers, device)
    say = partial(click.echo, err=True)
    report = bench_ttft(run, model, cases, _instruments(model.device), say, results)
    emit(report.to_json(), lambda console: _show(console, report), output)
    return FAILED if report.wrong else 0


def _cross(
    run: "TTFTRun", shape: str, layers: int | None, device: str, target: Path, output: str
) -> int:
    from dataclasses import asdict

    from sift_index.bench.ttft_crossover import measure_crossover, write_crossover
    from sift_index.evaluation.results import device_name
    from sift_index.models.loading import model_label

    model = _model(run, shape, layers, device)
    name, rows = device_name(model.device), []
    instruments = _instruments(model.device, energy=False)
    for row in measure_crossover(run, model, instruments, partial(click.echo, err=True)):
        rows.append(row)
        write_crossover(target, name, model_label(shape), rows)
    emit(
        {"device": name, "rows": [asdict(row) for row in rows]},
        partial(_show_crossing, rows),
        output,
    )
    return 0


def _instruments(device: "torch.device", energy: bool = True) -> "Instruments":
    from sift_index.bench.ttft_energy import energy_meter
    from sift_index.bench.ttft_laps import laps_of, prefill_clock
    from sift_index.bench.ttft_measure import Instruments

    clock, laps = prefill_clock(device), partial(laps_of, device)
    return Instruments(clock, laps, energy_meter(device)) if energy else Instruments(clock, laps)


def _show(console: Console, report: "TTFTReport") -> None:
    from sift_index.bench.ttft_report import SHOWN, columns, table_lines

    if not report.results:
        return
    metrics = columns(report.results)
    console.width = max(console.width, WIDTH)  # a log has no width
    lines = list(table_lines(report.results, metrics))
    title = "prefill to first-token logits, medians in ms; ratios to dense rows of the same case"
    console.print(table(title, ["case", *(SHOWN[metric][0] for metric in metrics)], lines))


def _show_crossing(rows: "list[CrossoverRow]", console: Console) -> None:
    lines = [[f"{row.tokens:,}", f"{row.max_density:.3f}"] for row in rows]
    console.print(table("", ["tokens", "sparse is faster up to density"], lines))
