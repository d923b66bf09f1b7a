"""The truthful summary of a build: every document is counted once, by what became of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sift_index.formats.failures import FailedDocument
from sift_index.formats.manifest import Manifest
from sift_index.formats.removal import Removal
from sift_index.models.geometry import ModelGeometry
from sift_index.pipelines.catalogue import Catalogue
from sift_index.pipelines.corpus import IgnoredFiles
from sift_index.pipelines.pruning import pruned
from sift_index.pipelines.resume import Held
from sift_index.pipelines.runner import RunResult
from sift_index.pipelines.timing import BuildTiming, build_timing


@dataclass(frozen=True)
class BuildSummary:
    """Counts of one run of `sift-index build`.

    documents: places found in the corpus = indexed + duplicates + empty + too_long + failed.
    `indexed` have masks in the index now; duplicates have the masks of the same text. Of the
    corpus's distinct `keys`, `new_keys` were computed by this run, `resumed_keys` were committed
    by an interrupted one, `known_keys` were in an earlier version. `version` is the current one.
    Of the documents of earlier versions, `pruned_documents` left the index with this run, because
    the corpus does not have them any more, and `pruned_keys` with them. `reissued` counts units
    that were late and given to a second worker. `tokens_per_second` are the new tokens over the
    `seconds` of the whole run; a running build's are those of its units alone, so they are more.
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
    pruned_documents: int
    pruned_keys: int
    new_tokens: int
    units: int
    retries: int
    timeouts: int
    reissued: int
    workers: int
    seconds: float
    tokens_per_second: float
    index_bytes: int
    index_tokens: int
    kv_bytes: int
    version: int | None
    published: bool
    timing: BuildTiming

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
            f"work        {self.new_tokens:,} tokens in {self.units:,} units, {self.workers} "
            f"workers, {self.retries} retries, {self.timeouts} timeouts, "
            f"{self.reissued} late units given to a second worker",
            f"whole run   {self.seconds:.1f} s = {self.tokens_per_second:,.0f} tokens/s, with "
            "reading the corpus, loading the model and publishing",
            f"size        {self.index_bytes:,} bytes; the KV cache of the same documents would be "
            f"{self.kv_bytes:,} ({self.kv_bytes / max(1, self.index_bytes):,.0f} x)",
        ]
        if self.pruned_documents or self.pruned_keys:
            lines.append(
                f"pruned      {self.pruned_documents:,} documents that the corpus does not have "
                f"any more, {self.pruned_keys:,} keys"
            )
        if self.timing.units:
            lines.append(f"unit time   {self.timing.line()}")
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
    removal: Removal | None = None,
) -> BuildSummary:
    """Count what became of every document, from the state before and after the build."""
    keys = catalogue.distinct_keys
    complete = catalogue.complete(after.published(keys))
    duplicates = int((complete & catalogue.distinct.duplicates).sum())
    new_tokens = sum(receipt.tokens for receipt in result.receipts)
    pruned_documents, pruned_keys = pruned(removal, before, after)
    return BuildSummary(
        documents=catalogue.read,
        indexed=int(complete.sum()) - duplicates,
        duplicates=duplicates + catalogue.repeats,
        empty=catalogue.skipped.get("empty", 0),
        too_long=catalogue.skipped.get("too_long", 0),
        split=catalogue.split,
        failed=tuple(failed),
        ignored_files=ignored.count,
        ignored_example=ignored.example,
        keys=len(keys),
        new_keys=sum(len(receipt.keys) for receipt in result.receipts),
        resumed_keys=int(before.committed(keys).sum()),
        known_keys=int(before.published(keys).sum()),
        pruned_documents=pruned_documents,
        pruned_keys=pruned_keys,
        new_tokens=new_tokens,
        units=len(result.receipts),
        retries=result.retries,
        timeouts=result.timeouts,
        reissued=result.reissued,
        workers=workers,
        seconds=round(seconds, 3),
        tokens_per_second=round(new_tokens / max(seconds, 1e-9), 1),
        index_bytes=_index_bytes(after.manifest),
        index_tokens=after.manifest.counts.tokens if after.manifest else 0,
        kv_bytes=_kv_bytes(after.manifest),
        version=after.manifest.version if after.manifest else None,
        published=published,
        timing=build_timing(result.receipts),
    )


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
