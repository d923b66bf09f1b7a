"""Arguments that are places: of an index, a folder or s3://bucket/prefix; or only a local path."""

from pathlib import Path
from typing import Any

import click

from sift_index.errors import UsageError
from sift_index.formats.location import Location, RemotePath, parse_location
from sift_index.formats.presence import is_folder, is_there


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


def require_index_place(target: Location) -> None:
    """Raise UsageError where an index cannot be written: a file, or a path nobody may look at."""
    if isinstance(target, Path) and is_there(target) and not is_folder(target):
        raise UsageError(f"expected a folder for the index, found the file {target}; give another")


class GivenPath(click.Path):
    """A local path of which an empty text is none: `Path("")` would be the current folder."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | Path:
        """Return the path; an empty text is refused."""
        if value == "":
            advice = "is a variable of the shell unset? use . for this folder"
            self.fail(f"expected a path, found an empty text; {advice}", param, ctx)
        return super().convert(value, param, ctx)  # type: ignore[return-value]


GIVEN_PATH = GivenPath(path_type=Path)
