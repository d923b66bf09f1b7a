"""Ray: connecting, or starting a local one, and cutting it into scanners and workers."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from sift_index.errors import BuildError, UsageError
from sift_index.formats.location import masked
from sift_index.models.loading import load_config
from sift_index.models.size import parameter_count
from sift_index.pipelines.address import AUTO, CURE, LOCAL, require_reachable
from sift_index.pipelines.config import BuildConfig

# Larger models take days on CPUs for what a GPU does in minutes: only for who asks for it.
CPU_PARAMETERS = 2e9


@contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start Ray on this machine, and shut down only what was started.

    `address` None means the cluster this process already belongs to (a submitted job), else a
    local one; `local` always starts one. Raises BuildError when there is none at the address.
    """
    if ray.is_initialized():
        yield
        return
    require_reachable(address)
    try:
        ray.init(
            address=address,
            include_dashboard=False if address in (None, LOCAL) else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except UnicodeEncodeError as problem:  # Ray notes the command line of its driver
        raise UsageError(
            f"expected a command line of UTF-8 text, found {problem.object[problem.start :]!r} in "
            "it; name files by paths that are UTF-8, such as a link"
        ) from problem
    except (ConnectionError, ValueError, RuntimeError) as problem:
        found = "none on this machine" if address == AUTO else masked(str(problem))
        place = masked(address or "this machine")
        raise BuildError(f"expected a Ray cluster at {place}, found {found}; {CURE}") from problem
    try:
        yield
    finally:
        ray.shutdown()


def resolve_build_device(device: str, model: str) -> str:
    """Turn `auto` into cuda when the cluster has GPUs, else cpu.

    Raises UsageError for cuda on a cluster without GPUs, because workers would wait for one for
    ever, and for a large model that `auto` would index on CPUs.
    """
    found = ray.cluster_resources().get("GPU", 0) >= 1
    if device.startswith("cuda") and not found:
        raise UsageError(
            f"device {device} was asked for, but the Ray cluster has no GPU; use --device cpu"
        )
    if device != "auto":
        return device
    if not found:
        _require_small(model)
    return "cuda" if found else "cpu"


def _require_small(model: str) -> None:
    parameters = parameter_count(load_config(model))
    if parameters > CPU_PARAMETERS:
        raise UsageError(
            f"expected a GPU in the Ray cluster for {model}, which has {parameters / 1e9:.1f} "
            "billion parameters, found none; add GPU nodes (--address names another cluster), "
            "choose a smaller model, or say --device cpu to wait for CPUs all the same"
        )


def worker_count(config: BuildConfig, device: str, units: int) -> int:
    """Return how many workers to start: as asked, or the CPUs over the threads.

    On GPUs one each, or fewer when asked: a worker too many would wait for a GPU for ever.
    """
    resources = ray.cluster_resources()
    if device.startswith("cuda"):
        gpus = int(resources.get("GPU", 1))
        wanted = min(config.workers or gpus, gpus)
    else:
        wanted = config.workers or int(resources.get("CPU", 1)) // config.threads
    return max(1, min(wanted, units))


def worker_resources(config: BuildConfig, device: str) -> dict[str, Any]:
    """Return the Ray resources of one worker: a GPU, or as many CPUs as it has threads.

    It claims fewer CPUs where the workers asked for would not fit, for Ray never starts what does
    not fit; the threads stay as configured, because results depend on them.
    """
    if device.startswith("cuda"):
        return {"num_cpus": 1, "num_gpus": 1}
    nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    return {"num_cpus": cpu_claim(nodes, config.threads, config.workers or 1), "num_gpus": 0}


def cpu_claim(nodes: Sequence[float], threads: int, workers: int) -> int:
    """Return the most CPUs, up to `threads`, that every one of `workers` can have on the nodes."""
    claims = range(threads, 0, -1)
    return next((c for c in claims if sum(int(cpus // c) for cpus in nodes) >= workers), 0)
