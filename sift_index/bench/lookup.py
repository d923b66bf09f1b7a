"""`sift-index bench lookup`: what finding a document costs in an index of a million."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sift_index.bench.lookup_child import ChildOptions
from sift_index.bench.lookup_index import IndexShape, write_index
from sift_index.bench.lookup_memory import Memory, measure_processes
from sift_index.errors import UsageError
from sift_index.evaluation.results import ResultRow, result_rows
from sift_index.formats.blob import Codec
from sift_index.formats.manifest import open_keytable, read_manifest
from sift_index.formats.store import IndexPaths

BENCH = "lookup"
PROCESSES = 4
Say = Callable[[str], None]
Value = tuple[str, str, float, str]


@dataclass(frozen=True)
class LookupOptions:
    """What to write and how much to look up; `cache` bytes of decoded masks, for zstd."""

    shape: IndexShape
    codecs: tuple[Codec, ...] = (Codec.RAW, Codec.ZSTD)
    samples: int = 20_000
    cache: int = 1 << 28
    seed: int = 0
    folder: Path | None = None


@dataclass(frozen=True)
class LookupResult:
    """What one codec's index gave: times of the process that ran alone, memory of one and four."""

    case: str
    times: dict[str, Any]
    one: Memory
    four: Memory
    pack_bytes: int
    table_bytes: int
    map_bytes: int
    keys: int
    write_s: float

    def values(self) -> Iterator[Value]:
        """Yield (case, metric, value, unit) for the results file."""
        for name in ("again", "first", "absent", "cached"):
            if self.times[name] is not None:
                prefix = "" if name == "again" else f"{name}_"
                for part, value in zip(("p50_us", "p99_us"), self.times[name], strict=True):
                    yield self.case, prefix + part, value, "us"
        yield self.case, "open_s", self.times["open_s"], "s"
        yield self.case, "pin_s", self.times["pin_s"], "s"
        yield self.case, "pss_ratio_4proc", self.four.index / self.one.index, "x"
        yield self.case, "pss_ratio_4proc_all", self.four.all / self.one.all, "x"
        yield self.case, "pss_one_bytes", float(self.one.all), "bytes"
        yield self.case, "pss_four_bytes", float(self.four.all), "bytes"
        yield self.case, "pack_bytes_per_key", self.pack_bytes / self.keys, "bytes"
        yield self.case, "key_bytes", self.table_bytes / self.keys, "bytes"
        yield self.case, "document_map_bytes", self.map_bytes / self.keys, "bytes"

    def rows(self, shape: IndexShape) -> list[ResultRow]:
        """Return the rows; the baseline says what the index was."""
        what = (
            f"{shape.documents:,} documents of {shape.tokens:,} tokens in {shape.packs:,} packs, "
            f"{shape.layers} layers x {shape.heads} heads, page {shape.page}, "
            f"density {shape.density:g}; pages in memory"
        )
        return result_rows(self.values(), torch.device("cpu"), what)


def bench_lookup(options: LookupOptions, say: Say) -> Iterator[LookupResult]:
    """Write an index of each codec in a temporary folder, measure it, remove it.

    Raises UsageError where there is no /proc, or no room on the disk.
    """
    options.shape.check()
    if not sys.platform.startswith("linux"):
        raise UsageError("expected Linux, whose /proc counts shared pages, found another system")
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="sift-lookup-") as folder:
        _require_room(Path(folder), options.shape.expected_bytes)
        for codec in options.codecs:
            root = Path(folder, codec.name.lower())
            started = time.perf_counter()
            write_index(root, options.shape, codec, options.seed)
            written = time.perf_counter() - started
            say(f"{codec.name.lower()}: written in {written:.0f} s")
            yield _measure(root, options, codec, written)
            shutil.rmtree(root)


def case_name(documents: int, codec: Codec) -> str:
    """Return the name of a case, such as `1m-raw`."""
    thousands = documents // 1000
    size = f"{thousands // 1000}m" if thousands and thousands % 1000 == 0 else f"{thousands}k"
    return f"{size if thousands else documents}-{codec.name.lower()}"


def _measure(root: Path, options: LookupOptions, codec: Codec, written: float) -> LookupResult:
    cache = options.cache if codec == Codec.ZSTD else 0
    child = ChildOptions(str(root), options.samples, options.seed, cache)
    alone, one = measure_processes(child, 1)
    _, four = measure_processes(child, PROCESSES)
    paths = IndexPaths(root)
    manifest = read_manifest(paths)
    table = open_keytable(paths, manifest)
    map_bytes = _map_bytes(table.columns())
    return LookupResult(
        case_name(options.shape.documents, codec),
        alone[0],
        one,
        four,
        sum(pack.bytes for pack in manifest.packs),
        manifest.key_table.bytes - map_bytes,
        map_bytes,
        len(table),
        written,
    )


def _map_bytes(columns: Any) -> int:
    """Return the bytes of document ids and of which keys they have: text, its offsets, places."""
    texts = sum(len(name.encode()) for name in columns.doc_ids) + 8 * (len(columns.doc_ids) + 1)
    return int(texts + columns.doc_offsets.nbytes + columns.doc_keys.nbytes)


def _require_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed * 1.1:
        raise UsageError(
            f"expected {needed * 1.1:,.0f} bytes of free disk at {folder.parent}, found {free:,}; "
            "give another --folder, or fewer --documents"
        )
