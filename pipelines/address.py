"""Is there anything at a Ray address? Asked first, because Ray itself tries for minutes.

What it logs meanwhile names neither the option nor what to do.
"""

import os
import socket
from contextlib import closing
from urllib.parse import urlsplit

import ray

from sift_index.errors import BuildError, UsageError
from sift_index.formats.location import masked

AUTO, LOCAL = "auto", "local"
CLIENT, CLIENT_PORT = "ray", 10001
PROBE_SECONDS = 5.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
CURE = (
    "check --address (and RAY_ADDRESS) and that the head node is alive (`ray status` there), or "
    "leave it out to start Ray on this machine"
)


def require_reachable(address: str | None, seconds: float = PROBE_SECONDS) -> None:
    """Raise BuildError when nothing listens where the head of a Ray cluster is said to be.

    UsageError for an address that is none. Addresses that only Ray can resolve are left to it, and
    so is None, unless RAY_ADDRESS says what Ray takes it for.
    """
    named = (os.environ.get("RAY_ADDRESS") or LOCAL) if address is None else address
    place = head_of(named)
    if place is None:
        return
    host, port = place
    # Ray takes a loop-back address for this machine's own.
    hosts = [host, ray.util.get_node_ip_address()] if host in LOOPBACK else [host]
    problems = [_problem(name, port, seconds) for name in hosts]
    if all(problems):
        raise BuildError(
            f"expected a Ray head at {named}, found nothing that listens there ({problems[0]}); "
            f"{CURE}"
        )


def head_of(address: str) -> tuple[str, int] | None:
    """Return host and port of `host:port` and `ray://host:port`; None where only Ray knows."""
    scheme, _, rest = address.rpartition("://")
    if address in (AUTO, LOCAL) or scheme not in ("", CLIENT):
        return None
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port or (CLIENT_PORT if scheme else None)
        (host or "").encode("idna")  # a look-up would raise the same UnicodeError
    except ValueError:
        host = port = None
    # Ray knows no users and no paths: it would take them for parts of a host or a port.
    if not host or port is None or parts.netloc != rest or "@" in rest:
        raise UsageError(
            f"expected a Ray address such as host:6379, ray://host:{CLIENT_PORT} or {AUTO}, found "
            f"{_shown(address)}; correct --address (or RAY_ADDRESS)"
        )
    return host, port


def _shown(address: str) -> str:
    """Return an address for a message: quoted, without the user and password before an @."""
    if not address:
        return "an empty text"
    text = masked(address) if "://" in address else masked(f"://{address}").removeprefix("://")
    return repr(text)


def _problem(host: str, port: int, seconds: float) -> str:
    """Return why nobody answers, or an empty text."""
    try:
        with closing(socket.create_connection((host, port), seconds)):
            return ""
    except OSError as problem:
        return str(problem.strerror or problem)
