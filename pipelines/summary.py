"""The truthful summary of a build: every document is counted once, by what became of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sift_index.formats.failures import FailedDocument
from sift_index.formats.manifest import Manifest
from sift_index.models.geometry import ModelGeometry
from sift_index.pipelines.corpus import IgnoredFiles
from sift_index.pipelines.planner import Catalogue
from sift_index.pipelines.resume import Held
from sift_index.pipelines.runner import RunResult


@dataclass(frozen=True)
class BuildSummary:
    """Counts of one run of `sift-index build`.

    documents: places found in the corpus = indexed + duplicates + empty + too_long + failed.
    `indexed` have masks in the index now; duplicates have the masks of the same text. Of the
    corpus's distinct `keys`, `new_keys` were computed by this run, `resumed_keys` were committed
    by an interrupted one, `known_keys` were in an earlier version. `version` is the current one.
    """

    documents: int
    indexed: int
    duplicates: int
    empty: int
    too_long: int
    split: int
    failed: tuple[FailedDocument, ...]
    ignored_files: int
    ignored_example: str
    keys: int
    new_keys: int
    resumed_keys: int
    known_keys: int
    new_tokens: int
    units: int
    retries: int
    workers: int
    seconds: float
    tokens_per_second: float
    index_bytes: int
    index_tokens: int
    kv_bytes: int
    version: int | None
    published: bool

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the summary for people, one fact a line."""
        left_out = [
            f"{self.duplicates} duplicates",
            f"{self.empty} empty",
            f"{self.too_long} too long",
            f"{len(self.failed)} failed",
        ]
        lines = [
            f"documents   {self.documents:,}: {self.indexed:,} indexed, {', '.join(left_out)}",
            f"keys        {self.keys:,}: {self.new_keys:,} computed now, {self.resumed_keys:,} "
            f"committed before, {self.known_keys:,} in an earlier version; "
            f"{self.split:,} documents split",
            f"work        {self.new_tokens:,} tokens in {self.seconds:.1f} s = "
            f"{self.tokens_per_second:,.0f} tokens/s, {self.units:,} units, {self.workers} "
            f"workers, {self.retries} retries",
            f"size        {self.index_bytes:,} bytes; the KV cache of the same documents would be "
            f"{self.kv_bytes:,} ({self.kv_bytes / max(1, self.index_bytes):,.0f} x)",
        ]
        if self.ignored_files:
            lines.append(f"ignored     {self.ignored_files} files, such as {self.ignored_example}")
        news = "published" if self.published else "nothing new to publish"
        return [*lines, f"index       version {self.version}, {news}"]


def summarise(
    catalogue: Catalogue,
    before: Held,
    after: Held,
    result: RunResult,
    failed: Sequence[FailedDocument],
    published: bool,
    ignored: IgnoredFiles,
    workers: int,
    seconds: float,
) -> BuildSummary:
    """Count what became of every document, from the state before and after the build."""
    duplicates = [name for name in catalogue.duplicate_ids if _indexed(catalogue, name, after)]
    indexed = sum(_indexed(catalogue, name, after) for name in catalogue.documents)
    reasons = [skipped.reason for skipped in catalogue.skipped]
    new_tokens = sum(receipt.tokens for receipt in result.receipts)
    resumed = {bytes.fromhex(key) for receipt in before.receipts for key in receipt.keys}
    return BuildSummary(
        documents=catalogue.read,
        indexed=indexed - len(duplicates),
        duplicates=len(duplicates) + catalogue.repeats,
        empty=reasons.count("empty"),
        too_long=reasons.count("too_long"),
        split=catalogue.split,
        failed=tuple(failed),
        ignored_files=ignored.count,
        ignored_example=ignored.example,
        keys=len(catalogue.pieces),
        new_keys=sum(len(receipt.keys) for receipt in result.receipts),
        resumed_keys=sum(key in resumed for key in catalogue.pieces),
        known_keys=sum(before.published(key) for key in catalogue.pieces),
        new_tokens=new_tokens,
        units=len(result.receipts),
        retries=result.retries,
        workers=workers,
        seconds=round(seconds, 3),
        tokens_per_second=round(new_tokens / max(seconds, 1e-9), 1),
        index_bytes=_index_bytes(after.manifest),
        index_tokens=after.manifest.counts.tokens if after.manifest else 0,
        kv_bytes=_kv_bytes(after.manifest),
        version=after.manifest.version if after.manifest else None,
        published=published,
    )


def _indexed(catalogue: Catalogue, name: str, after: Held) -> bool:
    return all(after.published(key) for key in catalogue.documents[name].keys)


def _index_bytes(manifest: Manifest | None) -> int:
    if manifest is None:
        return 0
    return sum(pack.bytes for pack in manifest.packs) + manifest.key_table.bytes


def _kv_bytes(manifest: Manifest | None) -> int:
    """Return the size of the bf16 KV cache of every indexed token."""
    if manifest is None:
        return 0
    # The context length is no part of the fingerprint, and of no use here.
    shape = ModelGeometry(**manifest.fingerprint.serve["architecture"], context=0)
    return shape.kv_bytes(manifest.counts.tokens)
