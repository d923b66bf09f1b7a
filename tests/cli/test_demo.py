"""The demo itself, on the real model: what `make demo` shows and writes."""

import json
import warnings

from click.testing import CliRunner

from sift_index.cli.main import cli
from sift_index.formats.reader import IndexReader


def test_the_demo_runs_and_its_summary_is_true(smollm2, local_ray, tmp_path):
    show = warnings.showwarning
    folder = tmp_path / "sift-demo"
    result = CliRunner().invoke(cli, ["demo", "--folder", str(folder), "--questions", "1"])
    warnings.showwarning = show
    assert result.exit_code == 0, result.output
    summary = json.loads((folder / "summary.json").read_text())
    reader = IndexReader.open(folder / "index")
    assert list(summary) == [
        "documents",
        "tokens",
        "index_bytes",
        "kv_bytes",
        "density",
        "ca_density",
        "kl",
        "top1_agreement",
        "seconds",
    ]
    assert summary["documents"] == reader.manifest.counts.documents == 22
    assert summary["tokens"] == reader.manifest.counts.tokens
    assert summary["kv_bytes"] == summary["tokens"] * 2 * 2 * 30 * 3 * 64
    assert 0 < summary["ca_density"] < summary["density"] < 0.6
    assert 0 < summary["kl"] < 0.05 and summary["top1_agreement"] > 0.8
    assert "Sparse prefill computed" in result.stdout
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.split()}
    assert {"method", "dense", "sift", "no-cross"} <= set(rows)
    assert f"{summary['ca_density']:.3f}" in rows["sift"]
    assert "F1" not in rows["method"]  # the demo decodes no answers
