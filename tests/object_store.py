"""A server that speaks S3, on a free port of this machine, and a fresh bucket for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sift_index.formats.location import RemotePath

_numbers = itertools.count()
_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True)
class Request:
    """One request as the server saw it: bucket/key, and the bytes of the answer's body."""

    method: str
    path: str
    answered: int


@dataclass(frozen=True)
class Bucket:
    """One bucket; objects are changed behind the format's back through `client`."""

    name: str
    endpoint: str
    client: Any
    log: list[Request]

    def requests(self, prefix: str = "") -> list[Request]:
        """What was asked of objects with this prefix since the log was last cleared."""
        return [request for request in self.log if request.path.startswith(f"{self.name}/{prefix}")]

    def path(self, key: str) -> RemotePath:
        return RemotePath("s3", f"{self.name}/{key}")

    def url(self, key: str) -> str:
        return str(self.path(key))

    def keys(self, prefix: str = "") -> list[str]:
        """Names of all objects; S3 has no folders, but clients leave objects of that kind."""
        listed = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", [])
        return [entry["Key"] for entry in listed if not entry["Key"].endswith("/")]

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)


def _logged(application: _Application, log: list[Request]) -> _Application:
    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = b"".join(application(environ, start))
        sent = 0 if environ["REQUEST_METHOD"] == "HEAD" else len(body)
        path = str(environ["PATH_INFO"]).lstrip("/")
        log.append(Request(str(environ["REQUEST_METHOD"]), path, sent))
        return [body]

    return answer


@pytest.fixture(scope="session")
def s3_server() -> Iterator[tuple[str, list[Request]]]:
    """The address of a moto server, which stops at the end, and what it was asked."""
    from moto.server import ThreadedMotoServer

    server, log = ThreadedMotoServer("127.0.0.1", 0, verbose=False), list[Request]()
    server.start()
    inner: Any = server._server
    inner.app = _logged(inner.app, log)
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}", log
    server.stop()


@pytest.fixture
def bucket(
    s3_server: tuple[str, list[Request]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    """An empty bucket that this process may use, and a cache of its own."""
    import boto3

    s3_endpoint, log = s3_server
    settings = {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "no-credentials"),
        "SIFT_CACHE": str(tmp_path / "cache"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    client = boto3.session.Session().client("s3", region_name="us-east-1")
    name = f"bucket-{next(_numbers)}"
    client.create_bucket(Bucket=name)
    log.clear()
    return Bucket(name, s3_endpoint, client, log)
