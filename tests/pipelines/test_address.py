"""A Ray address at which nobody is: said at once, in our words, before Ray tries for minutes."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from sift_index.errors import BuildError, UsageError
from sift_index.pipelines.address import head_of, require_reachable

SESSION = """
import sys
from sift_index.pipelines.cluster import ray_session
try:
    with ray_session(sys.argv[1]):
        pass
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as somebody:
        port: int = somebody.getsockname()[1]
    return port


@pytest.fixture
def taken_port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as somebody:
        yield somebody.getsockname()[1]


@pytest.fixture(autouse=True)
def no_ray_address(monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize(
    ("address", "head"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("ray://head-node:10002", ("head-node", 10002)),
        ("ray://head-node", ("head-node", 10001)),
        ("[fd00::1]:6379", ("fd00::1", 6379)),
        ("auto", None),
        ("local", None),
        ("http://head-node:8265", None),
    ],
)
def test_where_a_head_is(address, head) -> None:
    assert head_of(address) == head


NO_ADDRESS = [
    *("head-node", "head:port", ":6379", "ray://", "a b", ""),
    *("a..b:6379", ".:6379", f"{'a' * 64}:6379", f"ray://{'a' * 64}.org", "\udcff:6379"),
    *("127.0.0.1:1/foo", "ray://127.0.0.1:1/foo", "127.0.0.1:1?foo", "127.0.0.1:1#foo", "a\nb:1"),
]


@pytest.mark.parametrize("address", NO_ADDRESS)
def test_what_is_no_address_is_wrong_usage(address) -> None:
    with pytest.raises(UsageError, match="expected a Ray address such as host:6379"):
        require_reachable(address)


@pytest.mark.parametrize(
    "address", ["ray://user:pw@host", "ray://user:pw@host:1", "user:pw@host:1"]
)
def test_passwords_are_not_repeated(address) -> None:
    with pytest.raises(UsageError, match=r"found '(ray://)?\*\*\*@host(:1)?'; correct") as found:
        require_reachable(address)
    assert "pw" not in str(found.value)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "localhost:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nothing_listens_is_named(free_port, form) -> None:
    address = form.format(free_port)
    with pytest.raises(BuildError, match=f"Ray head at {address}, found nothing that listens"):
        require_reachable(address)


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(BuildError, match=r"nowhere\.invalid:6379.*check --address"):
        require_reachable("nowhere.invalid:6379")


def test_somebody_who_listens_is_left_to_ray(taken_port) -> None:
    require_reachable(f"127.0.0.1:{taken_port}")
    require_reachable("auto")
    require_reachable(None)


def test_the_environment_names_a_cluster_too(free_port, monkeypatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port}")
    with pytest.raises(BuildError, match=str(free_port)):
        require_reachable(None)
    require_reachable("local")


def test_ray_itself_says_nothing(free_port) -> None:
    """In a process of its own: what Ray logs does not pass through Python."""
    started = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-c", SESSION, f"127.0.0.1:{free_port}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stdout) == (1, "")
    assert (
        found.stderr.startswith("BuildError: expected a Ray head") and found.stderr.count("\n") == 1
    )
    assert time.monotonic() - started < 40  # most of it imports; Ray alone would take two minutes
