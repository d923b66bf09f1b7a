"""What holds for an index whatever was killed while it was built.

Nothing lost, nothing twice, nothing computed again that was committed, and in the end the same as
an undisturbed build, as far as it is promised: with another cut of units, only the masks are.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from sift_index.formats.garbage import collect_garbage
from sift_index.formats.reader import IndexReader
from sift_index.formats.receipts import read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.formats.verify import verify_index
from tests.cluster.workers import Computed
from tests.pipelines.builds import hashes


@dataclass(frozen=True)
class Proven:
    """What was committed at a moment: the keys, and the files that prove it."""

    time: float
    keys: frozenset[str]
    files: dict[Path, tuple[int, str]]


def proven(index: Path) -> Proven:
    """Look at what is committed; the time is taken last, so nothing was committed later."""
    paths = IndexPaths(index)
    receipts = read_receipts(paths)
    files = [index / "commits" / f"{receipt.unit}.json" for receipt in receipts]
    files += [index / "packs" / receipt.pack.name for receipt in receipts]
    keys = frozenset(key for receipt in receipts for key in receipt.keys)
    return Proven(time.time(), keys, {path: _identity(path) for path in files})


@dataclass
class Verdict:
    """What a finished build came to: counts of documents, rows, keys and files, and problems.

    `split` says that its units are not those of the undisturbed build; that is allowed.
    """

    lost: int = 0
    duplicated: int = 0
    recomputed: int = 0
    replaced: int = 0
    split: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every promise was kept."""
        counts = (self.lost, self.duplicated, self.recomputed, self.replaced)
        return not any(counts) and not self.problems


def judge(
    index: Path, undisturbed: Path, moments: Sequence[Proven], computed: Sequence[Computed]
) -> Verdict:
    """Compare a finished index with an undisturbed one, and with what was committed on the way.

    Removes garbage from the index, to see that none is left.
    """
    reader, expected = IndexReader.open(index), IndexReader.open(undisturbed)
    receipts, planned = read_receipts(IndexPaths(index)), read_receipts(IndexPaths(undisturbed))
    held = {name: reader.document_keys(name) for name in reader.document_ids()}
    wanted = {name: expected.document_keys(name) for name in expected.document_ids()}
    committed = Counter(key for receipt in receipts for key in receipt.keys)
    return Verdict(
        lost=sum(held.get(name) != keys for name, keys in wanted.items()),
        duplicated=sum(committed.values()) - len(committed),
        recomputed=sum(_again(one, moments) for one in computed),
        replaced=sum(
            _identity(path) != identity
            for moment in moments
            for path, identity in moment.files.items()
        ),
        split={receipt.unit for receipt in receipts} != {receipt.unit for receipt in planned},
        problems=[*_differences(reader, expected), *_debris(index)],
    )


def _again(one: Computed, moments: Sequence[Proven]) -> int:
    """Return how many keys were computed though they had been committed before it started."""
    before = [moment.keys for moment in moments if moment.time < one.time]
    return len(frozenset().union(*before).intersection(one.keys))


def _differences(reader: IndexReader, expected: IndexReader) -> list[str]:
    """Say how the rows differ, or the files where the same units made them."""
    found = []
    rows = sum(pack.rows for pack in reader.manifest.packs)
    if not rows == len(reader) == len(expected):
        found.append(f"expected {len(expected)} rows, found {rows} of {len(reader)} keys")
    if not reader.verify().ok:
        found.append("the version does not verify")
    keys = [expected.keys.key(row) for row in range(len(expected))]
    if other := sum(reader.lookup(key) != expected.lookup(key) for key in keys if key in reader):
        found.append(f"{other} documents have other masks")
    if set(reader.manifest.units) == set(expected.manifest.units):
        here, there = (hashes(Path(str(one.paths.root))) for one in (reader, expected))
        needed = [*(pack.name for pack in expected.manifest.packs)]
        changed = [name for name in needed if here.get(name) != there[name]]
        found += [f"pack {name} is not byte-identical" for name in changed]
    return found


def _debris(index: Path) -> list[str]:
    """Remove garbage; say what is left of it, or what of the index went with it."""
    paths = IndexPaths(index)
    collect_garbage(paths, keep=1, grace=0)
    report = verify_index(paths)
    found = [f"after gc: {problem}" for problem in report.problems]
    found += [f"left by gc: {name}" for name in report.garbage]
    found += [f"left by gc: {paths.name_of(path)}" for path in paths.leftovers()]
    found += [f"failure record {path.name}" for path in (index / "failed").glob("*")]
    return found


def _identity(path: Path) -> tuple[int, str]:
    """Return inode and SHA-256; the modification time says when a file was last used."""
    if not path.exists():
        return (0, "")
    return path.stat().st_ino, sha256(path.read_bytes()).hexdigest()
