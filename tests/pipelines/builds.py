"""What the tests of the build share: a small configuration, corpora and ways to compare indexes."""

import os
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from sift_index.formats.fingerprint import Fingerprint
from sift_index.pipelines.catalogue import Catalogue
from sift_index.pipelines.cataloguing import catalogue_of
from sift_index.pipelines.config import BuildConfig
from sift_index.pipelines.crew import Crew
from sift_index.pipelines.documents import Piece, ScannedDocument
from sift_index.pipelines.failures import FailureBudget
from sift_index.pipelines.measurement import Sample
from sift_index.pipelines.progress import BuildProgress
from sift_index.pipelines.runner import Plan, RunResult
from sift_index.pipelines.scanned import scanned_batch
from sift_index.pipelines.worker import BuildWorker
from sift_index.selection.policy import ProbePolicy

POLICY = ProbePolicy(probe_rows=64, probe_tokens=64)
UNIT_TOKENS = 900


def tiny_config(corpus: Path, output: Path, model: Path, **changes: Any) -> BuildConfig:
    """One worker of one thread, small units, a small probe bank."""
    values: dict[str, Any] = {
        "policy": POLICY,
        "device": "cpu",
        "unit_tokens": UNIT_TOKENS,
        "workers": 1,
        "threads": 1,
    }
    return BuildConfig(corpus, output, str(model), **{**values, **changes})


def text(length: int, seed: int) -> str:
    """A text of `length` bytes, one token each, different for every seed."""
    letters = random.Random(seed).choices("abcdefghij klmnop qrstuv\n", k=length)
    return "x" + "".join(letters)[: length - 2] + "y"


def write_corpus(folder: Path, texts: Mapping[str, str | bytes]) -> Path:
    """Write one file per document."""
    for name, content in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def many_documents(folder: Path, count: int = 48) -> Path:
    """Enough documents of different lengths for about 25 units."""
    return write_corpus(folder, {f"{i:03}.txt": text(200 + 9 * i, i) for i in range(count)})


def catalogue_of_pieces(pieces: Iterable[Piece]) -> Catalogue:
    """A catalogue of documents of one piece each, in this order."""
    return catalogue_of(
        [scanned_batch(ScannedDocument(str(piece.location), (piece,)) for piece in pieces)]
    )


def hashes(index: Path) -> dict[str, str]:
    """SHA-256 of every pack and key table by name."""
    files = [*index.glob("packs/*.arrow"), *index.glob("keys-*.arrow")]
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in files}


def identities(index: Path) -> dict[str, tuple[int, str]]:
    """Inode and SHA-256 of every file: equal when none was written again.

    Not the modification time: it says when a file was last used, for `gc`. Nor what builds say
    about themselves, which every run does.
    """
    found = (path for path in index.rglob("*") if path.is_file())
    files = {str(path.relative_to(index)): path for path in found if path.parent.name != "state"}
    return {
        name: (path.stat().st_ino, sha256(path.read_bytes()).hexdigest())
        for name, path in files.items()
    }


def descendants(pid: int, title: str = "") -> list[int]:
    """Process ids below `pid` whose command line starts with `title`."""
    parents: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it ended meanwhile
            status = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(status[1]), []).append(int(entry))
    found, waiting = [], [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return [child for child in found if _title(child).startswith(title)]


def _title(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


class InlineCrew(Crew):
    """A crew of one `BuildWorker` in this process: for tests of what is not about processes."""

    def _start(self) -> BuildWorker:
        return BuildWorker(self._config, self._reader, self._rules)

    def _first_fingerprint(self) -> Fingerprint:
        return self._worker.fingerprint()

    def _ask(self, workers: Any) -> Any:
        return [worker.fingerprint() for worker in workers]

    @property
    def _worker(self) -> BuildWorker:
        worker: BuildWorker = self._workers.running[0]
        return worker

    def __exit__(self, *exception: object) -> None:
        return None

    def measure(self, samples: Sequence[Sequence[Piece]]) -> list[Sample]:
        """Measure in this process."""
        return self._worker.measure(samples)

    def run(self, units: Plan, progress: BuildProgress, failures: FailureBudget) -> RunResult:
        """Run the units one after another; nothing is retried."""
        result = RunResult()
        for unit in units:
            outcome = self._worker.run_unit(unit)
            result.receipts += [outcome.receipt] if outcome.receipt else []
            result.failed += outcome.failed
            failures.add(outcome.failed)
        return result
