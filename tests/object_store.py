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


@dataclass
class Fault:
    """The next `times` requests of a method, with `query` in their query, that are not served."""

    method: str
    query: str
    status: int = 400
    code: str = "BadDigest"  # one that no client asks again after
    times: int = 1

    def meets(self, environ: dict[str, Any]) -> bool:
        return (
            self.times > 0
            and environ["REQUEST_METHOD"] == self.method
            and self.query in environ.get("QUERY_STRING", "")
        )


@dataclass(frozen=True)
class Bucket:
    """One bucket; objects are changed behind the format's back through `client`."""

    name: str
    endpoint: str
    client: Any
    log: list[Request]
    faults: list[Fault]

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

    def uploads(self) -> list[str]:
        """Names of objects of which parts were sent that are neither joined nor taken back."""
        found = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return [entry["Key"] for entry in found]

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)


def _watched(application: _Application, log: list[Request], faults: list[Fault]) -> _Application:
    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        fault = next((fault for fault in faults if fault.meets(environ)), None)
        body = b"".join(
            application(environ, start) if fault is None else _refuse(fault, environ, start)
        )
        sent = 0 if environ["REQUEST_METHOD"] == "HEAD" else len(body)
        path = str(environ["PATH_INFO"]).lstrip("/")
        log.append(Request(str(environ["REQUEST_METHOD"]), path, sent))
        return [body]

    return answer


def _refuse(fault: Fault, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    fault.times -= 1
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start(f"{fault.status} Refused", [("Content-Type", "application/xml")])
    return [f"<Error><Code>{fault.code}</Code><Message>a test</Message></Error>".encode()]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[tuple[str, list[Request], list[Fault]]]:
    """The address of a moto server, which stops at the end, what it was asked, and its faults."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    log, faults = list[Request](), list[Fault]()
    server.start()
    inner: Any = server._server
    inner.app = _watched(inner.app, log, faults)
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}", log, faults
    server.stop()


@pytest.fixture
def bucket(
    s3_server: tuple[str, list[Request], list[Fault]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Bucket:
    """An empty bucket that this process may use, and a cache of its own."""
    import boto3

    s3_endpoint, log, faults = s3_server
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
    faults.clear()
    return Bucket(name, s3_endpoint, client, log, faults)
