"""The corpora beside the checkout, where there are any."""

from pathlib import Path

import pytest

from sift_index.pipelines.corpus import open_corpus

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.mark.parametrize(("name", "count"), [("corpus", 552), ("corpus.jsonl", 6_019)])
def test_every_document_reads(name: str, count: int) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"no evaluation data at {DATA / name}")
    reader = open_corpus(DATA / name)
    documents = [reader.read(location) for location in reader.locations()]
    assert len(documents) == len({document.id for document in documents}) == count
