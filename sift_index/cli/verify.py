"""`sift-index verify`: that every byte of an index is the one that was written."""

import click
from rich.console import Console

from sift_index.cli.frame import DAMAGED, emit, framed
from sift_index.cli.location import index_location
from sift_index.errors import IndexNotFoundError
from sift_index.formats.location import Location
from sift_index.formats.manifest import versions
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import VerifyReport, verify_index


@click.command()
@click.argument("index", type=index_location)
@click.option("--version", "number", type=int, help="Only this version.  [default: all]")
@click.option("--quick", is_flag=True, help="Sizes and structure only, no content hashes.")
@framed
def verify(index: Location, number: int | None, quick: bool, output: str) -> int:
    """Check all versions, packs, key tables and receipts of INDEX.

    An index in an object store is downloaded for it, whatever the cache holds.

    \b
    Example:
      sift-index verify corpus.sift
      sift-index verify corpus.sift --version 3 --quick
      sift-index verify s3://bucket/corpus.sift
    """
    paths = IndexPaths(index)
    if not versions(paths):
        raise IndexNotFoundError(
            f"expected an index (manifest-*.json) in {index}, found {paths.absence()}; give the "
            "place that sift-index build wrote to"
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
        console.print(f"{type(problem).__name__}: {problem}", markup=False, soft_wrap=True)
    for name in report.garbage:
        console.print(f"not used by any version: {name}", markup=False, soft_wrap=True)
    count = len(report.problems)
    verdict = "ok" if report.ok else f"{count} problem{'s' if count > 1 else ''}"
    console.print(
        f"{verdict}: {report.files:,} files, {report.bytes:,} bytes, {report.rows:,} rows checked"
    )
