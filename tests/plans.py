"""Documents with hand-made bits, prompts composed from them, and small indexes on disk."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sift_index.fingerprints import advisory_identity, build_fingerprint, serve_identity
from sift_index.formats import bits
from sift_index.formats.fingerprint import Fingerprint
from sift_index.formats.identity import anchor, document_key
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask
from sift_index.formats.packs import write_pack
from sift_index.formats.receipts import Receipt, commit
from sift_index.formats.store import IndexPaths
from sift_index.formats.writer import publish
from sift_index.kernels.api import MaskLayout
from sift_index.models.geometry import geometry_of
from sift_index.models.loading import LoadedModel
from sift_index.models.presets import PromptTemplate
from sift_index.prompts import PromptWriter, Segment
from sift_index.runtime.compose import Composition
from sift_index.runtime.plan import PromptPlan
from sift_index.selection.policy import ProbePolicy
from tests.tiny import byte_tokenizer, tiny_model_of

TEMPLATE = PromptTemplate(prefix="<s>Read this:", query="\nQuestion: {question}\nAnswer:")
# What each architecture needs beside tests.tiny.SHAPE to be tiny and supported.
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
OVERRIDES: dict[str, dict[str, Any]] = {
    "minimax_m2": {**EXPERTS, "rotary_dim": 8},
    "mistral": {"sliding_window": None},
    "mixtral": {**EXPERTS, "sliding_window": None},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
# A measurement, so that opening an index has nothing to warn about.
QUALITY: dict[str, Any] = {
    "model": "tiny",
    "data": "made up",
    "prompts": 4,
    "kl": 0.01,
    "kl_low": 0.005,
    "kl_high": 0.02,
    "top1": 0.95,
    "top1_low": 0.9,
    "top1_high": 1.0,
    "ca_density": 0.3,
    "density": 0.4,
    "date": "2026-01-01",
}


def tiny(model_type: str, **overrides: Any) -> Any:
    """Return the tiny model of a supported architecture."""
    return tiny_model_of(model_type, **{**OVERRIDES.get(model_type, {}), **overrides})


def loaded(model: Any, template: PromptTemplate = TEMPLATE) -> LoadedModel:
    """Return a model as `load_model` would, with the byte tokenizer."""
    return LoadedModel("tiny", model, byte_tokenizer(), template)


def layout_of(model: Any, **changes: Any) -> MaskLayout:
    """Return a layout of one bit per query head and page of 32, or what `changes` says."""
    shape = geometry_of(model.config)
    values = {"mask_heads": shape.heads, "page_size": 32, **changes}
    return MaskLayout(layers=shape.layers, heads=shape.heads, **values)


def tokens(count: int, seed: int = 0) -> list[int]:
    """Return random token ids of the tiny vocabulary, none of them special."""
    return np.random.default_rng(seed + 7919 * count).integers(0, 256, count).tolist()


def masks_of(
    ids: Sequence[int], layout: MaskLayout, kind: str = "random", la_dense_tiles: int = 1
) -> DocumentMasks:
    """Return masks of a document with all bits `on`, all `off`, or `random` ones."""
    tiles, pages = -(-len(ids) // 128), -(-len(ids) // layout.page_size)
    generator = np.random.default_rng([len(ids), *ids[:4]])
    ca = _mask(MaskKind.CA, pages, layout.page_size, layout, kind, generator)
    la = _mask(MaskKind.LA, tiles, 128, layout, kind, generator)
    la_kept = la if tiles > la_dense_tiles else None
    return DocumentMasks(document_key(ids), anchor(ids), len(ids), ca, la_kept)


def _mask(
    kind: MaskKind,
    entries: int,
    granule: int,
    layout: MaskLayout,
    how: str,
    generator: np.random.Generator,
) -> PackedMask:
    row = bits.triangle(entries) if kind == MaskKind.LA else entries
    top = (1 << layout.levels) - 1
    shape = (layout.layers, layout.mask_heads, row)
    fill = {"on": top, "off": 0}
    values = np.full(shape, fill[how]) if how in fill else generator.integers(0, top + 1, shape)
    packed = bits.pack(values.astype(np.uint8), layout.levels)
    return PackedMask(kind, packed, entries, granule, layout.levels)


def compose(
    model: Any,
    layout: MaskLayout,
    segments: Iterable[Segment | Sequence[int]],
    masks: Iterable[DocumentMasks],
    level: int = 1,
) -> PromptPlan:
    """Compose a prompt from an index that is only a dict of masks, made for `model`."""
    known = {row.key: row for row in masks}
    parts = Composition(known.get, 1 << 20, lambda document: ())
    for segment in segments:
        parts.add(segment)
    return parts.plan(layout, fingerprint_of(model, layout), level)


def fingerprint_of(model: Any, layout: MaskLayout) -> Fingerprint:
    """Return the fingerprint of an index that fits `model`."""
    return Fingerprint({}, serve_identity(model, layout), advisory_identity(model, None))


def write_index(
    root: Path,
    model: LoadedModel,
    layout: MaskLayout,
    documents: Mapping[str, Sequence[Sequence[int]]],
    kind: str = "random",
    longest: int = 4000,
    fingerprint: Fingerprint | None = None,
    quality: Mapping[str, Any] | None = QUALITY,
) -> Path:
    """Publish an index of documents, each a list of pieces of token ids, with hand-made bits."""
    prefix = PromptWriter(model.tokenizer, model.prompt).prefix()
    wanted = fingerprint or build_fingerprint(model, ProbePolicy(), layout, prefix, longest)
    pieces = {document_key(ids): ids for document in documents.values() for ids in document}
    rows = [masks_of(ids, layout, kind) for ids in pieces.values()]
    paths = IndexPaths(root)
    paths.create()
    pack = write_pack(paths, "unit-a", wanted.build_digest, rows)
    keys = tuple(sorted(key.hex() for key in pieces))
    total = sum(row.tokens for row in rows)
    receipt = commit(paths, Receipt("unit-a", wanted.build_digest, pack, keys, total))
    names = {name: [document_key(ids) for ids in parts] for name, parts in documents.items()}
    publish(paths, wanted, [receipt], names, quality=quality)
    return root
