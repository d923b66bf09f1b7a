"""`sift-index verify`: that every byte of an index is the one that was written."""

from pathlib import Path

import click
from rich.console import Console

from sift_index.cli.frame import DAMAGED, emit, framed
from sift_index.errors import IndexNotFoundError
from sift_index.formats.manifest import versions
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import VerifyReport, verify_index


@click.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--version", "number", type=int, help="Only this version.  [default: all]")
@click.option("--quick", is_flag=True, help="Sizes and structure only, no content hashes.")
@framed
def verify(index: Path, number: int | None, quick: bool, output: str) -> int:
    """Check all versions, packs, key tables and receipts of INDEX.

    \b
    Example:
      sift-index verify corpus.sift
      sift-index verify corpus.sift --version 3 --quick
    """
    paths = IndexPaths(index)
    if not index.is_dir() or not versions(paths):
        raise IndexNotFoundError(
            f"expected an index (manifest-*.json) in {index}, found none; give the folder that "
            "sift-index build wrote"
        )
    report = verify_index(paths, full=not quick, version=number)
    values = {
        "ok": report.ok,
        "files": report.files,
        "bytes": report.bytes,
        "rows": report.rows,
        "problems": [f"{type(p).__name__}: {p}" for p in report.problems],
        "garbage": list(report.garbage),
    }
    emit(values, lambda console: _print(console, report), output)
    return 0 if report.ok else DAMAGED


def _print(console: Console, report: VerifyReport) -> None:
    for problem in report.problems:
        console.print(f"{type(problem).__name__}: {problem}", markup=False)
    for name in report.garbage:
        console.print(f"not used by any version: {name}", markup=False)
    verdict = "ok" if report.ok else f"{len(report.problems)} problems"
    console.print(
        f"{verdict}: {report.files:,} files, {report.bytes:,} bytes, {report.rows:,} rows checked"
    )
