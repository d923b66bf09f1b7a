"""A plan as a few plain values, so that one process composes and another one serves.

Masks do not travel: the server has the same index and finds them by key. What it lacks becomes
dense glue, as in composing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sift_index.errors import FingerprintMismatchError, UsageError
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import document_key, token_bytes
from sift_index.formats.masks import DocumentMasks
from sift_index.kernels.api import MaskLayout, SparsePlan
from sift_index.runtime.explain import REASONS
from sift_index.runtime.masks import span_mask
from sift_index.runtime.plan import PromptPlan, SegmentOutcome

FORMAT = 1
KINDS = ("span", "glue")
INDEXED = "indexed"  # the reason of every span


def to_request(plan: PromptPlan) -> dict[str, Any]:
    """Return a plan as JSON values: token ids, segments, level, and which index it is for.

    A segment is [start, stop, kind, reason, key]: key in hexadecimal, None for glue.
    """
    return {
        "format": FORMAT,
        "build": plan.fingerprint.build_digest,
        "level": plan.sparse.level,
        "ids": list(plan.ids),
        "segments": [[o.start, o.stop, o.kind, o.reason, o.key] for o in plan.outcomes],
        "warnings": list(plan.warnings),
    }


def from_request(
    request: Mapping[str, Any],
    lookup: Callable[[bytes], DocumentMasks | None],
    layout: MaskLayout,
    fingerprint: Fingerprint,
) -> PromptPlan:
    """Return the plan of a request for the index with this look-up, layout and fingerprint.

    Raises UsageError for values that are no request, or ids that are not what a key names, and
    FingerprintMismatchError for a request of another index.
    """
    ids, segments, level = _checked(request)
    expected, found = fingerprint.build_digest, request["build"]
    if found != expected:
        raise FingerprintMismatchError(
            f"expected a request composed with build {expected}, found {found}; compose and serve "
            "with versions of one index"
        )
    spans, outcomes = [], []
    for start, stop, kind, reason, key in segments:
        masks = lookup(_key(ids, start, stop, key)) if kind == "span" else None
        if masks is not None:
            spans.append(span_mask(masks, start))
            outcomes.append(SegmentOutcome(start, stop, kind, reason, key))
        else:
            lost = "not_indexed" if kind == "span" else reason
            outcomes.append(SegmentOutcome(start, stop, "glue", lost))
    sparse = SparsePlan(layout, len(ids), tuple(spans), level)
    warnings = tuple(request["warnings"])
    return PromptPlan(token_bytes(ids), sparse, tuple(outcomes), fingerprint, warnings)


def _checked(request: Mapping[str, Any]) -> tuple[list[int], list[list[Any]], int]:
    """Return ids, segments and level of a request whose segments tile its ids."""
    if not isinstance(request, Mapping) or request.get("format") != FORMAT:
        found = request.get("format") if isinstance(request, Mapping) else type(request).__name__
        raise _bad(f"format {FORMAT}", found)
    kinds = {"build": str, "level": int, "ids": list, "segments": list, "warnings": list}
    for name, kind in kinds.items():
        if not isinstance(request.get(name), kind):
            raise _bad(f"'{name}' of type {kind.__name__}", request.get(name))
    ids, segments, cursor = request["ids"], request["segments"], 0
    token_bytes(ids)  # raises for what are no ids
    if not all(isinstance(text, str) for text in request["warnings"]):
        raise _bad("warnings as texts", request["warnings"])
    for segment in segments:
        if not (isinstance(segment, list | tuple) and len(segment) == 5):
            raise _bad("segments of [start, stop, kind, reason, key]", segment)
        start, stop, kind, reason, _ = segment
        whole = type(start) is int and type(stop) is int
        if not whole or kind not in KINDS or start != cursor or stop < start:
            raise _bad(f"a segment from {cursor} on", segment)
        known = isinstance(reason, str) and reason in REASONS
        if not known or (kind == "span") != (reason == INDEXED):
            raise _bad(f"a reason for {kind}", segment)
        if kind == "span" and not start < stop:
            raise _bad("a span of at least one token", segment)
        if kind == "span" and not start:
            raise _bad("a first span behind a prefix, where the attention sink is", segment)
        cursor = stop
    if cursor != len(ids):
        raise _bad(f"segments up to {len(ids)}, the number of ids", cursor)
    return ids, segments, request["level"]


def _key(ids: list[int], start: int, stop: int, key: object) -> bytes:
    """Return a span's key, which must be that of its ids: masks of other tokens would be wrong."""
    found = document_key(ids[start:stop])
    if key != found.hex():
        raise _bad(f"key {found.hex()} for the ids of [{start}, {stop})", key)
    return found


def _bad(expected: str, found: object) -> UsageError:
    return UsageError(
        f"plan request: expected {expected}, found {str(found)[:80]!r}; pass what "
        "`to_request` returned"
    )
