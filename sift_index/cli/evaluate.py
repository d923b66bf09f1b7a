"""`sift-index eval`: how close sparse prefill stays to dense, on questions with documents."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sift_index.cli.frame import emit, framed, table
from sift_index.cli.location import GIVEN_PATH, index_location
from sift_index.errors import UsageError
from sift_index.formats.location import Location

if TYPE_CHECKING:
    from sift_index.evaluation.invariance import InvarianceReport
    from sift_index.evaluation.ledger import Ledger
    from sift_index.evaluation.methods.registry import Setting
    from sift_index.evaluation.questions import Question
    from sift_index.evaluation.run import EvalOptions, EvalReport

METHODS = "dense,sift,paper,no-cross"


@click.command("eval")
@click.argument("index", type=index_location, required=False)
@click.option("--version", "number", type=int, help="An older version of INDEX.  [default: newest]")
@click.option("--model", help="Preset, folder or hub id.  [default: the model the index names]")
@click.option(
    "--questions",
    type=GIVEN_PATH,
    multiple=True,
    help="JSON Lines of questions with documents, or RULER needles; may be given several times.  "
    "[default: the packaged examples]",
)
@click.option("--corpus", type=GIVEN_PATH, help="Folder that document names mean.")
@click.option("--methods", default=METHODS, show_default=True, help="Comma-separated; see below.")
@click.option("--policy", default="probe", show_default=True, help="What `sift` means, no INDEX.")
@click.option(
    "--serve-prefix",
    metavar="TEXT",
    help="Write prompts with TEXT in front of the first document; masks stay those made behind "
    "the prefix of INDEX, or of the model.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Only N questions of each file.")
@click.option("--min-tokens", type=click.IntRange(min=1), help="Leave out shorter prompts.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Leave out longer prompts.")
@click.option(
    "--report",
    type=click.Choice(["quality", "invariance"]),
    default="quality",
    show_default=True,
    help="invariance: by layer, whether a document attends to the same places alone and behind "
    "others (claim 1), and whether it alone tells what later documents attend to in it (claim 2).",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.001,
    show_default=True,
    help="invariance: a document's own score from this on is high.",
)
@click.option("--generate/--no-generate", default=True, help="Decode answers: F1, exact match.")
@click.option("--recall/--no-recall", default=True, help="Measure attention-mass recall.")
@click.option(
    "--scores",
    type=GIVEN_PATH,
    help="Append every question's scores to this file, and skip questions it holds: a run that "
    "was stopped goes on.",
)
@click.option("--scored-only", is_flag=True, help="Report what --scores holds, run nothing.")
@click.option("--shard", help="I/N: only every Nth question, from the Ith; with --scores each.")
@click.option("--plot", type=GIVEN_PATH, help="Write a PNG.")
@click.option("--strict", is_flag=True, help="Refuse what would be a warning.")
@click.option("--dtype", default="auto", show_default=True)
@click.option("--device", default="auto", show_default=True)
@click.option(
    "--results",
    type=GIVEN_PATH,
    help="Merge the numbers into a results file, as those in benchmarks/results.",
)
@framed
def evaluate(
    index: Location | None,
    number: int | None,
    model: str | None,
    questions: tuple[Path, ...],
    corpus: Path | None,
    methods: str,
    policy: str,
    serve_prefix: str | None,
    limit: int | None,
    min_tokens: int | None,
    max_tokens: int | None,
    report: str,
    alpha: float,
    generate: bool,
    recall: bool,
    scores: Path | None,
    scored_only: bool,
    shard: str | None,
    plot: Path | None,
    strict: bool,
    dtype: str,
    device: str,
    results: Path | None,
    output: str,
) -> None:
    """Compare methods with dense attention on the same prompts.

    Without INDEX, documents are extracted when they are first seen (give --model). KL and top-1 are
    over the dense model's greedy answer, NLL over the given answer, F1 over the generated one; each
    mean comes with its 95 % bootstrap interval over prompts.

    Methods: dense, sift[:LEVEL], policy:NAME_OR_FILE[@LEVEL], paper, paper-fixed, no-cross,
    kv-reuse, cacheblend[:PERCENT], epic[:TOKENS], oracle[:NAME_OR_FILE]. A LEVEL is a number, or
    one of best, balanced and fast.

    \b
    Example:
      sift-index eval corpus.sift --methods dense,sift
      sift-index eval corpus.sift --questions qa.jsonl --limit 40 --output json
      sift-index eval --model smollm2-135m --questions qa.jsonl --methods dense,sift,oracle,epic
      sift-index eval --model smollm2-135m --report invariance --results invariance.json
      sift-index eval corpus.sift --questions qa.jsonl --scores 1.jsonl --shard 1/4
      sift-index eval corpus.sift --questions qa.jsonl --serve-prefix "You are a careful editor."
    """
    from sift_index.evaluation.plots import require_plots
    from sift_index.evaluation.results import read_results
    from sift_index.evaluation.run import EvalOptions
    from sift_index.models.quiet import quiet_transformers
    from sift_index.prompts import require_text

    quiet_transformers()
    names = [method.strip() for method in methods.split(",") if method.strip()]
    # An hour of evaluation must not end in a path that cannot be used.
    if results:
        read_results(results)
    if plot:
        require_plots(plot)
    if scored_only and not scores:
        raise UsageError(
            "expected --scores with --scored-only, found none; name the file to report"
        )
    require_text("--serve-prefix", serve_prefix or "")
    if serve_prefix is not None and not serve_prefix.strip():
        raise UsageError(
            "expected a --serve-prefix with text, found none: the first document would hold the "
            "prompt's attention sink and stay dense"
        )
    if not 0 < alpha < 1:
        raise UsageError(f"expected --alpha as a probability between 0 and 1, found {alpha}")
    if plot and report == "quality" and set(names) <= {"dense"}:
        raise UsageError("expected a sparse method to plot, found dense alone; name another")
    if serve_prefix is not None and report == "invariance":
        raise UsageError(
            "expected --serve-prefix with --report quality, found invariance, which compares "
            "documents and prompts behind one prefix; leave one of them out"
        )
    if scores and report == "invariance":
        raise UsageError(
            "expected --scores with --report quality, found invariance, which keeps no scores; "
            "take --results or --output json"
        )
    setting = _setting(index, number, model, policy, strict, dtype, device)
    setting = replace(setting, serve_prefix=serve_prefix)
    asked = _chosen(setting, questions, corpus, limit, (min_tokens, max_tokens))
    asked = _shard(asked, shard)
    if report == "invariance":
        _invariance(setting, asked, alpha, plot, results, output)
        return
    measure = EvalOptions(generate, recall)
    ledger = _ledger(scores, setting, names, measure, append=not scored_only)
    if scored_only:
        asked = _scored(setting, asked, ledger, names)
    _quality(setting, asked, names, measure, ledger, plot, results, output)


def _setting(
    index: Location | None,
    number: int | None,
    model: str | None,
    policy: str,
    strict: bool,
    dtype: str,
    device: str,
) -> "Setting":
    from sift_index.evaluation.methods.registry import Setting
    from sift_index.models.loading import load_model
    from sift_index.runtime.index import SiftIndex

    if index is None:
        if model is None:
            raise UsageError("expected an INDEX, or --model to evaluate without one; found neither")
        if number is not None:
            raise UsageError(f"expected an INDEX with --version {number}, found none; name it")
        return Setting(load_model(model, dtype, device), None, policy)
    opened = SiftIndex.open(index, strict=strict, version=number)
    loaded = load_model(model or _recorded_model(opened.fingerprint.advisory), dtype, device)
    opened.check_model(loaded.model, loaded.tokenizer)
    return Setting(loaded, opened, policy)


def _recorded_model(advisory: Any) -> str:
    name = advisory.get("model")
    if not name:
        raise UsageError("the index names no model that can be loaded; give --model")
    return str(name)


def _chosen(
    setting: "Setting",
    files: tuple[Path, ...],
    corpus: Path | None,
    limit: int | None,
    bounds: tuple[int | None, int | None],
) -> list["Question"]:
    """Return the questions to ask: prompts of the wanted length, the first `limit` of each file."""
    from sift_index.evaluation.questions import (
        example_questions,
        load_question_files,
        select_questions,
    )
    from sift_index.evaluation.run import prompt_tokens

    asked = load_question_files(files, corpus) if files else example_questions()
    least, most = bounds
    if least or most:
        top = most or setting.loaded.geometry.context
        asked, left_out = select_questions(
            asked, lambda question: prompt_tokens(setting.writer, question), least or 1, top
        )
        if left_out:
            click.echo(f"{left_out} questions left out: not {least or 1} to {top} tokens", err=True)
        if not asked:
            raise UsageError("no question has a prompt of the wanted length; widen the bounds")
    if limit is None:
        return asked
    datasets = dict.fromkeys(question.dataset for question in asked)
    return [q for name in datasets for q in [q for q in asked if q.dataset == name][:limit]]


def _shard(asked: list["Question"], shard: str | None) -> list["Question"]:
    if shard is None:
        return asked
    number, _, count = shard.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UsageError(f"expected --shard I/N with I of 1 to N, found {shard!r}")
    if int(number) > len(asked):
        raise UsageError(f"expected a question in shard {shard}, found {len(asked)} in all")
    return asked[int(number) - 1 :: int(count)]


def _ledger(
    scores: Path | None,
    setting: "Setting",
    names: list[str],
    measure: "EvalOptions",
    append: bool,
) -> "Ledger":
    from sift_index.evaluation.ledger import Ledger
    from sift_index.evaluation.methods.registry import policy_digests

    policies = policy_digests(names, setting)
    if scores is None:
        return Ledger(policies=policies)
    return Ledger.open(scores, _described(setting, measure), policies, append)


def _described(setting: "Setting", measure: "EvalOptions") -> str:
    """Say what all scores depend on beside questions and policies: like is joined with like."""
    from sift_index.models.digests import weights_digest

    loaded = setting.loaded
    weights = weights_digest(loaded.model)[:8]
    parts = [f"{loaded.name} {weights}", str(loaded.model.dtype).removeprefix("torch.")]
    if setting.index is not None:
        version = setting.index.reader.manifest.version
        parts.append(f"index {setting.index.fingerprint.build_digest[:8]} version {version}")
    if setting.serve_prefix is not None:
        parts.append(f"serve prefix {setting.serve_prefix!r}")
    return ", ".join([*parts, *(name for name, on in vars(measure).items() if on)])


def _scored(
    setting: "Setting", asked: list["Question"], ledger: "Ledger", names: list[str]
) -> list["Question"]:
    from sift_index.evaluation.methods.registry import label
    from sift_index.evaluation.run import prompt_digest

    methods = [label(name) for name in names]
    found = [
        question
        for question in asked
        if ledger.get(
            question.dataset, question.id, prompt_digest(setting.writer, question), methods
        )
    ]
    click.echo(f"{len(asked) - len(found)} questions left out: not scored", err=True)
    if not found:
        raise UsageError("expected scores of these questions and methods in --scores, found none")
    return found


def _quality(
    setting: "Setting",
    asked: list["Question"],
    names: list[str],
    measure: "EvalOptions",
    ledger: "Ledger",
    plot: Path | None,
    results: Path | None,
    output: str,
) -> None:
    from sift_index.evaluation.plots import plot_divergence
    from sift_index.evaluation.report import plot_points, report_rows, report_values
    from sift_index.evaluation.results import merge_results
    from sift_index.evaluation.run import evaluate as run
    from sift_index.models.loading import model_label

    found = run(setting, asked, names, measure, _progress(len(asked)), ledger)
    if results:
        variant = "" if setting.serve_prefix is None else " (other prefix)"
        model = model_label(setting.loaded.name)
        rows = report_rows(found, model, setting.loaded.device, variant)
        merge_results(results, results.stem, rows)
    _warn_of_misses(found)
    emit(report_values(found), lambda console: _show(console, found), output)
    if plot:
        plot_divergence(plot_points(found), plot, _title(found))


def _invariance(
    setting: "Setting",
    asked: list["Question"],
    alpha: float,
    plot: Path | None,
    results: Path | None,
    output: str,
) -> None:
    from sift_index.evaluation.invariance import (
        Limits,
        invariance_rows,
        invariance_values,
        measure_invariance,
        plot_invariance,
    )
    from sift_index.evaluation.results import data_label, merge_results
    from sift_index.models.loading import model_label
    from sift_index.selection.policy import PaperPolicy, load_policy

    policies = {name: load_policy(name) for name in ("paper", "paper-fixed", "probe")}
    limits = Limits(alpha, PaperPolicy().beta)
    progress = _progress(len(asked))
    found = measure_invariance(setting.loaded, setting.writer, asked, policies, progress, limits)
    if results:
        data = data_label(question.dataset for question in asked)
        model = model_label(setting.loaded.name)
        rows = invariance_rows(found, model, data, setting.loaded.device)
        merge_results(results, results.stem, rows)
    emit(invariance_values(found), lambda console: _show_claims(console, found), output)
    if plot:
        plot_invariance(found, plot)


def _show_claims(console: Any, found: "InvarianceReport") -> None:
    from sift_index.evaluation.invariance import cross_table, local_table

    local = (
        f"Claim 1, {found.la_documents} documents in {found.prompts} prompts: tiles with a score "
        f">= {found.limits.alpha:g} in the document alone and in the prompt"
    )
    cross = (
        f"\nClaim 2, {found.documents} documents in {found.prompts} prompts: what later documents "
        f"attend to (high: >= {found.limits.beta:g}) in pages chosen from the document alone"
    )
    console.print(table(local, *local_table(found)))
    console.print(table(cross, *cross_table(found)))


def _show(console: Any, found: "EvalReport") -> None:
    from sift_index.evaluation.report import parts, report_table

    for name, part in parts(found):
        title = _title(part) if name == "all" else f"\n{name}, {_title(part)}"
        console.print(table(title, *report_table(part)))


def _title(found: "EvalReport") -> str:
    title = f"{len(found.tokens)} prompts of {min(found.tokens):,} to {max(found.tokens):,} tokens"
    if found.hits or found.misses:
        title += f", {found.hits} documents found in the index, {found.misses} not"
    return title


def _warn_of_misses(found: "EvalReport") -> None:
    if found.misses:
        click.echo(
            f"warning: {found.misses} of {found.hits + found.misses} documents are not in the "
            "index as these texts and stay dense; the numbers of sift say less than they seem to",
            err=True,
        )


def _progress(total: int) -> Callable[[int], None]:
    def show(done: int) -> None:
        end = "\r" if sys.stderr.isatty() and done < total else "\n"
        click.echo(f"question {done}/{total}{end}", nl=False, err=True)

    return show
