"""What a build would cost, before it is run: planned as a build is, measured on a few documents.

Documents are planned in order of length, and what a token costs depends on it; so samples are taken
at even distances along the plan, and each stands for its part of it.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sift_index.formats.store import IndexPaths, file_names
from sift_index.pipelines.build import anchored_config, document_rules
from sift_index.pipelines.cluster import ray_session, resolve_build_device, worker_count
from sift_index.pipelines.config import BuildConfig
from sift_index.pipelines.corpus import CorpusReader, open_corpus
from sift_index.pipelines.crew import Crew
from sift_index.pipelines.documents import DocumentRules, Piece
from sift_index.pipelines.measurement import PACK_OVERHEAD, Sample
from sift_index.pipelines.planner import Catalogue, Unit
from sift_index.pipelines.probes import with_probes
from sift_index.pipelines.progress import BuildProgress, build_progress
from sift_index.pipelines.resume import read_held, units_left
from sift_index.pipelines.scanning import scan_corpus
from sift_index.selection.policy import BUILTIN, CORPUS, ProbePolicy

SAMPLES = 6
# Tokens of a sample; a GPU needs whole batches to show its speed.
CPU_SAMPLE_TOKENS = 768
# Bytes of a key in the table of a version, and about what a document's id takes beside its text.
KEY_BYTES, ID_BYTES = 32, 24


@dataclass(frozen=True)
class BuildEstimate:
    """What a build of a corpus would take.

    documents were found; keys and tokens are what no version holds yet. `tokens_per_second` was
    measured on `measured_tokens`, all workers at once; `device_hours` are those of all workers,
    `seconds` the whole run on this machine, reading the corpus and loading the model included.
    """

    documents: int
    keys: int
    tokens: int
    units: int
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
        return [
            f"documents   {self.documents:,} found; {self.keys:,} keys to compute",
            f"work        {self.tokens:,} tokens in {self.units:,} units",
            f"rate        {self.tokens_per_second:,.0f} tokens/s on {self.workers} workers, "
            f"measured on {self.measured_tokens:,} tokens",
            f"time        about {self.seconds:,.0f} s here; {self.device_hours:,.3f} {kind} hours",
            f"size        about {self.index_bytes:,} bytes",
            "nothing was written; run the same command without --dry-run to build",
        ]


def estimate_build(config: BuildConfig, progress: BuildProgress | None = None) -> BuildEstimate:
    """Plan a build, measure a few of its documents and return what it would take.

    Nothing is written. Raises what `run_build` raises before work starts.
    """
    started = time.monotonic()
    config = anchored_config(config)
    rules = document_rules(config)
    reader = open_corpus(config.corpus, config.text_field, config.id_field)
    with ray_session(config.address), progress or build_progress() as shown:
        config = replace(config, device=resolve_build_device(config.device))
        catalogue = scan_corpus(reader, rules, shown)
        config = _with_existing_probes(config, reader, rules, shown)
        shown.note(f"loading {config.model} on {config.device} to measure {SAMPLES} samples")
        with Crew(config, reader, rules) as crew:
            held = read_held(IndexPaths(config.output), crew.fingerprint)
            digest = crew.fingerprint.build_digest
            units = units_left(catalogue.pieces.values(), held, config.unit_tokens, digest)
            workers = worker_count(config, config.device, max(1, len(units)))
            samples = take_samples(units, _sample_tokens(config))
            crew.hire(workers)
            before = time.monotonic() - started
            return _estimate(config, catalogue, units, workers, crew.measure(samples), before)


def take_samples(units: Sequence[Unit], tokens: int, count: int = SAMPLES) -> list[list[Piece]]:
    """Return up to `count` runs of pieces of at least `tokens` tokens, spread along the plan.

    Each begins in the middle of its part of the plan's tokens; a plan that is not longer than the
    samples together is one sample.
    """
    pieces = [piece for unit in units for piece in unit.pieces]
    total = sum(piece.tokens for piece in pieces)
    if total <= count * tokens:
        return [pieces] if pieces else []
    starts = [total * (2 * number + 1) // (2 * count) for number in range(count)]
    return [_run_from(pieces, start, tokens) for start in starts]


def _run_from(pieces: Sequence[Piece], start: int, tokens: int) -> list[Piece]:
    """Return pieces around a place in the plan, given in tokens: half in front, half behind."""
    first = max(0, start - tokens // 2)
    at, found, held = 0, list[Piece](), 0
    for piece in pieces:
        if at + piece.tokens > first and held < tokens:
            found.append(piece)
            held += piece.tokens
        at += piece.tokens
    return found


def _estimate(
    config: BuildConfig,
    catalogue: Catalogue,
    units: Sequence[Unit],
    workers: int,
    samples: Sequence[Sample],
    before: float,
) -> BuildEstimate:
    tokens = sum(unit.tokens for unit in units)
    share = tokens / max(1, len(samples))
    compute = sum(share * sample.seconds / sample.tokens for sample in samples) / workers
    rows = sum(share * sample.row_bytes / sample.tokens for sample in samples)
    keys = sum(len(unit.pieces) for unit in units)
    ids = sum(len(name.encode()) + ID_BYTES for name in catalogue.documents)
    return BuildEstimate(
        documents=catalogue.read,
        keys=keys,
        tokens=tokens,
        units=len(units),
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
