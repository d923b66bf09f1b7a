"""Connections to object stores, and what their refusals mean.

Credentials and regions come from where the stores' own tools take them: the environment, shared
configuration files, the machine. Addresses hold none. An endpoint comes from the environment alone:
reads (pyarrow) and conditional writes (boto3) must go to the same store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from pyarrow import fs

from sift_index.formats.errors import StorageError
from sift_index.formats.location import RemotePath, masked
from sift_index.formats.problems import unreadable

CONNECT_SECONDS, REQUEST_SECONDS, ATTEMPTS = 5, 60, 3
# Another setting is another connection; the first two are in order of rank, so are the next two.
_SETTINGS = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
)
_ADVICE = (
    ("NO_SUCH_BUCKET", "make the bucket, or correct its name"),
    ("NoSuchBucket", "make the bucket, or correct its name"),
    ("ACCESS_DENIED", "give credentials that may use the bucket (AWS_ACCESS_KEY_ID or a profile)"),
    ("AccessDenied", "give credentials that may use the bucket (AWS_ACCESS_KEY_ID or a profile)"),
    ("redentials", "give credentials that may use the bucket (AWS_ACCESS_KEY_ID or a profile)"),
    ("profile", "correct AWS_PROFILE or the shared configuration files"),
    ("resolve host", "check the network and the endpoint (AWS_ENDPOINT_URL)"),
    ("onnect", "check the network and the endpoint (AWS_ENDPOINT_URL)"),
)


def filesystem(path: RemotePath) -> fs.FileSystem:
    """Return the pyarrow file system of a path's bucket; raise StorageError when it has none."""
    with store_errors(path):
        return _filesystem(path.scheme, path.bucket, _settings())


def s3_client(path: RemotePath) -> Any | None:
    """Return a boto3 client, which can write conditionally; None where boto3 is not installed."""
    if find_spec("boto3") is None:
        return None
    from botocore.exceptions import BotoCoreError

    with store_errors(path):
        region = filesystem(path).region
    try:
        return _client(region, _settings())
    except (BotoCoreError, ValueError) as error:  # a profile, file or endpoint that is none
        raise refused(path, error) from error


def _settings() -> tuple[str | None, ...]:
    return tuple(map(os.environ.get, _SETTINGS))


@lru_cache(64)
def _filesystem(scheme: str, bucket: str, settings: tuple[str | None, ...]) -> fs.FileSystem:
    if scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=REQUEST_SECONDS))
    endpoint = settings[0] or settings[1]
    region = settings[2] or settings[3]
    if not region and not endpoint:
        region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        endpoint_override=endpoint,
        region=region,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        background_writes=False,
        allow_delayed_open=True,
    )


@lru_cache(64)
def _client(region: str, settings: tuple[str | None, ...]) -> Any:
    import boto3
    from botocore.config import Config

    limits = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=REQUEST_SECONDS,
        retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
        ignore_configured_endpoint_urls=True,
    )
    endpoint = settings[0] or settings[1]
    session = boto3.session.Session()
    return session.client("s3", region_name=region, endpoint_url=endpoint, config=limits)


@contextmanager
def store_errors(path: RemotePath) -> Iterator[None]:
    """Turn what a store's client raises into StorageError, or IntegrityError for no such object."""
    try:
        yield
    except FileNotFoundError as error:
        raise unreadable(path, "an object", error) from error
    except (OSError, pa.ArrowException) as error:
        raise refused(path, error) from error


def refused(path: RemotePath, error: Exception) -> StorageError:
    """Return (not raise) the error for a store that cannot be reached or says no."""
    found = masked(str(error))  # an endpoint may have a password in it
    hints = (advice for sign, advice in _ADVICE if sign in found)
    advice = next(hints, "see what the store says")
    return StorageError(
        f"{path}: expected the object store to answer, found {found:.300}; {advice}, then run the "
        "same command again"
    )
