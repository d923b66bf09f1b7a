"""A build as a submitted job: it joins the cluster it was sent to, under the same command."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sift_index.formats.receipts import read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.pipelines.worker import NODE_DIGITS
from tests.pipelines.builds import text, write_corpus

BIN = Path(sys.executable).parent
DASHBOARD = all(find_spec(name) for name in ("aiohttp", "aiohttp_cors", "prometheus_client"))
STORE = 80 << 20


@dataclass(frozen=True)
class Joined:
    """A head without room for units, and the one node that has it."""

    cluster: Any
    node: str
    environment: dict[str, str]

    @property
    def address(self) -> str:
        return str(self.cluster.gcs_address)


@pytest.fixture
def joined(request: pytest.FixtureRequest) -> Iterator[Joined]:
    """A cluster on this machine that nothing finds by itself."""
    from ray.cluster_utils import Cluster

    folder = Path(tempfile.mkdtemp(prefix="j", dir="/tmp"))  # sockets need a short path
    head = {"num_cpus": 0, "object_store_memory": STORE, **getattr(request, "param", {})}
    environment = {**os.environ, "RAY_TMPDIR": str(folder)}
    with mock.patch.dict(os.environ, environment):
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            node = cluster.add_node(num_cpus=2, object_store_memory=STORE)
            yield Joined(cluster, str(node.node_id), environment)
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", {f"{n}.txt": text(300, n) for n in range(4)})


def command(corpus: Path, model: Path, index: Path) -> list[str]:
    options = {"--model": model, "--index": index, "--unit-tokens": 700, "--device": "cpu"}
    named = [str(part) for option in options.items() for part in option]
    return [str(BIN / "sift-index"), "build", str(corpus), *named]


def nodes_of(index: Path) -> set[str]:
    """Ids of the Ray nodes that did the units of an index."""
    receipts = read_receipts(IndexPaths(index))
    assert len(receipts) == 2
    return {str(receipt.stats["node"]) for receipt in receipts}


def test_a_job_uses_the_cluster_it_runs_in(joined, corpus, tiny_model_dir, tmp_path) -> None:
    """Ray tells a job its cluster by RAY_ADDRESS, and `--address` is not given."""
    index = tmp_path / "index"
    done = subprocess.run(
        [*command(corpus, tiny_model_dir, index), "--output", "json"],
        env={**joined.environment, "RAY_ADDRESS": joined.address},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["indexed"] == 4
    assert nodes_of(index) == {joined.node[:NODE_DIGITS]}
    alive = [str(BIN / "ray"), "health-check", "--address", joined.address]
    assert subprocess.run(alive, env=joined.environment, timeout=60, check=False).returncode == 0


@pytest.mark.skipif(not DASHBOARD, reason="submitting needs the extras of ray[default]")
@pytest.mark.parametrize(
    "joined", [{"include_dashboard": True, "dashboard_port": 18265}], indirect=True
)
def test_a_build_is_submitted(joined, corpus, tiny_model_dir, tmp_path) -> None:
    index, address = tmp_path / "index", "http://127.0.0.1:18265"
    _wait_for(f"{address}/api/version")
    done = subprocess.run(
        [
            *(str(BIN / "ray"), "job", "submit", "--address", address, "--"),
            *command(corpus, tiny_model_dir, index),
        ],
        env=joined.environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout and "event=progress units=2/2" in done.stdout
    assert nodes_of(index) == {joined.node[:NODE_DIGITS]}


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"nothing at {address}")
