"""What options of several benchmarks have in common: lists, effort, and the results file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sift_index.cli.location import GIVEN_PATH, GivenPath
from sift_index.errors import UsageError

Value = TypeVar("Value")
Command = Callable[..., Any]

seed_option = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
budget_option = click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Begin no case behind this time; the one under way is finished.",
)


def effort_options(warmup: int, repeats: int) -> Callable[[Command], Command]:
    """Return a decorator that adds --warmup and --repeats with these defaults."""

    def decorated(command: Command) -> Command:
        number = click.IntRange(min=1)
        command = click.option("--repeats", type=number, default=repeats, show_default=True)(
            command
        )
        return click.option("--warmup", type=number, default=warmup, show_default=True)(command)

    return decorated


def folder_option(help: str) -> Callable[[Command], Command]:
    """Return a decorator that adds --folder, a place that can be written to."""
    kind = GivenPath(path_type=Path, exists=True, file_okay=False, writable=True)
    return click.option("--folder", type=kind, help=help)


def results_option(name: str, by_case: bool = False) -> Callable[[Command], Command]:
    """Return a decorator that adds --results, by example benchmarks/results/NAME.json."""
    what = "each case's numbers into a results file as it is done"
    merged = what if by_case else "numbers into a results file"
    text = f"Merge {merged}, as benchmarks/results/{name}.json."
    return click.option("--results", type=GIVEN_PATH, help=text)


def names(text: str) -> list[str]:
    """Return the names in a list."""
    return [name for part in text.split(",") if (name := part.strip())]


def numbers(option: str, text: str, kind: Callable[[str], Value]) -> tuple[Value, ...]:
    """Return the numbers in a list. Raises UsageError where `kind` raises ValueError."""
    try:
        return tuple(kind(name) for name in names(text))
    except ValueError as problem:
        raise UsageError(
            f"{option}: expected numbers with commas between them, found {text!r}; see --help"
        ) from problem


def check_resume(resume: bool, results: Path | None) -> None:
    """Raise UsageError where a run should go on and nobody says with which file."""
    if resume and results is None:
        raise UsageError(
            "expected --results with --resume, found none; name the file to go on with"
        )
