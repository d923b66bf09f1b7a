"""A second reader, written from SPEC.md alone: if the page is enough for it, it is enough for you.

Imports nothing of the project. It checks what it needs to be right, not everything a reader must.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Row:
    """A document: masks are [layers][heads][entries] as nested lists; `la` is None for dense."""

    anchor: int
    tokens: int
    ca: list[Any]
    la: list[Any] | None


@dataclass(frozen=True)
class IndexContent:
    rows: dict[bytes, Row]
    documents: dict[str, list[bytes]]


def read_index(root: Path, version: int | None = None) -> IndexContent:
    """Return everything one version holds."""
    manifest = read_json(root / f"manifest-{version or newest(root):08d}.json")
    if manifest["format_version"] != 1 or manifest["reader_features"]:
        raise ValueError(f"unknown: {manifest['format_version']}, {manifest['reader_features']}")
    table = {n: c[0] for n, c in read_arrow(root, manifest["key_table"], b"keys").items()}
    packs = [read_arrow(root / "packs", info, b"pack") for info in manifest["packs"]]
    keys = table["keys"]
    places = zip(keys, table["pack"], table["row"], table["anchor"], strict=True)
    rows = {key: read_row(key, packs[pack], row, anchor) for key, pack, row, anchor in places}
    starts = table["doc_offsets"]
    documents = {
        name: [keys[place] for place in table["doc_keys"][starts[i] : starts[i + 1]]]
        for i, name in enumerate(table["doc_ids"])
    }
    return IndexContent(rows, documents)


def newest(root: Path) -> int:
    found = (re.fullmatch(r"manifest-([0-9]{8})\.json", path.name) for path in root.iterdir())
    return max(int(match[1]) for match in found if match)


def read_json(path: Path) -> dict[str, Any]:
    """Return a checked document; its bytes must be its one spelling."""
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(data)
    rest = {name: value for name, value in document.items() if name != "checksum"}
    assert document["checksum"] == hashlib.blake2b(spelled(rest), digest_size=16).hexdigest()
    assert spelled(document) == data
    return rest


def spelled(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def read_arrow(folder: Path, info: dict[str, Any], kind: bytes) -> dict[str, Any]:
    """Return the columns of a file after checking it is the one that was named."""
    data = (folder / info["name"]).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (info["bytes"], info["sha256"])
    reader = pa.ipc.open_file(data)
    metadata = reader.schema.metadata
    assert (metadata[b"sift.format"], metadata[b"sift.kind"]) == (b"1", kind)
    columns: dict[str, Any] = reader.read_all().to_pydict()
    return columns


def read_row(key: bytes, pack: dict[str, Any], i: int, anchor: int) -> Row:
    assert (pack["key"][i], pack["anchor"][i] or 0) == (key, anchor)
    tokens, la, ca = pack["tokens"][i], pack["la"][i], pack["ca"][i]
    own = None if la is None else read_blob(la, 1, key, anchor, tokens, 0)
    linked = 0 if la is None else int.from_bytes(la[24:32], "little")
    return Row(anchor, tokens, read_blob(ca, 2, key, anchor, tokens, linked), own)


def read_blob(blob: bytes, kind: int, key: bytes, anchor: int, tokens: int, linked: int) -> Any:
    """Return the entries of a mask as [layers][heads][entries]."""

    def field(at: int, size: int) -> int:
        return int.from_bytes(blob[at : at + size], "little")

    payload, granule, entries = blob[32:], field(10, 2), field(12, 4)
    numbers = ((anchor, 8), (tokens, 4), (linked, 8))
    row = key + b"".join(number.to_bytes(size, "little") for number, size in numbers)
    digest = hashlib.blake2b(row + blob[:24] + payload, digest_size=8).digest()
    assert blob[:2] == b"SB" and blob[2] == kind and digest == blob[24:32]
    assert entries == -(-tokens // granule) and field(16, 4) == len(payload)
    if blob[3] == 1:
        payload = pa.Codec("zstd").decompress(payload, field(20, 4), asbytes=True)
    levels, layers, heads = blob[4], field(6, 2), field(8, 2)
    count = entries * (entries + 1) // 2 if kind == 1 else entries
    packed = np.frombuffer(payload, np.uint8).reshape(layers, heads, -(-count * levels // 8))
    bits = np.unpackbits(packed, axis=-1)
    assert not bits[..., count * levels :].any()
    values = bits[..., : count * levels].reshape(layers, heads, count, levels)
    return (values @ (1 << np.arange(levels)[::-1])).tolist()
