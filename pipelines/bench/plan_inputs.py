"""What `sift-index bench plan` plans: scanned batches without texts, or texts of mixed lengths."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sift_index import configs
from sift_index.formats.keyorder import Keys, stack_keys
from sift_index.pipelines.scanned import ScannedBatch
from sift_index.pipelines.scanning import LARGEST_BATCH

# Tokens of a document; of every hundred, one has the text of another.
SHORTEST, LONGEST = 20, 400
SAME = 100
FILE_DOCUMENTS, LINE_BYTES = 1_000_000, 900
WORDS, WORDS_A_TOKEN = 1 << 17, 0.56


def scanned_batches(documents: int, seed: int) -> Iterator[ScannedBatch]:
    """Yield what tasks would send of so many documents, in files of a million lines."""
    rng = np.random.default_rng(seed)
    for start in range(0, documents, LARGEST_BATCH):
        numbers = np.arange(start, min(start + LARGEST_BATCH, documents))
        tokens = rng.integers(SHORTEST, LONGEST + 1, len(numbers), dtype=np.uint32)
        keys = stack_keys(rng.bytes(16 * len(numbers))).copy()
        copies = len(numbers) // SAME
        keys[len(keys) - copies :], tokens[len(keys) - copies :] = keys[:copies], tokens[:copies]
        yield batch_of(numbers, keys, tokens)


def batch_of(numbers: NDArray[np.int64], keys: Keys, tokens: NDArray[np.uint32]) -> ScannedBatch:
    """Return documents `doc-<number>` of one piece each as a scan of JSON Lines gives them."""
    part = numbers // FILE_DOCUMENTS
    files = [f"part-{number:05}.jsonl" for number in range(part[0], part[-1] + 1)]
    names = _names(numbers)
    return ScannedBatch(
        id_text=names.reshape(-1),
        id_bytes=np.full(len(numbers), names.shape[1], np.int32),
        pieces=np.ones(len(numbers), np.int32),
        keys=keys,
        tokens=tokens,
        file=(part - part[0]).astype(np.int32),
        position=numbers % FILE_DOCUMENTS * LINE_BYTES,
        files=tuple(files),
        skipped={},
        failed=(),
        kept_ids=(),
    )


def _names(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return `doc-` and nine digits, uint8 [n, 13]."""
    digits = numbers[:, None] // 10 ** np.arange(8, -1, -1) % 10 + ord("0")
    front = np.broadcast_to(np.frombuffer(b"doc-", np.uint8), (len(numbers), 4))
    return np.concatenate((front, digits.astype(np.uint8)), axis=1)


def write_texts(path: Path, documents: int, seed: int) -> None:
    """Write JSON Lines of texts of about 20 to 400 tokens: words of the packaged probe texts."""
    rng = random.Random(seed)
    known = [path.read_text("utf-8") for path in sorted(configs.resource("probes").glob("*.txt"))]
    words = rng.choices(" ".join(known).split(), k=WORDS)
    with path.open("w", encoding="utf-8") as file:
        for number in range(documents):
            length = round(rng.randint(SHORTEST, LONGEST) * WORDS_A_TOKEN)
            start = rng.randrange(WORDS - length)
            text = " ".join(words[start : start + length])
            file.write(json.dumps({"id": f"doc-{number:09}", "text": text}) + "\n")
