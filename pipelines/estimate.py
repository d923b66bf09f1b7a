"""What a build would cost, before it is run: planned as a build is, measured on a few documents.

Documents are planned in order of length, and what a token costs depends on it; so samples are taken
at even distances along the plan, and each stands for its part of it.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow.compute as pc

from sift_index.formats.failures import FailedDocument
from sift_index.formats.store import IndexPaths, file_names
from sift_index.pipelines.build import anchored_config, corpus_reader, document_rules
from sift_index.pipelines.catalogue import Catalogue
from sift_index.pipelines.changes import CorpusChanges, corpus_changes
from sift_index.pipelines.cluster import ray_session, resolve_build_device, worker_count
from sift_index.pipelines.config import BuildConfig
from sift_index.pipelines.corpus import CorpusReader
from sift_index.pipelines.crew import Crew
from sift_index.pipelines.documents import DocumentRules
from sift_index.pipelines.measurement import PACK_OVERHEAD, Sample
from sift_index.pipelines.pieces import PieceColumns
from sift_index.pipelines.planner import UnitPlan
from sift_index.pipelines.plansize import (
    MANY_UNITS,
    enough_tokens,
    require_bearable,
    total_units,
)
from sift_index.pipelines.probes import with_probes
from sift_index.pipelines.progress import BuildProgress, build_progress
from sift_index.pipelines.pruning import absent_ids, require_prunable
from sift_index.pipelines.publishing import scan_failures
from sift_index.pipelines.resume import read_held, units_left
from sift_index.pipelines.scanning import scan_corpus
from sift_index.selection.policy import BUILTIN, CORPUS, ProbePolicy

SAMPLES = 6
# Tokens of a sample; a GPU needs whole batches to show its speed.
CPU_SAMPLE_TOKENS = 768
# Documents that cannot be indexed, of which the estimate names so many; JSON has all.
SHOWN = 5
# Bytes of a key in the table of a version, and about what a document's id takes beside its text.
KEY_BYTES, ID_BYTES = 32, 24


@dataclass(frozen=True)
class BuildEstimate:
    """What a build of a corpus would take.

    `documents` were found: of those that can be indexed, `new` have an id that the index does not
    have, `changed` another text and `unchanged` the same; `empty` and `too_long` ones are left out,
    and so is what cannot be indexed, in `failed` with its reason. `removed` are documents of the
    index that the corpus does not have, which leave it if `prune` says so. `keys` and `tokens` are
    what no version holds yet. `packs` are those of the next version, one a unit;
    `advised_unit_tokens` is a budget that keeps this plan's few enough to open fast.
    `tokens_per_second` was measured on `measured_tokens`, all workers at once; `device_hours` are
    those of all workers, `seconds` the whole run on this machine, reading the corpus and loading
    the model included.
    """

    documents: int
    new: int
    changed: int
    unchanged: int
    empty: int
    too_long: int
    failed: tuple[FailedDocument, ...]
    removed: int
    prune: bool
    keys: int
    tokens: int
    units: int
    packs: int
    advised_unit_tokens: int
    index_bytes: int
    device: str
    workers: int
    measured_tokens: int
    tokens_per_second: float
    device_hours: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the estimate for people, one fact a line."""
        kind = "GPU" if self.device.startswith("cuda") else "CPU worker"
        leave = "leave the index" if self.prune else "stay; --prune removes them"
        many = [
            f"warning     {self.packs:,} packs, one a unit, make an index that is slow to open "
            f"and to publish (above {MANY_UNITS:,}); use --unit-tokens {self.advised_unit_tokens}"
        ]
        left_out = [
            f"left out    {self.empty:,} empty, {self.too_long:,} too long, "
            f"{len(self.failed):,} that cannot be indexed",
            *(f"            {failure.line()}" for failure in self.failed[:SHOWN]),
        ]
        cost = [
            f"work        {self.tokens:,} tokens in {self.units:,} units",
            f"rate        {self.tokens_per_second:,.0f} tokens/s on {self.workers} workers, "
            f"measured on {self.measured_tokens:,} tokens",
            f"time        about {self.seconds:,.0f} s here; {self.device_hours:,.3f} {kind} hours",
            f"size        about {self.index_bytes:,} bytes",
        ]
        return [
            f"documents   {self.documents:,} found: {self.new:,} new, {self.changed:,} changed, "
            f"{self.unchanged:,} unchanged; {self.keys:,} keys to compute",
            *(left_out if self.empty or self.too_long or self.failed else []),
            f"index       {self.removed:,} documents that the corpus does not have {leave}",
            *(cost if self.keys else ["work        nothing to compute"]),
            *(many if self.packs > MANY_UNITS else []),
            "nothing was written; run the same command without --dry-run to build",
        ]


