"""Metrics of a build: exported by Ray where its agent runs, free of effect everywhere else."""

import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import ray.util.metrics  # noqa: F401  (tests replace it)

from sift_index.pipelines import metrics as module
from sift_index.pipelines.metrics import (
    DRIVER,
    PREFIX,
    WORKER,
    RayMetrics,
    Silence,
    driver_metrics,
    worker_metrics,
)

AGENT = all(find_spec(name) for name in ("aiohttp", "prometheus_client", "opentelemetry"))


class Registry:
    """Metrics with the methods of Ray's, which keep what they are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, float, dict[str, str]]] = []
        self.options: dict[str, dict[str, object]] = {}
        self.Counter, self.Gauge, self.Histogram = map(self._kind, ("inc", "set", "observe"))

    def _kind(self, method: str):
        def create(name: str, **options):
            self.options[name] = options

            def tell(value: float, tags: dict[str, str] | None = None) -> None:
                assert {*(tags or {})} == {*options["tag_keys"]}
                self.told.append((name.removeprefix(PREFIX), method, value, tags or {}))

            return SimpleNamespace(**{method: tell})

        return create


@pytest.fixture
def registry(monkeypatch) -> Iterator[Registry]:
    """Ray's metrics replaced; this process counts as connected."""
    found = Registry()
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.util.metrics", found)
    module._created.cache_clear()
    yield found
    module._created.cache_clear()


def test_a_worker_counts_what_became_of_a_unit(registry) -> None:
    worker_metrics().unit(tokens=900, seconds=2.5, failed=1, device="NVIDIA H200")
    worker_metrics().unit(tokens=0, seconds=0.5, failed=3, device="NVIDIA H200")
    tags = {"device": "NVIDIA H200"}
    assert registry.told == [
        ("units", "inc", 1, tags),
        ("tokens", "inc", 900, tags),
        ("unit_seconds", "observe", 2.5, tags),
        ("failed_documents", "inc", 1, tags),
        ("failed_documents", "inc", 3, tags),
    ]


def test_the_driver_counts_events_and_says_what_is_left(registry) -> None:
    driver_metrics().left(7, 9000)
    driver_metrics().event("retry")
    assert registry.told == [
        ("units_left", "set", 7, {}),
        ("tokens_left", "set", 9000, {}),
        ("events", "inc", 1, {"event": "retry"}),
    ]


def test_a_name_is_registered_once_in_a_process(registry) -> None:
    assert worker_metrics() is worker_metrics()
    assert {*registry.options} == {PREFIX + name for name in WORKER}


def test_outside_of_ray_nothing_is_recorded(monkeypatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    assert isinstance(worker_metrics(), Silence) and isinstance(driver_metrics(), Silence)
    worker_metrics().unit(1, 1.0, 1, "cpu")
    driver_metrics().left(1, 1)
    driver_metrics().event("retry")


def test_a_ray_without_metrics_is_no_reason_to_fail(monkeypatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.util.metrics", SimpleNamespace())
    module._created.cache_clear()
    assert isinstance(driver_metrics(), Silence)
    module._created.cache_clear()


def test_a_metric_that_cannot_be_recorded_is_no_reason_to_fail() -> None:
    def broken(*arguments, **options) -> None:
        raise RuntimeError("the agent is gone")

    metric = SimpleNamespace(inc=broken, set=broken, observe=broken)
    found = RayMetrics(dict.fromkeys((*WORKER, *DRIVER), metric))
    found.unit(1, 1.0, 1, "cpu")
    found.left(1, 1)
    found.event("retry")


def test_recording_costs_microseconds(local_ray) -> None:
    module._created.cache_clear()
    found = worker_metrics()
    assert isinstance(found, RayMetrics)
    found.unit(900, 2.5, 0, "cpu")
    best = min(_seconds(found) for _ in range(20))
    module._created.cache_clear()
    assert best < 0.001  # units take seconds


def _seconds(metrics) -> float:
    started = time.perf_counter()
    metrics.unit(900, 2.5, 1, "cpu")
    return time.perf_counter() - started


@pytest.mark.skipif(not AGENT, reason="Ray's metrics agent needs the extras of ray[default]")
def test_rays_agent_exports_them(local_ray) -> None:
    module._created.cache_clear()

    class Worker:
        def work(self) -> None:
            worker_metrics().unit(900, 2.5, 1, "cpu")

    worker = local_ray.remote(Worker).options(num_cpus=0).remote()
    local_ray.get(worker.work.remote())
    driver_metrics().event("retry")
    wanted = [f"ray_{PREFIX}{name}" for name in ("units", "tokens", "failed_documents", "events")]
    wanted.append(f"ray_{PREFIX}unit_seconds_bucket")
    deadline = time.monotonic() + 60
    while missing := [name for name in wanted if name not in (text := _exported(local_ray))]:
        assert time.monotonic() < deadline, (missing, text[-2000:])
        time.sleep(1)
    assert 'device="cpu"' in text and 'event="retry"' in text
    module._created.cache_clear()


def _exported(ray) -> str:
    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.read().decode()
    except OSError:
        return ""
