"""`sift-index delete`: a version without some documents; older versions keep them."""

from typing import TextIO

import click
from rich.console import Console

from sift_index.cli.frame import emit, framed
from sift_index.cli.location import index_location
from sift_index.errors import UsageError
from sift_index.formats.deletion import Deletion, delete_documents
from sift_index.formats.location import Location
from sift_index.formats.store import IndexPaths


@click.command()
@click.argument("index", type=index_location)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--ids-from", type=click.File(encoding="utf-8-sig"), help="One id a line; - for stdin."
)
@click.option("--ignore-missing", is_flag=True, help="Pass over ids that INDEX does not have.")
@framed
def delete(
    index: Location,
    ids: tuple[str, ...],
    ids_from: TextIO | None,
    ignore_missing: bool,
    output: str,
) -> None:
    """Delete documents from INDEX by id, as a new version.

    Masks that another document shares stay. Older versions still have the documents until
    `sift-index gc` removes those versions; building a corpus that holds a document adds it again.
    With an id that INDEX does not have nothing is deleted. Ids that start with - go behind --, or
    into the file of --ids-from.

    \b
    Example:
      sift-index delete corpus.sift notes/a.md notes/b.md
      sift-index delete corpus.sift -- -draft.md
      sift-index delete corpus.sift --ids-from gone.txt --ignore-missing
      sift-index delete corpus.sift notes/a.md && sift-index compact corpus.sift &&
        sift-index gc corpus.sift --keep 1
    """
    wanted = [*ids, *_lines(ids_from)]
    if not wanted:
        raise UsageError(
            "expected ids of documents to delete, found none; give them, or --ids-from FILE"
        )
    deletion = delete_documents(IndexPaths(index), wanted, ignore_missing=ignore_missing)
    missing = len(set(wanted)) if deletion is None else deletion.missing
    values = {**_values(deletion), "missing": missing}
    emit(values, lambda console: _print(console, deletion, missing), output)


def _lines(file: TextIO | None) -> list[str]:
    if file is None:
        return []
    try:
        return [name for line in file if (name := line.rstrip("\r\n"))]
    except UnicodeDecodeError as error:
        raise UsageError(f"--ids-from: expected UTF-8 text, found {error}; convert it") from error
    except OSError as error:
        found = error.strerror or error
        raise UsageError(
            f"--ids-from: expected a file that can be read, found {found}; give another"
        ) from error


def _values(deletion: Deletion | None) -> dict[str, int | None]:
    if deletion is None:
        return {"version": None, "documents": 0, "keys": 0, "shared_keys": 0}
    return {
        "version": deletion.manifest.version,
        "documents": deletion.documents,
        "keys": deletion.keys,
        "shared_keys": deletion.shared,
    }


def _print(console: Console, deletion: Deletion | None, missing: int) -> None:
    if deletion is None:
        console.print("nothing to delete: the index has none of these documents")
    else:
        console.print(
            f"version {deletion.manifest.version}: {deletion.documents:,} documents deleted, "
            f"{deletion.keys:,} keys hidden, {deletion.shared:,} stay with other documents"
        )
    if missing:
        console.print(f"passed over: {missing:,} ids that the index does not have")
