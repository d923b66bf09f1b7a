"""`sift-index export` and `sift-index import`: an index as Parquet, and back."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from sift_index.cli.frame import emit, framed
from sift_index.cli.location import index_location, local_path
from sift_index.formats.export import export_index
from sift_index.formats.importing import ImportReport, import_index
from sift_index.formats.location import Location
from sift_index.formats.store import IndexPaths


@click.command()
@click.argument("index", type=index_location)
@click.argument("out", type=local_path)
@click.option("--version", "number", type=int, help="An older version.  [default: the newest]")
@framed
def export(index: Location, out: Path, number: int | None, output: str) -> None:
    """Write one version of INDEX as Parquet, losing nothing.

    OUT is a name that ends in .parquet (one file), or a folder (rows.parquet, and the index's other
    files beside it: take it beyond some thousand packs). It must not exist.

    \b
    Example:
      sift-index export corpus.sift corpus.parquet
      sift-index export s3://bucket/corpus.sift corpus.parquet
      python -c "from datasets import load_dataset as load; \\
        print(load('parquet', data_files='corpus.parquet'))"
      duckdb -c "SELECT document_ids, tokens FROM 'corpus.parquet' WHERE current"
    """
    report = export_index(IndexPaths(index), out, number)
    values = _values(report)

    def text(console: Console) -> None:
        console.print(
            f"{out}: version {report.version}, {report.rows:,} rows of {report.packs:,} packs, "
            f"{report.receipts:,} receipts, {report.failed:,} failures, {report.bytes:,} bytes",
            markup=False,
        )
        if report.left_out:
            console.print(f"left out: {report.left_out:,} receipts that no version names yet")

    emit(values, text, output)
    _note_replaced_folder()


@click.command("import")
@click.argument("exported", type=local_path)
@click.argument("index", type=local_path)
@framed
def import_(exported: Path, index: Path, output: str) -> None:
    """Make the folder INDEX from EXPORTED, a file or a folder that `sift-index export` wrote.

    For an object store, import into a folder and copy that, the manifest last.

    \b
    Example:
      sift-index import corpus.parquet corpus.sift
      sift-index verify corpus.sift
    """
    report = import_index(exported, index)
    emit(_values(report), lambda console: _show_import(console, report), output)
    _note_replaced_folder()


def _note_replaced_folder() -> None:
    """Say what a shell must do whose empty folder was replaced by the result."""
    try:
        os.getcwd()
    except FileNotFoundError:
        click.echo('note: the folder you are in was replaced; enter it: cd "$PWD"', err=True)


def _show_import(console: Console, report: ImportReport) -> None:
    console.print(
        f"{report.path}: version {report.version}, {report.documents:,} documents, "
        f"{report.keys:,} keys, {report.packs:,} packs",
        markup=False,
    )
    same = "the same bytes as exported" if report.identical else "verified; other Arrow layout"
    console.print(f"packs and key table: {same}")


def _values(report: Any) -> dict[str, Any]:
    return {**asdict(report), "path": str(report.path)}
