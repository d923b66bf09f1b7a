"""The packed bits of a batch of documents, on their way from the device to rows of an index."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sift_index.formats.bits import Bytes, packed_bytes
from sift_index.formats.identity import anchor, document_key
from sift_index.formats.masks import DocumentMasks, MaskKind, PackedMask
from sift_index.kernels.api import TILE, MaskLayout, Sections
from sift_index.kernels.bits import pack
from sift_index.kernels.packed import ALIGNMENT
from sift_index.selection.rules import LayerLevels


class BatchBits:
    """Collects a batch's bits where the model runs; layers without any mark nothing."""

    def __init__(
        self, layout: MaskLayout, pages: Sections, triangles: Sections, device: torch.device
    ) -> None:
        self._layout, self._pages, self._triangles = layout, pages, triangles
        self._ca, self._la = (
            torch.zeros(
                (layout.layers, layout.mask_heads, _width(x.total, layout)),
                dtype=torch.uint8,
                device=device,
            )
            for x in (pages, triangles)
        )

    def keep(self, layer: int, levels: LayerLevels) -> None:
        """Pack one layer's levels, [mask_heads, total] as pages and triangles lie."""
        self._ca[layer] = pack(levels.ca, self._layout.levels)
        if levels.la is not None:
            self._la[layer] = pack(levels.la, self._layout.levels)

    def leave(self, documents: Sequence[Sequence[int]]) -> "Extraction":
        """Start to copy the bits to the host."""
        moved = [x.to("cpu", non_blocking=True) for x in (self._ca, self._la)]
        arrived = None
        if self._ca.device.type == "cuda":
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(self._ca.device))
        parts = (MaskKind.CA, self._pages), (MaskKind.LA, self._triangles)
        ca, la = (_Moved(*part, x, self._layout) for part, x in zip(parts, moved, strict=True))
        return Extraction(documents, ca, la, arrived)


@dataclass(frozen=True)
class _Moved:
    """uint8 [layers, mask_heads, bytes] on the host, sections of one kind of mask."""

    kind: MaskKind
    sections: Sections
    bits: torch.Tensor
    layout: MaskLayout

    def of(self, number: int, tokens: int) -> PackedMask:
        """Return a document's own mask; a copy."""
        count = self.sections.counts[number]
        begin = _width(self.sections.starts[number], self.layout)
        width = packed_bytes(count, self.layout.levels)
        found: Bytes = np.ascontiguousarray(self.bits[..., begin : begin + width].numpy())
        granule = self.layout.page_size if self.kind == MaskKind.CA else TILE
        return PackedMask(self.kind, found, -(-tokens // granule), granule, self.layout.levels)


@dataclass(frozen=True)
class Extraction:
    """A batch whose masks are being computed; `result` waits for them."""

    documents: Sequence[Sequence[int]]
    ca: _Moved
    la: _Moved
    arrived: "torch.cuda.Event | None"

    def result(self) -> list[DocumentMasks]:
        """Return the masks of every document, in order."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return [self._masks(number, ids) for number, ids in enumerate(self.documents)]

    def _masks(self, number: int, ids: Sequence[int]) -> DocumentMasks:
        # A short document has no LA mask.
        la = self.la.of(number, len(ids)) if self.la.sections.counts[number] else None
        return DocumentMasks(
            document_key(ids), anchor(ids), len(ids), self.ca.of(number, len(ids)), la
        )


def _width(entries: int, layout: MaskLayout) -> int:
    """Return the bytes of entries that fill whole ones."""
    return entries // ALIGNMENT * layout.levels
