"""A cluster of three nodes on this machine, each with one CPU and one pretended GPU.

Ray's own test cluster: a raylet of its own for every node, so that a node can be lost as a machine
is, with all its processes at once. Builds ask for a GPU a worker, so every node has one.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from typing import Any
from unittest import mock

from ray.cluster_utils import Cluster

from tests.pipelines.builds import descendants

NODES = 3
OBJECT_STORE = 80 << 20
# A lost node is noticed after a second and not after twenty.
QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}
WORKER_TITLE = "ray::"


class Nodes:
    """The cluster; `workers` are its nodes in the order they joined, the head has no room."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.workers: list[Any] = []
        self.join()

    @property
    def address(self) -> str:
        """Where a driver connects."""
        return str(self._cluster.gcs_address)

    def join(self, count: int = NODES) -> None:
        """Have at least this many nodes."""
        while len(self.workers) < count:
            size = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": OBJECT_STORE}
            self.workers.append(self._cluster.add_node(**size))

    def lose(self, node: Any, raylet_only: bool = False) -> None:
        """Lose a machine: its processes die at once, or only Ray's own (the others notice)."""
        raylet = node.all_processes["raylet"][0].process.pid
        below = [] if raylet_only else descendants(raylet)
        for pid in (raylet, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)
        self.workers.remove(node)

    def build_workers(self, node: Any) -> list[int]:
        """Process ids of the actors on a node that hold a model."""
        raylet = node.all_processes["raylet"][0].process.pid
        return descendants(raylet, f"{WORKER_TITLE}Injected")


@contextmanager
def three_nodes() -> Iterator[Nodes]:
    """Start a cluster that no `ray.init()` on this machine finds by itself, and stop it."""
    folder = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))  # sockets need a short path
    head = {
        "num_cpus": 0,
        "object_store_memory": OBJECT_STORE,
        "include_dashboard": False,
        "_system_config": QUICK,
    }
    try:
        with mock.patch.dict(os.environ, {"RAY_TMPDIR": str(folder)}):
            cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield Nodes(cluster)
        finally:
            cluster.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
