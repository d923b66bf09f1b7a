"""The storage benchmark weighs what it writes."""

import pytest

from benchmarks import storage


def test_the_weight_is_that_of_every_file_and_grows_with_documents(tmp_path, monkeypatch):
    weights = []
    for documents in (64, 128):
        monkeypatch.setattr(storage, "DOCUMENTS", documents)
        root = tmp_path / str(documents)
        weights.append(storage._written_bytes(root))
        files = [file for file in root.rglob("*") if file.is_file()]
        assert weights[-1] == sum(file.stat().st_size for file in files)
        assert {file.name.split("-")[0] for file in files} >= {"manifest", "keys", "unit"}
    # 32 layers x 32 heads x 32 pages in bits, and at most 250 bytes around them.
    assert weights[1] - weights[0] == pytest.approx(64 * 4096, rel=0.07)
