"""Where an index lies: a folder, or a prefix of a bucket in an object store.

Both are paths with the same few operations, so that nothing above `store` asks which one it has.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from sift_index.formats.problems import misused

SCHEMES = ("s3", "gs")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)(.*)\Z", re.DOTALL)
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[^/\\?#\x00-\x1f]+)*\Z")
# Secret keys may hold any character, so a colon reaches up to the last @.
_USER = re.compile(r"(:/{1,2})(?:[^/?#\s]*:\S*|[^/?#\s]*)@")
_SHOWN = 80
_EXAMPLES = "a folder, s3://bucket/prefix or gs://bucket/prefix"


@dataclass(frozen=True, order=True)
class RemotePath:
    """An object, or a prefix of objects: `key` is bucket and name, as in s3://<key>."""

    scheme: str
    key: str

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.scheme, f"{self.key}/{name}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"

    @property
    def bucket(self) -> str:
        """The first part of the key."""
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its last suffix."""
        return PurePosixPath(self.key).stem

    @property
    def parent(self) -> RemotePath:
        """The prefix one level up."""
        return RemotePath(self.scheme, self.key.rpartition("/")[0])

    def with_name(self, name: str) -> RemotePath:
        """Return the path of another object beside this one."""
        return self.parent / name

    def relative_to(self, root: RemotePath) -> PurePosixPath:
        """Return the name below `root`; ValueError for a path that lies elsewhere."""
        return PurePosixPath(self.key).relative_to(root.key)


Location = Path | RemotePath


def anchored(location: Location) -> Location:
    """Return a location that means the same in a process with another current folder."""
    return location if isinstance(location, RemotePath) else Path(os.path.abspath(location))


def parse_location(given: str | os.PathLike[str] | RemotePath) -> Location:
    """Return the path that a user gave: a folder, file://…, s3://bucket/prefix or gs://….

    Raises UsageError for an empty text, an unknown scheme, a URL that names no bucket, or a path
    that is longer than this system allows.
    """
    if isinstance(given, RemotePath):
        return given
    text = os.fsdecode(given)
    if not text:
        raise misused("path of an index", _EXAMPLES, "an empty text", "use . for this folder")
    if "\0" in text:
        raise misused(text, _EXAMPLES, "a zero byte in it", "correct the path")
    url = _URL.match(text)
    if url is None or (not url[2] and url[1] not in SCHEMES):
        return _local(text)
    return _parse_url(text, url[1].lower(), url[2], url[3])


def masked(text: str) -> str:
    """Return a message, or a URL that was given, without user names and passwords of URLs."""
    return _USER.sub(r"\1***@", text)


def _local(text: str) -> Path:
    try:
        os.lstat(text)
    except OSError as error:
        # Other trouble is for those who use the path, which may be to be made.
        if error.errno == errno.ENAMETOOLONG:
            expected, found = "a path that this system can have", error.strerror
            advice = "give a shorter one"
            raise misused(f"{text[:_SHOWN]}…", expected, found, advice) from error
    return Path(text)


def _parse_url(text: str, scheme: str, slash: str, rest: str) -> Location:
    if scheme == "file" and slash and rest.startswith("/"):
        return _local(unquote(rest))
    text = masked(text).partition("?")[0]  # a query may hold a signature
    if scheme not in SCHEMES:
        known = ", ".join((*SCHEMES, "file"))
        raise misused(text, f"a folder or a scheme of {known}", scheme, "mount it as a folder")
    if not slash:
        found = "one slash, as pathlib.Path leaves it"
        raise misused(text, f"{scheme}://bucket/prefix", found, "give the URL as text")
    key = rest.rstrip("/")
    if not _KEY.match(key) or {".", ".."} & set(key.split("/")):
        advice = (
            "leave out keys and queries; the environment sets credentials (AWS_ACCESS_KEY_ID, "
            "AWS_PROFILE) and an endpoint (AWS_ENDPOINT_URL)"
        )
        raise misused(text, f"{scheme}://bucket/prefix", "another form", advice)
    return RemotePath(scheme, key)
