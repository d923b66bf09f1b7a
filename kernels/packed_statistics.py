"""Statistics of packed documents: the same numbers in the same places on any device.

A GPU takes the Triton kernels, all documents at once; elsewhere documents take turns in torch.
"""

from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from sift_index.kernels import statistics
from sift_index.kernels.packed import Packed, Sections
from sift_index.kernels.rope import turn

if TYPE_CHECKING:
    from sift_index.kernels.triton_local_statistics import LocalTables
    from sift_index.kernels.triton_probe_statistics import ProbeTables

# Whole tensor-core blocks; other head sizes take the torch form.
TRITON_HEAD_DIMS = (16, 32, 64, 128)


class PackedStatistics:
    """The statistics of one batch of documents; tables are made once, for all layers.

    dense_tiles: documents of up to so many tiles have no LA statistic. frequencies: the model's
    inverse rotary frequencies, on the device of the tensors to come.
    """

    def __init__(
        self, packed: Packed, page_size: int, dense_tiles: int, frequencies: torch.Tensor
    ) -> None:
        self._packed, self._page_size, self._dense_tiles = packed, page_size, dense_tiles
        self._frequencies = frequencies

    def probe(
        self, q: torch.Tensor, lse: torch.Tensor, k: torch.Tensor, window: int, scale: float
    ) -> torch.Tensor:
        """Return `statistics.probe_scores` of all documents, [heads, pages.total].

        q, lse: the probe bank's; k: [kv_heads, T, D] of the packed sequence, not turned.
        """
        if takes_kernels(k):
            from sift_index.kernels import triton_probe_statistics as kernels

            return kernels.probe_scores(q, lse, k, self._probe_tables, window, scale)
        sections = self._packed.pages(self._page_size)
        return sections.join(
            statistics.probe_scores(q, lse, keys, window, self._page_size, scale)
            for rows in self._packed.rows
            for keys in [turn(k[:, rows], rows.start - rows.stop, self._frequencies)]
        )

    def local(
        self, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, window: int, scale: float
    ) -> torch.Tensor | None:
        """Return `statistics.local_scores` of long documents, [heads, triangles.total], or None.

        q: [heads, T, D]; k: [kv_heads, T, D]; lse: float32 [heads, T] of the packed sequence.
        """
        triangles = self._packed.triangles(self._dense_tiles)
        if not triangles.total:
            return None
        if takes_kernels(k):
            from sift_index.kernels import triton_local_statistics as kernels

            return kernels.local_scores(q, k, lse, self._local_tables, window, scale)
        return self._local_in_torch(triangles, q, k, lse, window, scale)

    def _local_in_torch(
        self,
        triangles: Sections,
        q: torch.Tensor,
        k: torch.Tensor,
        lse: torch.Tensor,
        window: int,
        scale: float,
    ) -> torch.Tensor:
        long = zip(self._packed.rows, triangles.counts, strict=True)
        return triangles.join(
            statistics.local_scores(
                q[:, rows], k[:, rows], lse[:, rows], window, self._page_size, scale
            )
            for rows, count in long
            if count
        )

    @cached_property
    def _probe_tables(self) -> "ProbeTables":
        from sift_index.kernels.triton_probe_statistics import probe_tables

        return probe_tables(self._packed, self._page_size, self._frequencies)

    @cached_property
    def _local_tables(self) -> "LocalTables":
        from sift_index.kernels.triton_local_statistics import local_tables

        return local_tables(
            self._packed, self._dense_tiles, self._page_size, self._frequencies.device
        )


def takes_kernels(k: torch.Tensor) -> bool:
    """Whether the Triton kernels run for keys of this device and shape."""
    return (
        k.device.type == "cuda"
        and k.shape[2] in TRITON_HEAD_DIMS
        and find_spec("triton") is not None
    )
