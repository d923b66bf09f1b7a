"""Writing an S3 object under a condition: in one request, or in parts where it is large.

One request takes at most 5 GB, and the key table of 100 million documents has 6.8 GB. Parts are no
object until the request that joins them, which carries the condition. Until then they cost money
and no listing shows them, so a write that fails takes them back. The client asks again itself for
a part or an answer that was lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sift_index.formats.buckets import refused
from sift_index.formats.location import RemotePath

LARGE_BYTES = 1 << 30
# S3 takes 10,000 parts of 5 MiB to 5 GiB: these reach 2.5 TiB, and a lost one is soon sent again.
PART_BYTES = 1 << 28
_CHUNK = 1 << 23
_TAKEN, _BUSY = ("PreconditionFailed", "412"), ("ConditionalRequestConflict", "409")
_GONE, _UNKNOWN = ("NoSuchKey", "404"), ("NotImplemented", "501")
_JOINED = ("NoSuchUpload",)  # also what some stores say of parts that they have joined already
_BUSY_ATTEMPTS = 10


def put_conditionally(client: Any, path: RemotePath, data: bytes) -> bool:
    """Write an object if its name is free, and say so; the store itself decides between writers.

    Large ones are not sent where the name is taken before. Raises StorageError.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    place = _place(path)
    for attempt in range(_BUSY_ATTEMPTS):
        try:
            if len(data) > LARGE_BYTES and _exists(client, place):
                return False
            _send(client, place, data, {"IfNoneMatch": "*"})
            return True
        except ClientError as error:
            # When an answer is lost, the client asks again and meets its own object.
            asked_again = error.response.get("ResponseMetadata", {}).get("RetryAttempts")
            code = _code(error)
            if asked_again and code in (*_TAKEN, *_JOINED) and _holds(client, path, data):
                return True
            if code in _TAKEN:
                return False
            if code not in _BUSY or attempt == _BUSY_ATTEMPTS - 1:
                raise refused(path, error) from error
        except BotoCoreError as error:
            raise refused(path, error) from error
    return False


def freshen_conditionally(client: Any, path: RemotePath) -> bool | None:
    """Write an object again if it is still there; None where the store knows no `If-Match`."""
    from botocore.exceptions import BotoCoreError, ClientError

    place = _place(path)
    for attempt in range(_BUSY_ATTEMPTS):
        try:
            found = client.get_object(**place)
            _send(client, place, found["Body"].read(), {"IfMatch": found["ETag"]})
            return True
        except ClientError as error:
            code = _code(error)
            if code in _GONE or code in _UNKNOWN:
                return False if code in _GONE else None
            # Another writer used it in this moment, or removed it: the next look tells.
            again = (*_TAKEN, *_BUSY, *_JOINED)
            if code not in again or attempt == _BUSY_ATTEMPTS - 1:
                raise refused(path, error) from error
        except BotoCoreError as error:
            raise refused(path, error) from error
    return False


def _send(client: Any, place: Mapping[str, str], data: bytes, condition: Mapping[str, str]) -> None:
    if len(data) <= LARGE_BYTES:
        client.put_object(**place, Body=data, **condition)
        return
    upload = {**place, "UploadId": _begin(client, place)}
    try:
        starts = range(0, len(data), PART_BYTES)
        parts = [_send_part(client, upload, data, start) for start in starts]
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **condition)
    except BaseException:
        _give_up(client, upload)
        raise


def _begin(client: Any, place: Mapping[str, str]) -> str:
    """Return the id of a new upload, whose parts have checksums unless the user wants none."""
    wanted = client.meta.config.request_checksum_calculation == "when_supported"
    checksum = {"ChecksumAlgorithm": "CRC32"} if wanted else {}
    return str(client.create_multipart_upload(**place, **checksum)["UploadId"])


def _send_part(client: Any, upload: Mapping[str, str], data: bytes, start: int) -> dict[str, Any]:
    """Return what the store wants to hear of this part when the parts are joined."""
    number = start // PART_BYTES + 1
    body = data[start : start + PART_BYTES]
    answer = client.upload_part(**upload, PartNumber=number, Body=body)
    checksums = {name: value for name, value in answer.items() if name.startswith("Checksum")}
    return {"PartNumber": number, "ETag": answer["ETag"], **checksums}


def _give_up(client: Any, upload: Mapping[str, str]) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    with suppress(BotoCoreError, ClientError):  # what failed before is the error to tell
        client.abort_multipart_upload(**upload)


def _exists(client: Any, place: Mapping[str, str]) -> bool:
    from botocore.exceptions import ClientError

    try:
        client.head_object(**place)
    except ClientError as error:
        if _code(error) in _GONE:
            return False
        raise
    return True


def _holds(client: Any, path: RemotePath, data: bytes) -> bool:
    """Say whether an object has these bytes; it is read up to the first that differ."""
    from botocore.exceptions import BotoCoreError, ClientError

    expected, start = memoryview(data), 0
    try:
        body = client.get_object(**_place(path))["Body"]
        while chunk := body.read(_CHUNK):
            if chunk != expected[start : start + len(chunk)]:
                return False
            start += len(chunk)
    except (BotoCoreError, ClientError) as error:
        raise refused(path, error) from error
    return start == len(data)


def _place(path: RemotePath) -> dict[str, str]:
    return {"Bucket": path.bucket, "Key": path.key.partition("/")[2]}


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code"))
