"""The manifest: one small JSON file per version that says what the index is made of.

It is published last and only if its number is free, so a version exists whole or not at all, and
two writers cannot both be version N. The highest number is current; the others are time travel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from sift_index.formats.canonical import dump_checked, load_checked
from sift_index.formats.errors import (
    CommitConflictError,
    FeatureError,
    IndexNotFoundError,
    IntegrityError,
)
from sift_index.formats.fields import Fields
from sift_index.formats.fileinfo import FileInfo, PackInfo
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.keytable import KeyTable
from sift_index.formats.problems import damaged, misused
from sift_index.formats.schema import FORMAT_VERSION
from sift_index.formats.store import IndexPaths, file_names, read_file, write_if_absent

__all__ = ["Counts", "FileInfo", "Manifest", "PackInfo", "current_version", "read_manifest"]

# Nothing is optional yet: a name lands here when a reader, or a writer, must know it.
KNOWN_READER_FEATURES: frozenset[str] = frozenset()
KNOWN_WRITER_FEATURES: frozenset[str] = frozenset()
MAX_VERSION = 99_999_999
_NAME = re.compile(r"manifest-([0-9]{8})\.json\Z")


@dataclass(frozen=True)
class Counts:
    """Totals of one version: document ids, distinct keys, tokens of the distinct keys."""

    documents: int
    keys: int
    tokens: int


@dataclass(frozen=True)
class Manifest:
    """One version of the index.

    `created` is ISO 8601 in UTC, `writer` names program and version. `packs` is the list that
    the key table's pack numbers point into; `units` are the units behind them. `quality` holds
    what was measured on the model and policy of this index, or None.
    """

    version: int
    created: str
    writer: str
    fingerprint: Fingerprint
    packs: tuple[PackInfo, ...]
    key_table: FileInfo
    counts: Counts
    units: tuple[str, ...] = ()
    quality: Mapping[str, Any] | None = None
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()
    format_version: int = field(default=FORMAT_VERSION)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "version": self.version,
            "format_version": self.format_version,
            "created": self.created,
            "writer": self.writer,
            "reader_features": list(self.reader_features),
            "writer_features": list(self.writer_features),
            "fingerprint": self.fingerprint.to_json(),
            "build_digest": self.fingerprint.build_digest,
            "packs": [pack.to_json() for pack in self.packs],
            "key_table": self.key_table.to_json(),
            "counts": asdict(self.counts),
            "units": list(self.units),
            "quality": None if self.quality is None else dict(self.quality),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Manifest:
        """Read the fields back.

        Raises FeatureError for what this reader does not know, IntegrityError for bad fields.
        """
        _check_features(fields)
        counts = fields.child("counts")
        return cls(
            version=fields.number("version"),
            created=fields.text("created"),
            writer=fields.text("writer"),
            fingerprint=Fingerprint.from_json(fields.child("fingerprint")),
            packs=tuple(PackInfo.from_json(child) for child in fields.children("packs")),
            key_table=FileInfo.from_json(fields.child("key_table")),
            counts=Counts(*(counts.number(n) for n in ("documents", "keys", "tokens"))),
            units=fields.names("units"),
            quality=None if fields.values.get("quality") is None else fields.mapping("quality"),
            reader_features=fields.texts("reader_features"),
            writer_features=fields.texts("writer_features"),
            format_version=fields.number("format_version"),
        )


def publish_manifest(paths: IndexPaths, manifest: Manifest) -> None:
    """Make a version visible; raise CommitConflictError when its number is, or was, taken."""
    version = manifest.version
    if not 0 < version <= MAX_VERSION:
        raise misused("version", f"1..{MAX_VERSION}", version, "count up by one")
    path = paths.manifest_path(version)
    # A free number below the current one was published by another writer and removed by gc.
    if (current_version(paths) or 0) >= version:
        raise conflict(path, version)
    if not write_if_absent(path, dump_checked(manifest.to_json())):
        raise conflict(path, version)
    present = versions(paths)
    if version > 1 and version - 1 not in present and present[-1] > version:
        raise conflict(path, version)  # all of that happened since the look above


def conflict(path: object, version: int) -> CommitConflictError:
    """Return (not raise) the error for a version that another writer published first."""
    return CommitConflictError(
        f"{path}: expected to publish version {version}, found that another writer"
        " did; run the same command again: finished units are not computed twice"
    )


def versions(paths: IndexPaths) -> list[int]:
    """Return the version numbers present, rising."""
    matches = (_NAME.match(name) for name in file_names(paths.root, ".json"))
    return sorted(int(match[1]) for match in matches if match and int(match[1]))


def current_version(paths: IndexPaths) -> int | None:
    """Return the highest version present, or None for a folder without one."""
    return max(versions(paths), default=None)


def read_manifest(paths: IndexPaths, version: int | None = None) -> Manifest:
    """Return one version's manifest, the current one by default.

    A damaged newest manifest is an error, never a reason to fall back in silence. Raises
    IndexNotFoundError, IntegrityError or FeatureError.
    """
    present = versions(paths)
    wanted = version if version is not None else max(present, default=None)
    if wanted is None or wanted not in present:
        raise _not_found(paths, wanted, present)
    path = paths.manifest_path(wanted)
    try:
        data = read_file(path)
    except IntegrityError:
        if wanted in versions(paths):
            raise
        return read_manifest(paths, version)  # gc removed it after the look above
    fields = Fields(load_checked(data, path), path)
    manifest = Manifest.from_json(fields)
    _check(manifest, fields, wanted)
    return manifest


def open_keytable(paths: IndexPaths, manifest: Manifest) -> KeyTable:
    """Open the key table of a version; raise IntegrityError when it is not the one named."""
    info = manifest.key_table
    table = KeyTable.open(paths.root / info.name, info, len(manifest.packs))
    counts = manifest.counts
    if (len(table), table.document_count) != (counts.keys, counts.documents):
        expected = f"{counts.keys} keys and {counts.documents} documents"
        raise damaged(table.path, expected, f"{len(table)} and {table.document_count}")
    return table


def utc_now() -> str:
    """Return the time for `created`, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check(manifest: Manifest, fields: Fields, version: int) -> None:
    if manifest.version != version:
        raise damaged(fields.where, f"version {version}", manifest.version)
    if fields.text("build_digest") != manifest.fingerprint.build_digest:
        expected = f"build_digest {manifest.fingerprint.build_digest}"
        raise damaged(fields.where, expected, fields.text("build_digest"))
    names = [pack.name for pack in manifest.packs]
    if len(set(names)) != len(names):
        raise damaged(fields.where, "each pack once", "a pack twice")


