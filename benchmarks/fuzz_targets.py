"""What is fuzzed: every reader of the format, on files whose checksums are made right again.

A fuzzer cannot guess a checksum, so without that it would only ever test the checksum. An input is
one byte that picks a target and the file's content; it must end in a result or a FormatError.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sift_index.formats.blob import HEADER_BYTES, RowIdentity, _checksum, decode_blob, read_header
from sift_index.formats.canonical import CHECKSUM, dump_checked, load_checked
from sift_index.formats.errors import FormatError, UsageError
from sift_index.formats.failures import read_failures
from sift_index.formats.fileinfo import FileInfo, PackInfo, sha256_hex
from sift_index.formats.keytable import KeyTable
from sift_index.formats.masks import MaskKind
from sift_index.formats.maskshape import check_header, promised_shape
from sift_index.formats.packs import Pack
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import verify_index

GOLDEN = Path(__file__).parents[1] / "tests" / "formats" / "golden" / "v1" / "plain"
ROW = RowIdentity(bytes(range(16)), 7, 40)
VALUES: tuple[Any, ...] = (
    None,
    -1,
    0,
    1,
    2**63,
    2**64,
    0.5,
    True,
    "",
    "..",
    "a/b",
    "x" * 32,
    [],
    {},
    [[]],
)
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


class Targets:
    """The golden index in a folder of its own, one file of which each input replaces."""

    def __init__(self, folder: Path) -> None:
        self.paths = IndexPaths(Path(shutil.copytree(GOLDEN, folder / "index")))
        self.manifest = IndexReader.open(self.paths.root).manifest
        self.record = next(self.paths.failed.glob("*.json"))
        self.all: tuple[Callable[[bytes], None], ...] = (
            self.pack, self.table, self.blob, self.version, self.receipt, self.failure
        )  # fmt: skip

    def run(self, data: bytes) -> None:
        """Give one input to the target it names; anything but a FormatError is a finding."""
        if data:
            with suppress(FormatError):
                self.all[data[0] % len(self.all)](data[1:])

    def seeds(self) -> list[bytes]:
        """Return one sound input or more for every target."""
        packs = [self.paths.pack_path(info.name).read_bytes() for info in self.manifest.packs]
        blobs = [
            bytes(Pack.open(self.paths.pack_path(i.name), i)._ca[0]) for i in self.manifest.packs
        ]
        manifest = dump_checked({**self.manifest.to_json(), "version": 3})
        files = (packs, _read(self.paths.root, "keys-*"), blobs, [manifest],
                 _read(self.paths.commits, "*"), _read(self.paths.failed, "*"))  # fmt: skip
        return [bytes([n]) + data for n, found in enumerate(files) for data in found]

    def pack(self, data: bytes) -> None:
        """Open a pack whose hash is right, and use all rows with and without their checksums."""
        named = self.manifest.packs[b"unit-b" in data]
        info = PackInfo(named.name, len(data), sha256_hex(data), named.rows)
        with self._put(self.paths.packs / "fuzzed.arrow", data) as path:
            pack = Pack.open(path, info)
            with suppress(FormatError):
                pack.require_origin(self.manifest.fingerprint)
            for i in range(len(pack)):
                with suppress(FormatError):
                    pack.row(i, verify=False).ca.unpacked()
            pack.verify()

    def table(self, data: bytes) -> None:
        """Open a key table whose hash is right and ask for everything in it."""
        with self._put(self.paths.root / "fuzzed.arrow", data) as path:
            table = KeyTable.open(path, FileInfo(path.name, len(data), sha256_hex(data)), 2)
            assert all(table.find(table.key(i)) is not None for i in range(len(table)))
            assert dict(table.documents()).keys() == set(table.document_ids())

    def blob(self, data: bytes) -> None:
        """Decode a blob whose checksum is right."""
        head, payload = data[:24], data[HEADER_BYTES:]
        row = ROW if data[12:13] == b"\2" else ROW._replace(tokens=2048)  # the two seeds' rows
        sealed = head + _checksum(row, head, payload).to_bytes(8, "little") + payload
        shape = promised_shape(self.manifest.fingerprint)
        check_header(read_header(memoryview(sealed)), MaskKind.CA, row.tokens, shape)
        decode_blob(sealed, row, full=True).unpacked()

    def version(self, data: bytes) -> None:
        """Open a version whose manifest's checksum is right; verifying never raises."""
        with self._put(self.paths.manifest_path(3), _sealed(data)):
            self._verify(data)
            reader = IndexReader.open(self.paths.root)
            for i in range(len(reader)):
                reader.lookup(reader.keys.key(i))

    def receipt(self, data: bytes) -> None:
        """Read a receipt whose checksum is right; verifying never raises."""
        with self._put(self.paths.receipt_path("unit-a"), _sealed(data)):
            self._verify(data)
            read_receipts(self.paths)

    def failure(self, data: bytes) -> None:
        """Read a failure record whose checksum is right, then JSON as it came."""
        with suppress(FormatError), self._put(self.record, _sealed(data)):
            read_failures(self.paths)
        load_checked(data, "input")

    def _verify(self, data: bytes) -> None:
        if len(data) % 64 == 0:  # fifty times the cost of all else, so for some inputs only
            verify_index(self.paths, full=False)

    @contextmanager
    def _put(self, path: Path, data: bytes) -> Iterator[Path]:
        """Put an input under a name for as long as it is used; no input sees an earlier one."""
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)  # never written in place: an old file may still be mapped
        path.write_bytes(data)
        try:
            yield path
        finally:
            path.unlink()
            if before is not None:
                path.write_bytes(before)


def mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    """Return a seed with one to four changes of the kinds that hurt parsers."""
    data = bytearray(rng.choice(seeds))
    if data[1:2] == b"{" and rng.random() < 0.8:
        return bytes(data[:1]) + json.dumps(_replaced(rng, json.loads(data[1:]))).encode()
    for _ in range(rng.randint(1, 4)):
        place, other = rng.randrange(1, len(data) + 1), rng.choice(seeds)
        size = rng.choice((1, 2, 4, 8))
        edge = (rng.choice(EDGES) % 256**size).to_bytes(size, "little")
        start = rng.randrange(len(other))
        piece = other[start : start + rng.randint(1, 64)]
        change = rng.randrange(5)
        if change == 0 and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        elif change == 1:  # a number at a place where numbers stand
            place -= (place - 1) % size
            data[place : place + size] = edge
        elif change == 2:
            data[place:place] = piece
        elif change == 3:
            data[place : place + len(piece)] = piece
        else:
            del data[place : place + rng.choice((1, 8, 64, len(data)))]
    return bytes(data)


def _replaced(rng: random.Random, value: Any) -> Any:
    """Return a JSON value with something in it, at any depth, replaced or left out."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(VALUES)
    place = rng.choice([*value] if isinstance(value, dict) else range(len(value)))
    if rng.random() < 0.1:
        del value[place]
    else:
        value[place] = _replaced(rng, value[place])
    return value


def _sealed(data: bytes) -> bytes:
    """Return JSON in its one spelling with a right checksum; other bytes as they are."""
    try:
        document = json.loads(data)
        if isinstance(document, dict):
            document.pop(CHECKSUM, None)
            return dump_checked(document)
    except (ValueError, RecursionError, UsageError):
        pass
    return data


def _read(folder: Path, pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob(pattern))]
