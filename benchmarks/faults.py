"""Flips single bits and cuts files of an index at random, and counts what nobody noticed.

python -m benchmarks.faults [--trials 20000] [--seed 0]

Each trial damages one file of a golden index and asks in this order: is it an error to open a
version, to use its rows and receipts, to verify in full? An answer that differs from the undamaged
index counts as missed even if verifying would have found it; so does an exception of another kind.
"""

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from sift_index.errors import SiftError
from sift_index.evaluation.results import merge_results, result_rows
from sift_index.formats.failures import read_failures
from sift_index.formats.manifest import versions
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import verify_index

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "faults.json"
GOLDEN = ROOT.parent / "tests" / "formats" / "golden" / "v1"
FOUND = ("open", "use", "verify")
CUT_SHARE = 0.25


@dataclass(frozen=True)
class Fault:
    """One damage: bit `place` of a file changed, or the file cut to `place` bytes."""

    file: Path
    cut: bool
    place: int

    @property
    def kind(self) -> str:
        """Which kind of file was damaged."""
        folders = {"packs": "pack", "commits": "receipt", "failed": "failure"}
        return folders.get(self.file.parent.name) or self.file.name.partition("-")[0]

    def apply(self, data: bytes) -> bytes:
        """Return the damaged content."""
        if self.cut:
            return data[: self.place]
        byte, bit = divmod(self.place, 8)
        return data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]


def random_faults(files: list[Path], trials: int, seed: int) -> Iterator[Fault]:
    """Yield faults: a file first, so that small files count as much, then a place in it."""
    rng = random.Random(seed)
    for _ in range(trials):
        file, cut = rng.choice(files), rng.random() < CUT_SHARE
        size = file.stat().st_size
        yield Fault(file, cut, rng.randrange(size if cut else 8 * size))


def where_found(root: Path, truth: list[object]) -> str:
    """Return the first stage that raises a named error: open, use or verify; or what went wrong."""
    stage = "open"
    try:
        readers = [IndexReader.open(root, version) for version in versions(IndexPaths(root))]
        stage = "use"
        if answers(root, readers) != truth:
            return "wrong answer"
        stage = "verify"
        return "missed" if verify_index(IndexPaths(root)).ok else stage
    except SiftError:
        return stage
    except Exception as error:  # anything but a named error is a bug of the reader
        return f"crash: {error!r:.200}"


def answers(root: Path, readers: list[IndexReader] | None = None) -> list[object]:
    """Return all that an index says: every row and document of every version, and receipts."""
    paths = IndexPaths(root)
    found: list[object] = [read_receipts(paths), read_failures(paths)]
    readers = readers or [IndexReader.open(root, version) for version in versions(paths)]
    for reader in readers:
        keys = [reader.keys.key(i) for i in range(len(reader))]
        found += [[(key, reader.lookup(key)) for key in keys], dict(reader.keys.documents())]
        found.append(reader.keys.anchors().tolist())
    return found


def run(golden: Path, trials: int, seed: int) -> Counter[tuple[str, str, str]]:
    """Return how many faults of each (kind of file, flip or cut) ended in each stage."""
    counts: Counter[tuple[str, str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(shutil.copytree(golden, Path(folder) / "index"))
        truth = answers(root)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for fault in random_faults(files, trials, seed):
            data = fault.file.read_bytes()
            _rewrite(fault.file, fault.apply(data))
            found = where_found(root, truth)
            _rewrite(fault.file, data)
            counts[fault.kind, "cuts" if fault.cut else "flips", found] += 1
            if found not in FOUND:
                print(f"not detected: {fault}: {found}", flush=True)
    return counts


def main() -> None:
    """Damage every golden index, and record how much of it was found, and where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    indexes = sorted(path for path in GOLDEN.iterdir() if path.is_dir())
    counts: Counter[tuple[str, str, str]] = Counter()
    for index in indexes:
        counts += run(index, -(-arguments.trials // len(indexes)), arguments.seed)
    rows = result_rows(summary(counts), torch.device("cpu"), baseline="golden indexes v1")
    merge_results(RESULTS, "faults", rows)
    for row in rows:
        print(f"{row.case:18} {row.metric:16} {row.value:8,.0f}")


def summary(counts: Counter[tuple[str, str, str]]) -> list[tuple[str, str, float, str]]:
    """Return (case, metric, value, unit): totals of both damages, and where each kind was found."""
    totals: Counter[tuple[str, str]] = Counter()
    for name in ("flips", "cuts"):
        totals["format", name], totals["format", f"{name}_missed"] = 0, 0
    for (kind, damage, found), count in counts.items():
        totals["format", damage] += count
        totals["format", f"{damage}_missed"] += count if found not in FOUND else 0
        totals[f"format-{kind}", f"found_by_{found}" if found in FOUND else "missed"] += count
    return [(case, metric, float(count), "trials") for (case, metric), count in totals.items()]


def _rewrite(path: Path, data: bytes) -> None:
    path.unlink()  # a file that may be mapped is replaced, never changed
    path.write_bytes(data)


if __name__ == "__main__":
    main()
