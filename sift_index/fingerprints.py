"""What identifies a model and a build: the values behind the three fingerprint grades."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from sift_index.errors import IntegrityError
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import TokenIds
from sift_index.kernels.api import TILE, MaskLayout
from sift_index.models.digests import tokenizer_digest, weights_digest
from sift_index.models.geometry import geometry_of, rope_identity
from sift_index.models.loading import LoadedModel
from sift_index.selection.policy import Policy, ProbePolicy, policy_values
from sift_index.selection.probes import probe_digest

# Raised whenever the same policy numbers would give other masks.
SELECTION_VERSION = 1
WORD = 4  # bytes of a token id


def serve_identity(model: Any, layout: MaskLayout) -> dict[str, Any]:
    """Return what must match to load an index: architecture, rotary embedding, layout, weights."""
    architecture = asdict(geometry_of(model.config))
    del architecture["context"]
    return {
        "architecture": architecture,
        "rope": rope_identity(model.config),
        "layout": {"tile": TILE, **asdict(layout)},
        "weights": weights_digest(model),
    }


def layout_from(serve: Mapping[str, Any]) -> MaskLayout:
    """Return the mask layout recorded in an index's serve fingerprint.

    Raises IntegrityError for a fingerprint of another program, or a forged one.
    """
    try:
        values = {name: value for name, value in serve["layout"].items() if name != "tile"}
        return MaskLayout(**values)
    except (AttributeError, KeyError, TypeError) as error:
        names = ", ".join(field.name for field in fields(MaskLayout))
        raise IntegrityError(
            f"fingerprint: expected serve.layout with tile, {names}, found "
            f"{serve.get('layout')!r:.200}; build the index with sift-index build"
        ) from error


def advisory_identity(model: Any, tokenizer: Any | None) -> dict[str, Any]:
    """Return what should match: dtype, quantisation, tokenizer, library versions."""
    quantisation = getattr(model.config, "quantization_config", None)
    values: dict[str, Any] = {
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantisation": str(getattr(quantisation, "quant_method", quantisation or "none")),
        "versions": {name: _version(name) for name in ("torch", "transformers", "sift-index")},
    }
    if tokenizer is not None:
        values["tokenizer"] = tokenizer_digest(tokenizer)
    return values


def served_fingerprint(expected: Fingerprint, model: Any, tokenizer: Any | None) -> Fingerprint:
    """Return the fingerprint of `model` as it would have to be for an index of `expected`.

    What a model alone cannot say (build values, prefix) is taken over from `expected`.
    """
    advisory = {**expected.advisory, **advisory_identity(model, tokenizer)}
    return Fingerprint(expected.build, serve_identity(model, layout_from(expected.serve)), advisory)


def prefix_digest(ids: TokenIds) -> str:
    """Return the hex digest of a prefix's token ids."""
    data = np.asarray(ids, dtype="<u4").tobytes()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def begins_with_prefix(ids: TokenIds, digest: str) -> bool:
    """Return whether the first of these token ids, however many, are the prefix of a digest."""
    data = memoryview(np.asarray(ids, dtype="<u4").tobytes())
    hashed = hashlib.blake2b(digest_size=16)
    for at in range(0, len(data) + 1, WORD):
        if hashed.hexdigest() == digest:
            return True
        hashed.update(data[at : at + WORD])
    return False


def build_fingerprint(
    loaded: LoadedModel, policy: Policy, layout: MaskLayout, prefix: list[int], longest: int
) -> Fingerprint:
    """Return the fingerprint of a build: everything that shapes masks, in three grades."""
    advisory = advisory_identity(loaded.model, loaded.tokenizer)
    build: dict[str, Any] = {
        "selection_version": SELECTION_VERSION,
        "policy": policy_values(policy),
        "prefix": loaded.prompt.prefix,
        "span_prefix": loaded.prompt.span_prefix,
        "span_suffix": loaded.prompt.span_suffix,
        "tokenizer": advisory["tokenizer"],
        "dtype": advisory["dtype"],
        "longest": longest,
    }
    if isinstance(policy, ProbePolicy):
        # The texts count, not the place they were read from.
        build["probes"] = probe_digest(policy)
        del build["policy"]["probe_source"]
    advisory["prefix"] = prefix_digest(prefix)
    # A name to load the model by; a local folder's place means nothing on another machine.
    advisory["model"] = "" if Path(loaded.name).is_dir() else loaded.name
    # Another model or layout gives other masks too, so it may not be appended either.
    serve = build["serve"] = serve_identity(loaded.model, layout)
    return Fingerprint(build, serve, advisory)


@cache  # read from files, and asked for with every prompt
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
