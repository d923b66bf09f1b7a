"""`sift-index versions`: which versions an index has, and what each would free."""

from dataclasses import asdict

import click
from rich.console import Console

from sift_index.cli.frame import emit, framed, table
from sift_index.cli.location import index_location
from sift_index.formats.history import VersionFacts, history
from sift_index.formats.location import Location
from sift_index.formats.store import IndexPaths

COLUMNS = ["version", "created (UTC)", "by", "documents", "keys", "dead", "bytes", "own"]


@click.command()
@click.argument("index", type=index_location)
@framed
def versions(index: Location, output: str) -> None:
    """List the versions of INDEX, oldest first; the last one is current.

    `dead` rows are left out by `sift-index compact`; `own` are bytes that no other version has.
    Open an older one with `--version`, or SiftIndex.open(path, version=N).

    \b
    Example:
      sift-index versions corpus.sift
      sift-index versions s3://bucket/corpus.sift
      sift-index inspect corpus.sift --version 2
    """
    found = history(IndexPaths(index))
    values = {"current": found[-1].version, "versions": [asdict(facts) for facts in found]}
    emit(values, lambda console: _print(console, found), output)


def _print(console: Console, found: list[VersionFacts]) -> None:
    console.print(table("versions", COLUMNS, [_row(facts) for facts in found]))


def _row(facts: VersionFacts) -> list[str]:
    numbers = (facts.documents, facts.keys, facts.dead_rows, facts.bytes, facts.own_bytes)
    command = facts.writer.removeprefix("sift-index").strip() or "build"
    when = facts.created[:16].replace("T", " ")
    return [str(facts.version), when, command, *(f"{number:,}" for number in numbers)]
