"""What a build costs on top of a dense prefill: one batch of documents, step by step.

Contenders run the same packed batch through the same model and take turns. Each does a bit more
than the one before, so that differences of their medians say where the time goes.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sift_index.bench.build_model import batch_lengths, synthetic_documents
from sift_index.bench.build_steps import Steps
from sift_index.bench.clock import Clock, alternating
from sift_index.bench.measure import Effort
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.packs import write_pack
from sift_index.formats.store import IndexPaths
from sift_index.models.loading import LoadedModel
from sift_index.selection.batches import BATCH_TOKENS
from sift_index.selection.policy import Policy

GIB = 1 << 30
DIGEST = "00" * 16  # of a build that is never published


@dataclass(frozen=True)
class BuildOptions:
    """Which documents are extracted how. prefix: tokens in front of the first document.

    split: also time the parts of a build. budget: seconds behind which no case begins; None for no
    end.
    """

    policy: Policy
    documents: tuple[int, ...] = (128, 512, 2048, 8192, 32768)
    batch_tokens: int = BATCH_TOKENS
    prefix: int = 48
    effort: Effort = Effort(warmup=1, repeats=3)
    split: bool = True
    budget: float | None = None


@dataclass(frozen=True)
class BuildResult:
    """One document length. ms: median milliseconds of each step that was timed (`Steps`).

    write_ms: encoding and writing the pack, which a build does beside the next batch. peak: bytes
    above the model by tokens of a batch, of this batch and of twice as many documents; empty where
    that is not measured.
    """

    length: int
    documents: int
    tokens: int
    ms: dict[str, float]
    write_ms: float
    peak: dict[int, int] = field(default_factory=dict)

    @property
    def throughput_vs_dense(self) -> float:
        """Tokens a second of the build over those of the dense prefill."""
        return self.ms["dense"] / self.ms["build"]

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of the build."""
        return self.tokens / self.ms["build"] * 1e3

    @property
    def split(self) -> dict[str, float]:
        """Milliseconds by what they are spent on; `skipped`, which is saved, is negative.

        Of a case that was not split, of both sides as a whole.
        """
        ms = self.ms
        if "rest" not in ms:
            return {"dense": ms["dense"], "build": ms["build"], "writing": self.write_ms}
        return {
            "rest": ms["rest"],
            "attention": ms["dense"] - ms["rest"],
            "skipped": ms["ended"] - ms["dense"],
            "statistics": ms["local"] - ms["ended"],
            "probe_bank": ms["cross"] - ms["local"],
            "packing": ms["build"] - ms["cross"],
            "writing": self.write_ms,
        }


def bench_build(
    options: BuildOptions,
    lengths: Sequence[int],
    loaded: LoadedModel,
    clock: Clock,
    done: Callable[[BuildResult], None],
) -> list[int]:
    """Measure document lengths one by one, each handed to `done`; return those left out."""
    prefix = synthetic_documents([options.prefix], loaded.geometry.vocab_size)[0]
    steps = Steps(loaded, options.policy, prefix)
    started = clock.now()
    for number, length in enumerate(lengths):
        if options.budget is not None and clock.now() - started > options.budget:
            return list(lengths[number:])
        done(_measure(options, length, steps, loaded, clock))
    return []


def _measure(
    options: BuildOptions, length: int, steps: Steps, loaded: LoadedModel, clock: Clock
) -> BuildResult:
    documents = _documents(options, length, steps, loaded, 1)
    runs = steps.runs(documents, options.split)
    for _ in range(options.effort.warmup):
        for run in runs.values():
            run()
    ms = alternating(runs, clock.wall, options.effort.repeats)
    rows = steps.masks(documents)
    return BuildResult(
        length=length,
        documents=len(documents),
        tokens=sum(map(len, documents)),
        ms=ms,
        write_ms=_write_ms(rows, clock),
        peak=_peaks(options, length, steps, loaded),
    )


def _documents(
    options: BuildOptions, length: int, steps: Steps, loaded: LoadedModel, times: int
) -> list[list[int]]:
    lengths = batch_lengths(length, options.batch_tokens, steps.longest) * times
    return synthetic_documents(lengths, loaded.geometry.vocab_size, seed=length)


def _write_ms(rows: list[DocumentMasks], clock: Clock) -> float:
    with tempfile.TemporaryDirectory() as folder:
        paths = IndexPaths(Path(folder) / "index")
        paths.create()
        write_pack(paths, "first", DIGEST, rows)  # what is loaded or allocated once
        return clock.wall(lambda: write_pack(paths, "unit", DIGEST, rows))


def _peaks(options: BuildOptions, length: int, steps: Steps, loaded: LoadedModel) -> dict[int, int]:
    """Return the most bytes held beside model and probe bank, by tokens of a batch that fits."""
    if loaded.device.type != "cuda":
        return {}
    found = {}
    for times in (1, 2):
        documents = _documents(options, length, steps, loaded, times)
        before = torch.cuda.memory_allocated(loaded.device)
        torch.cuda.reset_peak_memory_stats(loaded.device)
        try:
            steps.masks(documents)
        except torch.OutOfMemoryError:
            break
        tokens = sum(map(len, documents))
        found[tokens] = torch.cuda.max_memory_allocated(loaded.device) - before
    return found