def _check_features(fields: Fields) -> None:
    if fields.number("format_version") != FORMAT_VERSION:
        found = f"format version {fields.number('format_version')}"
        raise _unknown(fields.where, f"format version {FORMAT_VERSION}", found)
    unknown = sorted(set(fields.texts("reader_features")) - KNOWN_READER_FEATURES)
    if unknown:
        known = f"only reader features of {sorted(KNOWN_READER_FEATURES)}"
        raise _unknown(fields.where, known, ", ".join(unknown))


def require_writable(manifest: Manifest) -> None:
    """Raise FeatureError when appending needs a writer feature that this program lacks."""
    unknown = sorted(set(manifest.writer_features) - KNOWN_WRITER_FEATURES)
    if unknown:
        known = f"only writer features of {sorted(KNOWN_WRITER_FEATURES)}"
        raise _unknown(f"manifest {manifest.version}", known, ", ".join(unknown))


def _unknown(where: object, expected: str, found: str) -> FeatureError:
    return FeatureError(f"{where}: expected {expected}, found {found}; upgrade sift-index")


def _not_found(paths: IndexPaths, wanted: int | None, present: list[int]) -> IndexNotFoundError:
    name = "manifest-00000001.json or later" if wanted is None else f"version {wanted}"
    advice = "check the path or run `sift-index build`"
    found = paths.absence()
    if present:
        advice = "choose one that `sift-index versions` lists"
        first, last = present[0], present[-1]
        found = f"version {last} alone" if first == last else f"versions {first} to {last}"
    return IndexNotFoundError(f"{paths.root}: expected an index ({name}), found {found}; {advice}")
