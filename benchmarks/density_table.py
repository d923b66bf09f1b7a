"""How CA density spreads over the layers and heads of an index, for `sift-index bench ttft`.

sift-index build configs/examples/corpus --model smollm2-135m --index examples.sift
python -m benchmarks.density_table examples.sift configs/bench/density-smollm2-135m.yaml

Random masks of one density everywhere would flatter or punish a kernel: real heads differ by a
factor of fifty. The table is measured on an index; the means that it is scaled to, and the LA
density of long documents, are those of benchmarks/results/quality.json.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sift_index.evaluation.results import read_results
from sift_index.formats.masks import DocumentMasks
from sift_index.formats.reader import IndexReader
from sift_index.outputs import write_whole

QUALITY = Path(__file__).parent / "results" / "quality.json"
MODEL = "smollm2-135m"
CA_CASE = f"{MODEL}/musique+wikimqa/sift"
LA_CASE = f"{MODEL}/multifieldqa_zh+qasper/sift"


def main() -> None:
    """Measure the index named first and write the file named second."""
    index, target = map(Path, sys.argv[1:3])
    shares, documents, tokens = measured(IndexReader.open(index))
    measured_on = datetime.now(UTC).strftime("%Y-%m-%d")
    source = f"{documents} documents, {tokens:,} tokens of {index.name}, {measured_on}"
    write_whole(target, text_of(shares, source))
    print(f"{target}: {shares.shape[0]} x {shares.shape[1]}, mean {shares.mean():.3f}")


def measured(reader: IndexReader) -> tuple[NDArray[np.float64], int, int]:
    """Return CA density [layers, heads], all documents' keys together, and how many there are."""
    keys = {key for name in reader.document_ids() for key in reader.document_keys(name)}
    rows = [row for row in map(reader.lookup, sorted(keys)) if row is not None]
    tokens = sum(row.tokens for row in rows)
    marked = np.sum([marked_keys(row) for row in rows], axis=0)
    return marked / tokens, len(rows), tokens


def marked_keys(row: DocumentMasks) -> NDArray[np.int64]:
    """Return int64 [layers, heads]: keys of a document's pages that are on."""
    length = np.full(row.ca.entries, row.ca.granule)
    length[-1] = row.tokens - row.ca.granule * (row.ca.entries - 1)
    marked: NDArray[np.int64] = (row.ca.unpacked() > 0) @ length
    return marked


def text_of(shares: NDArray[np.float64], source: str) -> str:
    """Return the file: a line of the table for each layer."""
    quality = read_results(QUALITY)
    lines = [f"- [{', '.join(f'{share:.4f}' for share in layer)}]" for layer in shares]
    return "\n".join(
        (
            "# Written by `python -m benchmarks.density_table`, which says how.",
            f"model: {MODEL}",
            f"source: {source}",
            "# Means under the default policy, measured on prompts (benchmarks/results):",
            f"ca_mean: {quality[CA_CASE, 'ca_density']['value']:.3f}  # {CA_CASE}",
            f"la_long: {quality[LA_CASE, 'la_density']['value']:.3f}  # {LA_CASE}",
            "# Share of keys that later documents attend to: a line a layer, a number a head.",
            "ca:",
            *lines,
            "",
        )
    )


if __name__ == "__main__":
    main()
