"""Cutting a cluster into workers: what does not fit would wait for ever."""

import socket
from contextlib import closing
from pathlib import Path

import pytest
from transformers import LlamaConfig

from sift_index.errors import BuildError, UsageError
from sift_index.pipelines.cluster import (
    cpu_claim,
    ray_session,
    resolve_build_device,
    worker_count,
    worker_resources,
)
from sift_index.pipelines.config import BuildConfig
from tests.pipelines.builds import tiny_config


def config(**changes: object) -> BuildConfig:
    return tiny_config(Path("corpus"), Path("index"), Path("model"), **changes)


@pytest.mark.parametrize(
    ("nodes", "threads", "workers", "claim"),
    [
        ([8], 2, 4, 2),
        ([2], 2, 2, 1),  # two workers of two threads share two CPUs
        ([2], 4, 1, 2),  # a node is smaller than a worker
        ([2], 2, 3, 0),
        ([3, 3], 2, 2, 2),
        ([3, 3], 2, 3, 1),  # six CPUs, but no node has room for a second worker of two
        ([1, 16], 8, 2, 8),
        ([], 2, 1, 0),
    ],
)
def test_every_worker_asked_for_fits(nodes, threads, workers, claim) -> None:
    assert cpu_claim(nodes, threads, workers) == claim


def test_workers_are_as_many_as_asked_and_not_more_than_units(local_ray) -> None:
    assert worker_count(config(workers=5), "cpu", 9) == 5
    assert worker_count(config(workers=5), "cpu", 3) == 3
    assert worker_count(config(workers=None, threads=1), "cpu", 9) == 2
    assert worker_count(config(workers=None, threads=64), "cpu", 9) == 1


def test_a_gpu_worker_takes_a_gpu_and_a_cpu_worker_none(local_ray) -> None:
    assert worker_resources(config(), "cuda") == {"num_cpus": 1, "num_gpus": 1}
    assert worker_resources(config(workers=2, threads=2), "cpu") == {"num_cpus": 1, "num_gpus": 0}


def test_more_gpu_workers_than_gpus_are_not_started(local_ray) -> None:
    assert worker_count(config(workers=4), "cuda", 9) == 1


def test_cuda_needs_a_gpu_in_the_cluster(local_ray, tiny_model_dir) -> None:
    if local_ray.cluster_resources().get("GPU"):
        pytest.skip("this machine has a GPU")
    model = str(tiny_model_dir)
    assert resolve_build_device("auto", model) == resolve_build_device("cpu", model) == "cpu"
    with pytest.raises(UsageError, match="no GPU; use --device cpu"):
        resolve_build_device("cuda", model)


def config_of(folder: Path, hidden: int, layers: int) -> str:
    """A model folder with nothing but a config: a size that no test machine could load."""
    config = LlamaConfig(hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers)
    config.save_pretrained(folder)
    return str(folder)


def test_a_large_model_is_not_indexed_on_cpus_unless_asked(local_ray, tmp_path) -> None:
    if local_ray.cluster_resources().get("GPU"):
        pytest.skip("this machine has a GPU")
    large = config_of(tmp_path / "large", 8192, 80)
    with pytest.raises(UsageError, match=r"86\.4 billion parameters.*--device cpu"):
        resolve_build_device("auto", large)
    assert resolve_build_device("cpu", large) == "cpu"
    assert resolve_build_device("auto", config_of(tmp_path / "small", 1024, 16)) == "cpu"


def test_a_running_ray_is_used_and_left_running(local_ray) -> None:
    with ray_session("127.0.0.1:1"):  # not dialled: this process has a cluster already
        assert local_ray.is_initialized()
    assert local_ray.is_initialized()


def test_an_unreachable_cluster_is_named(monkeypatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)

    def refuse(**options):
        raise ConnectionError(f"nobody at {options['address']}")

    monkeypatch.setattr("ray.init", refuse)
    with closing(socket.create_server(("127.0.0.1", 0))) as somebody:
        address = f"127.0.0.1:{somebody.getsockname()[1]}"
        with pytest.raises(BuildError, match=f"nobody at {address}; check --address"):
            ray_session(address).__enter__()
    with pytest.raises(BuildError, match="at auto, found none on this machine; check --address"):
        ray_session("auto").__enter__()


@pytest.mark.parametrize(
    ("problem", "kind", "message"),
    [
        (UnicodeEncodeError("utf-8", "build \udcff", 6, 7, "no"), UsageError, r"'\\udcff' in it"),
        (
            ValueError("no http://a:b@c"),
            BuildError,
            r"at http://\*\*\*@c, found no http://\*\*\*@c;",
        ),
    ],
)
def test_what_ray_refuses_is_said_without_passwords(monkeypatch, problem, kind, message) -> None:
    def refuse(**_: object) -> None:
        raise problem

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(kind, match=message), ray_session("http://a:b@c"):
        raise AssertionError("the block was entered")
