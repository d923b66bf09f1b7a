"""`sift-index inspect`: what an index holds, without loading a model."""

from typing import Any

import click
from rich.console import Console

from sift_index.cli.frame import emit, framed
from sift_index.cli.location import index_location
from sift_index.errors import IntegrityError, UsageError
from sift_index.formats.failures import read_failures
from sift_index.formats.location import Location
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import read_receipts
from sift_index.selection.quality import quality_line


@click.command()
@click.argument("index", type=index_location)
@click.option("--version", "number", type=int, help="An older version.  [default: the newest]")
@click.option("--document", help="Show one document instead.")
@click.option(
    "--ids",
    is_flag=False,
    flag_value="",
    metavar="[PREFIX]",
    help="List document ids instead: all, or those that start with PREFIX.",
)
@framed
def inspect(
    index: Location, number: int | None, document: str | None, ids: str | None, output: str
) -> None:
    """Show what INDEX was built for, how large it is, and what failed.

    Document ids come sorted, one a line.

    \b
    Example:
      sift-index inspect corpus.sift
      sift-index inspect s3://bucket/corpus.sift
      sift-index inspect corpus.sift --document notes/a.md --output json
      sift-index inspect corpus.sift --ids notes/ | head
    """
    if ids is not None and document is not None:
        raise UsageError("expected one of --ids and --document, found both; leave one out")
    reader = IndexReader.open(index, version=number)
    if ids is not None:
        return list_ids(reader, ids, output)
    values = describe(reader) if document is None else describe_document(reader, document)
    emit(values, lambda console: show_values(console, values), output)


def list_ids(reader: IndexReader, prefix: str, output: str) -> None:
    """Print the document ids that start with `prefix`, as they are read: there may be millions."""
    found = reader.document_ids(prefix)
    if output == "json":
        return emit({"ids": [*found]}, lambda console: None, output)
    for name in found:
        click.echo(name)


def describe(reader: IndexReader) -> dict[str, Any]:
    """Return the facts of one version of an index."""
    manifest = reader.manifest
    pack_bytes = sum(pack.bytes for pack in manifest.packs)
    waiting = read_receipts(reader.paths, without=frozenset(manifest.units))
    return {
        "version": manifest.version,
        "format": manifest.format_version,
        "created": manifest.created,
        "model": manifest.fingerprint.advisory.get("model", "unknown"),
        "policy": manifest.fingerprint.build.get("policy", "unknown"),
        "layout": manifest.fingerprint.serve.get("layout", "unknown"),
        "documents": manifest.counts.documents,
        "keys": manifest.counts.keys,
        "tokens": manifest.counts.tokens,
        "packs": len(manifest.packs),
        "dead_rows": sum(pack.rows for pack in manifest.packs) - manifest.counts.keys,
        "pack_bytes": pack_bytes,
        "key_table_bytes": manifest.key_table.bytes,
        "bytes_per_1024_tokens": round(pack_bytes / max(1, manifest.counts.tokens) * 1024),
        "quality": None if manifest.quality is None else dict(manifest.quality),
        "unpublished_units": len(waiting),
        "failed": [failure.to_json() for failure in read_failures(reader.paths)],
    }


def describe_document(reader: IndexReader, document: str) -> dict[str, Any]:
    """Return keys, tokens and mask densities of one document; UsageError when it is unknown."""
    keys = reader.document_keys(document)
    if not keys:
        raise UsageError(
            f"expected a document id of this index, found {document!r}; ids are paths inside the "
            "corpus folder, or the id field"
        )
    return {"document": document, "pieces": [_piece(reader, key) for key in keys]}


def _piece(reader: IndexReader, key: bytes) -> dict[str, Any]:
    masks = reader.lookup(key)
    if masks is None:
        raise IntegrityError(
            f"expected the masks of key {key.hex()}, which a document has, found none; run "
            "sift-index verify"
        )
    return {
        "key": key.hex(),
        "tokens": masks.tokens,
        "ca_pages_on": round(float((masks.ca.unpacked() > 0).mean()), 4),
        "la_tiles_on": None
        if masks.la is None
        else round(float((masks.la.unpacked() > 0).mean()), 4),
    }


def show_values(console: Console, values: dict[str, Any]) -> None:
    """Print the values of an index for people."""
    for name, value in values.items():
        if name == "quality":
            console.print(f"quality: {quality_line(value)}", markup=False)
        elif isinstance(value, list):
            console.print(f"{name}: {len(value)}", markup=False)
            for entry in value[:20]:
                console.print(f"  {_flat(entry)}", markup=False)
            if len(value) > 20:
                console.print(f"  … and {len(value) - 20} more (--output json shows all)")
        else:
            console.print(f"{name}: {_flat(value)}", markup=False)


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_short(entry)}" for name, entry in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _short(value: Any) -> Any:
    """Return a value, or of a table of numbers only its size."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return f"{len(value)} x {len(value[0])} numbers"
    return value
