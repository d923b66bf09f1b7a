"""JSON with exactly one spelling, so that one flipped byte of a file is always found.

Digests need one byte string per value, and a reader compares a file with what the writer would
have written: whitespace, key order and number spelling are then protected like the content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from sift_index.formats.errors import UsageError
from sift_index.formats.problems import damaged, misused
from sift_index.formats.store import MAX_JSON_BYTES

CHECKSUM = "checksum"
MAX_DEPTH = 32
_ADVICE = "use text keys, text, finite numbers, true/false/null, lists and maps"


def canonical_bytes(value: object) -> bytes:
    """Return the only spelling of a JSON value: sorted keys, indent 2, UTF-8, final newline.

    Raises UsageError for NaN, infinity, keys that are no text, other types, deep nesting.
    """
    _check(value, 0)
    try:
        text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"
    except ValueError as error:
        raise misused("JSON", "a finite number or valid text", error, _ADVICE) from error


def digest(value: object) -> str:
    """Return the BLAKE2b-128 of the canonical bytes as 32 hex digits."""
    return blake2b(canonical_bytes(value), digest_size=16).hexdigest()


def dump_checked(document: Mapping[str, Any]) -> bytes:
    """Return canonical bytes with a `checksum` field over the rest of the document.

    Raises UsageError when the document has such a field already, or is no JSON.
    """
    if CHECKSUM in document:
        raise misused("document", f"no field {CHECKSUM!r}", "one", "it is added when written")
    plain = dict(document)
    return canonical_bytes({**plain, CHECKSUM: digest(plain)})


def load_checked(data: bytes, what: object) -> dict[str, Any]:
    """Return the document, without its checksum, if `data` is exactly what was written.

    Raises IntegrityError naming `what` for anything else.
    """
    if len(data) > MAX_JSON_BYTES:
        raise damaged(what, f"at most {MAX_JSON_BYTES} bytes", len(data))
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise damaged(what, "a JSON document", error) from error
    if not isinstance(document, dict) or CHECKSUM not in document:
        raise damaged(what, "a JSON object with a checksum", "none")
    del document[CHECKSUM]
    if data != _spelled(document, what):
        raise damaged(what, "the bytes that were written", "a changed byte (checksum differs)")
    return document


def _spelled(document: dict[str, Any], what: object) -> bytes:
    try:
        return dump_checked(document)
    except UsageError as error:
        raise damaged(what, "plain JSON values", error) from error


def _check(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise misused("JSON", f"at most {MAX_DEPTH} levels", "more", "flatten the value")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise misused("JSON", "keys of text", [*value][:3], _ADVICE)
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        for item in value:
            _check(item, depth + 1)
    elif not isinstance(value, (str, int, float, bool, type(None))):
        raise misused("JSON", "a plain value", type(value).__name__, _ADVICE)
