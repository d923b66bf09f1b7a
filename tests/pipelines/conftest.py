"""Fixtures of the build tests: an undisturbed build to compare with, and builds without actors."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from sift_index.pipelines.build import run_build
from sift_index.pipelines.summary import BuildSummary
from tests.pipelines.builds import InlineCrew, many_documents, tiny_config

Build = Callable[..., BuildSummary]


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of many small documents."""
    return many_documents(tmp_path_factory.mktemp("many") / "corpus")


@pytest.fixture(scope="session")
def undisturbed(local_ray, many, tiny_model_dir, tmp_path_factory) -> Path:
    """The index of `many`, built by one Ray worker that nothing disturbed; do not write to it."""
    index = tmp_path_factory.mktemp("undisturbed") / "index"
    assert run_build(tiny_config(many, index, tiny_model_dir)).published
    return index


@pytest.fixture
def inline(local_ray, tiny_model_dir, monkeypatch) -> Iterator[Build]:
    """Build with the worker in this process instead of an actor: `inline(corpus, index, ...)`."""
    threads = torch.get_num_threads()
    monkeypatch.setattr("sift_index.pipelines.build.Crew", InlineCrew)

    def _build(corpus: Path, index: Path, model: Path | None = None, **changes) -> BuildSummary:
        return run_build(tiny_config(corpus, index, model or tiny_model_dir, **changes))

    yield _build
    torch.set_num_threads(threads)