def estimate_build(config: BuildConfig, progress: BuildProgress | None = None) -> BuildEstimate:
    """Plan a build, measure a few of its documents and return what it would take.

    Nothing is written. Raises what `run_build` raises before work starts.
    """
    started = time.monotonic()
    config = anchored_config(config)
    rules = document_rules(config)
    reader = corpus_reader(config)
    with ray_session(config.address), progress or build_progress() as shown:
        config = replace(config, device=resolve_build_device(config.device, config.model))
        catalogue = scan_corpus(reader, rules, shown)
        if config.prune:
            require_prunable(catalogue)
        config = _with_existing_probes(config, reader, rules, shown)
        shown.note(f"loading {config.model} on {config.device} to measure {SAMPLES} samples")
        with Crew(config, reader, rules) as crew:
            held = read_held(IndexPaths(config.output), crew.fingerprint)
            digest = crew.fingerprint.build_digest
            units = units_left(catalogue, held, config.unit_tokens, digest)
            require_bearable(units, held)
            workers = worker_count(config, config.device, max(1, len(units)))
            samples = take_samples(units, _sample_tokens(config))
            crew.hire(workers)
            before = time.monotonic() - started
            changes = corpus_changes(catalogue, held)
            measured = crew.measure(samples)
            return _estimate(
                config,
                reader,
                catalogue,
                changes,
                units,
                total_units(units, held),
                workers,
                measured,
                before,
            )


def take_samples(plan: UnitPlan, tokens: int, count: int = SAMPLES) -> list[PieceColumns]:
    """Return up to `count` runs of pieces, of about `tokens` tokens or more, spread along the plan.

    Each lies around the middle of its part of the plan's tokens, and no piece is in two; a plan
    that is not longer than the samples together is one sample.
    """
    if plan.tokens <= count * tokens:
        return [plan.pieces(0, plan.keys)] if plan.keys else []
    found, free = list[PieceColumns](), 0
    for number in range(count):
        middle = plan.tokens * (2 * number + 1) // (2 * count)
        first = int(plan.starts.searchsorted(max(0, middle - tokens // 2), "right")) - 1
        end = int(plan.starts.searchsorted(plan.starts[first] + tokens, "left"))
        # A piece longer than its part is in one sample only, else it would be measured twice.
        if max(first, free) < end:
            found.append(plan.pieces(max(first, free), min(end, plan.keys)))
            free = end
    return found


def _estimate(
    config: BuildConfig,
    reader: CorpusReader,
    catalogue: Catalogue,
    changes: CorpusChanges,
    units: UnitPlan,
    packs: int,
    workers: int,
    samples: Sequence[Sample],
    before: float,
) -> BuildEstimate:
    tokens, keys = units.tokens, units.keys
    share = tokens / max(1, len(samples))
    compute = sum(share * sample.seconds / sample.tokens for sample in samples) / workers
    rows = sum(share * sample.row_bytes / sample.tokens for sample in samples)
    ids = int(pc.sum(pc.binary_length(catalogue.ids)).as_py() or 0) + ID_BYTES * len(catalogue)
    return BuildEstimate(
        documents=catalogue.read,
        new=changes.new,
        changed=changes.changed,
        unchanged=changes.unchanged,
        empty=catalogue.skipped.get("empty", 0),
        too_long=catalogue.skipped.get("too_long", 0),
        failed=tuple(scan_failures(reader, catalogue)),
        removed=len(absent_ids(catalogue, changes)),
        prune=config.prune,
        keys=keys,
        tokens=tokens,
        units=len(units),
        packs=packs,
        advised_unit_tokens=max(config.unit_tokens, enough_tokens(units, MANY_UNITS)),
        index_bytes=round(rows) + len(units) * PACK_OVERHEAD + keys * KEY_BYTES + ids,
        device=config.device,
        workers=workers,
        measured_tokens=sum(sample.tokens for sample in samples),
        tokens_per_second=round(tokens / max(compute, 1e-9), 1),
        device_hours=compute * workers / 3600,
        seconds=round(before + compute, 1),
    )


def _sample_tokens(config: BuildConfig) -> int:
    return config.batch_tokens if config.device.startswith("cuda") else CPU_SAMPLE_TOKENS


def _with_existing_probes(
    config: BuildConfig, reader: CorpusReader, rules: DocumentRules, progress: BuildProgress
) -> BuildConfig:
    """Return a configuration with probe texts that are there; any cost the same."""
    policy = config.policy
    if not isinstance(policy, ProbePolicy) or policy.probe_source != CORPUS:
        return config
    if file_names(IndexPaths(config.output).probes, ".txt"):
        return with_probes(config, reader, rules, progress)
    return replace(config, policy=replace(policy, probe_source=BUILTIN))
