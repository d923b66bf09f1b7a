"""`sift-index bench`: how fast this machine runs what the project is about."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sift_index.cli.benchbuild import bench_build_command
from sift_index.cli.benchcompose import compose
from sift_index.cli.benchlookup import lookup
from sift_index.cli.benchoptions import (
    budget_option,
    check_resume,
    effort_options,
    names,
    numbers,
    results_option,
)
from sift_index.cli.benchplan import plan
from sift_index.cli.benchttft import ttft
from sift_index.cli.frame import FAILED, emit, framed, table
from sift_index.errors import UsageError

if TYPE_CHECKING:
    import torch

    from sift_index.bench.contenders import Contender
    from sift_index.bench.run import RunOptions
    from sift_index.bench.session import KernelReport

WIDTH = 120


@click.group()
def bench() -> None:
    """Measure speed beside peers, in one run on the same data.

    \b
    Example:
      sift-index bench kernels
      sift-index bench build
      sift-index bench lookup
      sift-index bench plan
      sift-index bench ttft
    """


bench.add_command(bench_build_command)
bench.add_command(compose)
bench.add_command(lookup)
bench.add_command(plan)
bench.add_command(ttft)


@bench.command()
@click.option("--tokens", default="4096,16384,65536,131072", show_default=True, metavar="LIST")
@click.option(
    "--densities",
    default="1.0,0.5,0.2,0.1,0.05",
    show_default=True,
    metavar="LIST",
    help="CA densities: the share of pages that later documents attend to.",
)
@click.option(
    "--documents",
    default="1024",
    show_default=True,
    metavar="LIST",
    help="Tokens of a document; longer than 1,024 also with random LA bits.",
)
@click.option("--head-dims", default="128,64", show_default=True, metavar="LIST")
@click.option("--la-density", type=float, help="Of LA bits.  [default: the CA density of the case]")
@click.option("--heads", type=int, default=32, show_default=True, help="Query heads.")
@click.option("--kv-heads", type=int, default=8, show_default=True)
@click.option("--page-size", type=int, default=32, show_default=True)
@click.option(
    "--aligned/--no-aligned",
    default=True,
    help="Also time cases of whole tiles, on which FlexAttention can compete (it is compiled).",
)
@click.option("--peers/--no-peers", default=True, help="Time cuDNN and FlexAttention beside FA3.")
@click.option(
    "--paths",
    metavar="LIST",
    help="Our implementations, as SIFT_ATTENTION names them.  [default: all but `reference`, which "
    "is slow]",
)
@effort_options(warmup=2, repeats=5)
@click.option(
    "--check/--no-check",
    default=True,
    help="Compare the shortest prompts' outputs with a float32 reference.",
)
@click.option("--metadata/--no-metadata", default=True, help="Time a plan's upload and decode.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of data and masks."
)
@budget_option
@click.option(
    "--resume", is_flag=True, help="Leave out cases of which --results has one of --paths."
)
@results_option("kernels", by_case=True)
@framed
def kernels(
    tokens: str,
    densities: str,
    documents: str,
    head_dims: str,
    la_density: float | None,
    heads: int,
    kv_heads: int,
    page_size: int,
    aligned: bool,
    peers: bool,
    paths: str | None,
    warmup: int,
    repeats: int,
    check: bool,
    metadata: bool,
    seed: int,
    budget: float | None,
    resume: bool,
    results: Path | None,
    output: str,
) -> int:
    """Time sparse attention of one layer against dense FA3, cuDNN and FlexAttention.

    A case is a prompt of random bfloat16 data and masks: 64 tokens of glue, documents back to back,
    64 tokens of glue. Sparse attention is compaction and attention; rates count issued 128 x 128
    tiles. Contenders take turns and no cache is flushed; times are medians on the GPU, launches
    hidden. LIST is comma-separated.

    \b
    Example:
      sift-index bench kernels
      sift-index bench kernels --tokens 65536 --densities 1.0,0.1 --paths triton --no-aligned
      sift-index bench kernels --documents 128,512,8192 --tokens 65536 --output json
      sift-index bench kernels --budget 150 --results kernels.json --resume
    """
    from sift_index.bench.cases import CaseOptions
    from sift_index.bench.measure import Effort
    from sift_index.bench.run import RunOptions

    options = CaseOptions(
        tokens=numbers("--tokens", tokens, int),
        densities=numbers("--densities", densities, float),
        documents=numbers("--documents", documents, int),
        head_dims=numbers("--head-dims", head_dims, int),
        la_density=la_density,
        aligned=aligned,
        heads=heads,
        kv_heads=kv_heads,
        page_size=page_size,
        seed=seed,
    )
    run = RunOptions(options, Effort(warmup, repeats), check, budget)
    report = _run(run, None if paths is None else names(paths), peers, metadata, resume, results)
    emit(report.to_json(), lambda console: _show(console, report), output)
    return FAILED if report.wrong else 0


def _run(
    options: "RunOptions",
    paths: list[str] | None,
    peers: bool,
    metadata: bool,
    resume: bool,
    results: Path | None,
) -> "KernelReport":
    """Check everything that can be wrong, then measure."""
    from sift_index.bench.clock import cuda_clock
    from sift_index.bench.paths import chosen_paths
    from sift_index.bench.report import METADATA
    from sift_index.bench.session import bench_kernels, missing_cases
    from sift_index.evaluation.results import read_results

    check_resume(resume, results)
    cases = options.cases.cases()
    contenders = [*_peers(peers), *chosen_paths(paths)]
    known = read_results(results) if results else {}
    if resume:
        cases = missing_cases(cases, contenders, known)
        metadata = metadata and (METADATA, "metadata_ms") not in known
    device = _cuda_device()
    say = partial(click.echo, err=True)
    clock = cuda_clock(device)
    return bench_kernels(options, cases, contenders, device, clock, say, results, metadata)


def _peers(wanted: bool) -> "list[Contender]":
    """Return the peers; dense FA3 alone where they are not wanted."""
    from sift_index.bench.contenders import BASELINE
    from sift_index.bench.peers import PEERS

    return [peer for peer in PEERS if wanted or peer.name == BASELINE]


def _cuda_device() -> "torch.device":
    import torch

    if not torch.cuda.is_available():
        raise UsageError(
            "expected a CUDA device to time kernels on, found none; run this on a machine with a "
            "GPU and a CUDA build of torch"
        )
    return torch.device("cuda", torch.cuda.current_device())


def _show(console: Console, report: "KernelReport") -> None:
    from sift_index.bench.report import COLUMNS, METADATA, table_rows

    if report.results:
        title = "one layer of sparse attention, medians; ratios to dense FA3 of the same case"
        # Names of cases are long, and a log has no width.
        console.width = max(console.width, WIDTH)
        console.print(table(title, COLUMNS, table_rows(report.results)))
    if report.metadata is not None:
        times = report.metadata
        console.print(
            f"{METADATA}: upload and decode {times.wall_ms:.3f} ms, GPU {times.gpu_ms:.3f} ms"
        )
