"""How a build's speed grows with its workers, one on each GPU, and whether its packs stay the same.

python -m benchmarks.workers --counts 1,2 --layers 8 --tokens 6000000

A corpus of random texts is built once for each number of workers, by a model of random weights. A
rate is that of the time in which all workers commit units: loading and the end do not count. Most
workers come first, so that kernels compiled for the first time count against them.
"""

import argparse
import random
import string
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch

from sift_index.bench.ttft_model import random_model, shape_config
from sift_index.errors import UsageError
from sift_index.evaluation.results import merge_results, result_rows
from sift_index.formats.receipts import Receipt, read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.models.loading import resolve_device, resolve_dtype
from sift_index.models.quiet import quiet_transformers
from sift_index.pipelines.build import run_build
from sift_index.pipelines.config import BuildConfig
from tests.tiny import byte_tokenizer

RESULTS = Path(__file__).parent / "results" / "workers.json"
VOCABULARY = 320  # of a tokenizer with a token for each byte
LENGTHS = (512, 4096)
BASELINE = "one worker, same run"


@dataclass(frozen=True)
class Commit:
    """A unit's receipt arrived: its worker, tokens and the time in seconds."""

    worker: str
    tokens: int
    seconds: float


def steady_rate(commits: Sequence[Commit], workers: int) -> float:
    """Return tokens per second from where the last worker begins to where the first one ends.

    Raises UsageError when fewer workers than asked for committed units, or one only a single one.
    """
    found = {commit.worker for commit in commits}
    if len(found) != workers:
        raise UsageError(
            f"expected units of {workers} workers, found {len(found)}; give --tokens more"
        )
    times = {w: [c.seconds for c in commits if c.worker == w] for w in found}
    begin, end = max(map(min, times.values())), min(map(max, times.values()))
    if begin >= end:
        raise UsageError("expected workers that work at the same time; give --tokens more")
    return sum(c.tokens for c in commits if begin < c.seconds <= end) / (end - begin)


def write_corpus(path: Path, tokens: int, seed: int = 0) -> None:
    """Write texts of random words, one line each, of about so many tokens together."""
    draw, written = random.Random(seed), 0
    words = [
        "".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 9))) for _ in range(999)
    ]
    with path.open("w", encoding="utf-8") as file:
        while written < tokens:
            size = draw.randint(*LENGTHS)
            text = " ".join(draw.choices(words, k=size // 6))[:size]
            file.write(f'{{"id": "text-{written}", "text": "{text}"}}\n')
            written += len(text)


def save_model(path: Path, shape: str, layers: int | None, device: str) -> None:
    """Write random weights of a shape, and a tokenizer with a token for each byte."""
    config, place = shape_config(shape, layers), resolve_device(device)
    config.vocab_size = VOCABULARY
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 256, 257, 257
    random_model(config, place, resolve_dtype("auto", place)).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)


def commits_of(paths: IndexPaths, receipts: Sequence[Receipt]) -> list[Commit]:
    """Return when each unit was committed, and by whom."""
    return [
        Commit(
            f"{receipt.stats['host']}/{receipt.stats['pid']}",
            receipt.tokens,
            Path(str(paths.receipt_path(receipt.unit))).stat().st_mtime,
        )
        for receipt in receipts
    ]


def pack_digests(root: Path) -> dict[str, str]:
    """Return the digest of each pack by its name."""
    packs = sorted((root / "packs").iterdir())
    return {pack.name: blake2b(pack.read_bytes()).hexdigest() for pack in packs}


def values(
    rates: Mapping[int, float], packs: Mapping[int, dict[str, str]], label: str
) -> Iterator[tuple[str, str, float, str]]:
    """Yield values of result rows; all are compared to the smallest number of workers."""
    first = min(rates)
    for count, rate in sorted(rates.items()):
        case = f"{label}/workers-{count}"
        differing = set(packs[first].items()) ^ set(packs[count].items())
        yield case, "tokens_per_second", rate, "tokens/s"
        yield case, "times_one_worker", rate / rates[first], "x"
        yield case, "packs", len(packs[count]), "packs"
        yield case, "packs_differing", len({name for name, _ in differing}), "packs"


def main() -> None:
    """Build with each number of workers and merge what was measured."""
    chosen = _arguments()
    quiet_transformers()
    counts = sorted((int(count) for count in chosen.counts.split(",")), reverse=True)
    rates: dict[int, float] = {}
    packs: dict[int, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(dir=chosen.scratch) as scratch:
        folder = Path(scratch)
        save_model(folder / "model", chosen.shape, chosen.layers, chosen.device)
        torch.cuda.empty_cache()
        write_corpus(folder / "corpus.jsonl", chosen.tokens)
        for count in counts:
            output = folder / f"workers-{count}"
            run_build(
                BuildConfig(
                    folder / "corpus.jsonl",
                    output,
                    str(folder / "model"),
                    device=chosen.device,
                    unit_tokens=chosen.unit_tokens,
                    workers=count,
                )
            )
            paths = IndexPaths(output)
            rates[count] = steady_rate(commits_of(paths, read_receipts(paths)), count)
            packs[count] = pack_digests(output)
            print(f"{count} workers: {rates[count]:,.0f} tokens/s", flush=True)
    layers = "" if chosen.layers is None else f"-{chosen.layers}-layers"
    found = values(rates, packs, f"{chosen.shape}{layers}")
    rows = result_rows(found, resolve_device(chosen.device), BASELINE)
    merge_results(chosen.results, chosen.results.stem, rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--counts", default="1,2", help="of workers; others are compared to the smallest"
    )
    parser.add_argument(
        "--shape", default="llama-3.1-8b", help="preset, or folder with config.json"
    )
    parser.add_argument("--layers", type=int, help="of the shape; default: all")
    parser.add_argument("--tokens", type=int, default=6_000_000)
    parser.add_argument("--unit-tokens", type=int, default=131_072)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scratch", type=Path, help="where model and indexes go, and are removed")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
