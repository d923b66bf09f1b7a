"""`sift-index tune`: the sparsest masks that stay close to dense, for a model and its data."""

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sift_index.cli.frame import emit, framed, table
from sift_index.cli.location import GIVEN_PATH
from sift_index.cli.tunedata import TuneData

if TYPE_CHECKING:
    from sift_index.tuning.measure import Progress
    from sift_index.tuning.run import TuneResult
    from sift_index.tuning.search import Target

MAX_KL, MIN_TOP1 = 0.015, 0.95
LOG_SECONDS = 30


@click.command()
@click.argument("corpus", type=GIVEN_PATH, required=False)
@click.option("--model", required=True, help="Preset, local folder or hub id.")
@click.option(
    "--questions",
    type=GIVEN_PATH,
    multiple=True,
    help="Questions with documents, as `eval` takes them, instead of CORPUS.",
)
@click.option("--corpus", "folder", type=GIVEN_PATH, help="Folder that document names mean.")
@click.option("--text-field", default="text", show_default=True, help="Field holding the text.")
@click.option(
    "--max-kl", type=float, help=f"Highest mean KL in nats.  [default: {MAX_KL}, see above]"
)
@click.option(
    "--min-top1", type=float, help=f"Lowest mean top-1.  [default: {MIN_TOP1}, see above]"
)
@click.option(
    "--prompts",
    type=click.IntRange(max=10_000),
    default=12,
    show_default=True,
    help="Prompts to tune on.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest prompt.  [default: 6000]")
@click.option("--policy", default="probe", show_default=True, help="What to start from.")
@click.option(
    "--out",
    type=GIVEN_PATH,
    default=Path("policy.yaml"),
    show_default=True,
    help="Policy file to write.",
)
@click.option("--force", is_flag=True, help="Replace the policy file.")
@click.option(
    "--head-weights/--no-head-weights",
    default=True,
    show_default=True,
    help="Weigh heads by how much answers depend on them: a backward pass of 4 prompts.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sample of prompts.")
@click.option("--dtype", default="auto", show_default=True)
@click.option("--device", default="auto", show_default=True)
@framed
def tune(
    corpus: Path | None,
    model: str,
    questions: tuple[Path, ...],
    folder: Path | None,
    text_field: str,
    max_kl: float | None,
    min_top1: float | None,
    prompts: int,
    max_tokens: int | None,
    policy: str,
    out: Path,
    force: bool,
    head_weights: bool,
    seed: int,
    dtype: str,
    device: str,
    output: str,
) -> None:
    """Find the sparsest masks that keep answers close to dense attention, and write a policy file.

    Prompts are made from documents of CORPUS, or taken from --questions. Give --max-kl, --min-top1
    or both; with neither, both have their defaults. When no masks meet them, nothing is written.

    \b
    Example:
      sift-index tune corpus/ --model smollm2-135m --out policy.yaml
      sift-index tune --questions qa.jsonl --model llama-3.1-8b --max-kl 0.01 --prompts 24
      sift-index build corpus/ --model smollm2-135m --policy policy.yaml
    """
    from sift_index.evaluation.methods.registry import Setting
    from sift_index.models.loading import load_model
    from sift_index.models.quiet import quiet_transformers
    from sift_index.selection.policy import load_policy
    from sift_index.tuning.policyfile import require_writable, write_policy
    from sift_index.tuning.report import not_met, policy_notes, tune_values
    from sift_index.tuning.run import tunable
    from sift_index.tuning.run import tune as run

    quiet_transformers()
    # Hours of measuring must not end in a path, a target or a policy that cannot be used.
    require_writable(out, force)
    target = _target(max_kl, min_top1)
    base = tunable(load_policy(policy))
    source = TuneData(corpus, questions, folder, text_field)
    source.require_probes(base)
    setting = Setting(load_model(model, dtype, device), None, policy)
    asked = source.sample(setting, prompts, max_tokens, seed)
    written = [setting.writer.prompt(q.documents, q.question) for q in asked]
    with source.with_probes(base, setting) as measured:
        found = run(setting, measured, written, target, source.name, head_weights, _progress())
    if output == "text":
        _show(Console(highlight=False), found)
    if found.best is None:
        raise not_met(found, target)
    tuned = replace(found.policy, probe_source=base.probe_source)
    write_policy(out, tuned, [found.quality], policy_notes(found, target, policy))
    values = {"policy_file": str(out), **tune_values(found, target)}
    emit(values, lambda console: _say_next(console, found, corpus, model, out), output)


def _target(max_kl: float | None, min_top1: float | None) -> "Target":
    from sift_index.tuning.search import Target

    if max_kl is None and min_top1 is None:
        return Target(MAX_KL, MIN_TOP1)
    return Target(max_kl, min_top1)


def _show(console: Console, found: "TuneResult") -> None:
    from sift_index.tuning.report import cross_table, local_table

    if found.local:
        console.print(table(*local_table(found)), "")
    console.print(table(*cross_table(found)))


def _say_next(
    console: Console, found: "TuneResult", corpus: Path | None, model: str, out: Path
) -> None:
    from sift_index.selection.quality import quality_line

    where = "CORPUS" if corpus is None else shlex.quote(str(corpus))
    options = f"--model {shlex.quote(model)} --policy {shlex.quote(str(out))}"
    lines = [f"{out}: {quality_line(found.quality)}", f"Next: sift-index build {where} {options}"]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _progress() -> "Progress":
    """Return a function that follows a stage on a terminal, and logs one line a while elsewhere."""
    terminal, last = sys.stderr.isatty(), -float("inf")

    def show(stage: str, done: int, total: int) -> None:
        nonlocal last
        if terminal:
            end = "\r" if done < total else "\n"
            click.echo(f"{stage} {done}/{total}{end}", nl=False, err=True)
        elif done == total or time.monotonic() - last > LOG_SECONDS:
            last = time.monotonic()
            click.echo(f"{stage} {done}/{total}", err=True)

    return show
