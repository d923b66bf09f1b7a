"""`sift-index bench kernels` on the device it is for, with every peer that is installed."""

import json
import warnings

from click.testing import CliRunner

from sift_index.cli.main import cli

ARGUMENTS = (
    "bench kernels --tokens 2048 --documents 256 --densities 1.0,0.2 --warmup 1 --repeats 3 "
    "--output json"
)


def test_all_of_it_runs_and_is_right(monkeypatch):
    # The command installs its own way of showing warnings.
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    result = CliRunner().invoke(cli, ARGUMENTS.split())
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert 0 < values["metadata"]["gpu_ms"] < values["metadata"]["wall_ms"]
    for case in values["cases"]:
        # What needs FlashAttention-3 may be missing, where it is not installed.
        assert set(case["absent"]) <= {"fa3", "library"} and not case["wrong"], case
        assert {"gluon", "triton"} <= set(case["timings"])
        assert ("flex" in case["timings"]) == case["aligned"]
        assert all(0 < numbers["error"] < 0.01 for numbers in case["timings"].values())
        assert 0 < case["compaction_ms"] < case["timings"]["triton"]["ms"]
    assert sum("cudnn" in case["timings"] for case in values["cases"]) == 2
