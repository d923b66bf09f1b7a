"""Arguments that are places: of an index, a folder or s3://bucket/prefix; or only a local path."""

from pathlib import Path

import click

from sift_index.errors import UsageError
from sift_index.formats.location import Location, RemotePath, parse_location


def index_location(text: str) -> Location:
    """Return where an index lies, as a click type; an empty text or unknown scheme is refused."""
    try:
        return parse_location(text)
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


def local_path(text: str) -> Path:
    """Return a local path, as a click type; an empty text, or an object store, is refused."""
    found = index_location(text)
    if isinstance(found, RemotePath):
        raise click.BadParameter(
            f"expected a file or folder, found {found}; give a local path, then copy it there with "
            "the store's own tool, a manifest last"
        )
    return found
