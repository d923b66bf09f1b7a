"""What every command shares: `--output`, errors as one message, documented exit codes."""

import errno
import io
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from types import MappingProxyType
from typing import Any, TextIO

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sift_index.cli.unfinished import explained
from sift_index.errors import (
    BuildInterrupted,
    CommitConflictError,
    FingerprintMismatchError,
    FormatError,
    SiftError,
    UsageError,
)

EXIT_CODES = """Exit codes: 0 done; 1 failed while it ran; 2 wrong usage: an argument, an option or
a file named by one cannot be used as given; 3 built, but some documents failed; 4 the index is
damaged, missing or needs another reader; 5 the index does not fit this model or build; 6 another
writer published first (run the same command again); 130 interrupted, 143 terminated by SIGTERM
(run the same command to resume)."""

FAILED, USAGE, PARTIAL, DAMAGED, MISMATCH, CONFLICT, INTERRUPTED = 1, 2, 3, 4, 5, 6, 130


def exit_code(error: SiftError) -> int:
    """Return the process exit code of an error."""
    kinds: tuple[tuple[type[SiftError], int], ...] = (
        (UsageError, USAGE),
        (FingerprintMismatchError, MISMATCH),
        (FormatError, DAMAGED),
        (CommitConflictError, CONFLICT),
    )
    return next((code for kind, code in kinds if isinstance(error, kind)), FAILED)


def framed(command: Callable[..., int | None]) -> Callable[..., None]:
    """Add `--output` to a command and turn its return value or error into an exit code."""

    @click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How results are printed.",
    )
    @wraps(command)
    def run(*args: Any, output: str, **kwargs: Any) -> None:
        warnings.showwarning = _show_warning
        _escape_undecodable()
        try:
            code = command(*args, output=output, **kwargs)
        except SiftError as problem:
            error = explained(problem, kwargs.get("index"))
            _show_error(error, output)
            code = exit_code(error)
        except OSError as problem:
            if problem.errno == errno.EPIPE:  # whoever read the output has seen enough
                raise
            _show_failure(type(problem).__name__, _refusal(problem), output)
            code = FAILED
        except KeyboardInterrupt as stop:
            message = str(stop) or "interrupted; run the same command to resume"
            _show_failure("Interrupted", message, output)
            code = stop.code if isinstance(stop, BuildInterrupted) else INTERRUPTED
        sys.exit(code or 0)

    return run


def emit(values: dict[str, Any], text: Callable[[Console], None], output: str) -> None:
    """Print a result as JSON, or as text by calling `text` with a console."""
    if output == "json":
        click.echo(_json(values))
    else:
        text(Console(highlight=False))


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """Return a plain table; numbers are text already, so they are right-aligned by column."""
    built = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for number, column in enumerate(columns):
        built.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        built.add_row(*map(escape, row))  # [gpu] is a name here, not markup
    return built


def _json(values: dict[str, Any]) -> str:
    """Return JSON that is UTF-8 whatever bytes a name has: others become the escape \\udc80."""
    text = json.dumps(values, indent=2, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _escape_undecodable() -> None:
    """Print what standard output cannot encode, such as bytes of names, as stderr does: escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _refusal(error: OSError) -> str:
    """Return the last word on a file or machine that refused, where no command said it better."""
    where = "" if error.filename is None else f"{error.filename}: "
    found = error.strerror or error
    return (
        f"{where}expected the system to do what this command asked, found {found}; put that right "
        "(permissions, disk space, the path) and run the same command again"
    )


def _show_error(error: SiftError, output: str) -> None:
    _show_failure(type(error).__name__, str(error), output, error.details)


def _show_failure(
    kind: str, message: str, output: str, details: Mapping[str, Any] = MappingProxyType({})
) -> None:
    if output == "json":
        values = {"error": {"type": kind, "message": message, **details}}
        with suppress(OSError):  # standard output itself may be what failed
            click.echo(_json(values))
    click.echo(f"error: {message}", err=True)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print our own warnings as one line; leave out other libraries' advice."""
    if category.__module__.startswith("sift_index"):
        click.echo(f"warning: {message}", err=True)
