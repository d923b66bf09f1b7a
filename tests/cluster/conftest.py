"""Fixtures of the cluster tests: one cluster for all of them, and an index to compare with."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.driving import Site
from tests.cluster.nodes import Nodes, three_nodes
from tests.cluster.workers import Behaviour
from tests.pipelines.builds import UNIT_TOKENS, many_documents

NewSite = Callable[..., Site]


@pytest.fixture(scope="package")
def cluster() -> Iterator[Nodes]:
    with three_nodes() as nodes:
        yield nodes


@pytest.fixture
def nodes(cluster: Nodes) -> Nodes:
    """The cluster with all three nodes, whatever an earlier test lost."""
    cluster.join()
    return cluster


@pytest.fixture(scope="package")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 documents that make 25 units."""
    return many_documents(tmp_path_factory.mktemp("corpus") / "corpus")


@pytest.fixture(scope="package")
def undisturbed(cluster, corpus, tiny_model_dir, tmp_path_factory) -> Site:
    """A build of the same corpus that nothing disturbed; do not write to its index."""
    cluster.join()
    folder = tmp_path_factory.mktemp("undisturbed")
    built = _site(folder, corpus, tiny_model_dir, cluster, pace=0.1, gather=3)
    built.finish()
    return built


@pytest.fixture
def site(nodes, corpus, tiny_model_dir, tmp_path) -> NewSite:
    """Return a place for a build: `site("name", pace=0.1, index=...)`."""

    def new(name: str = "build", index: Path | None = None, **behaviour) -> Site:
        return _site(tmp_path / name, corpus, tiny_model_dir, nodes, index, **behaviour)

    return new


def _site(folder: Path, corpus: Path, model: Path, nodes: Nodes, index=None, **behaviour) -> Site:
    folder.mkdir(exist_ok=True)
    options = ("--unit-tokens", str(UNIT_TOKENS))
    how = Behaviour(folder / "ledger", **behaviour)
    return Site(folder, corpus, model, nodes.address, how, options, index or folder / "index")


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a file system of its own, or change it: `volume("size=128k")`; skips if not allowed."""
    place = tmp_path / "volume"
    place.mkdir()

    def mounted(options: str) -> Path:
        again = "remount," if os.path.ismount(place) else ""
        command = ["mount", "-t", "tmpfs", "-o", f"{again}{options}", "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this user may not mount a file system")
        return place

    yield mounted
    if os.path.ismount(place):
        subprocess.run(["umount", "-l", str(place)], check=True)
