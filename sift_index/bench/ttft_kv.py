"""Stored KV of a prompt's documents, and loading it layer by layer while the model computes.

As favourable to reuse as a store can be: one contiguous block for each layer, keys already turned
to their places in this prompt, nothing looked up, and loading never waits for computing.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from sift_index.bench.ttft_laps import LOAD, WAIT, Laps
from sift_index.models.geometry import ModelGeometry

# O_DIRECT moves whole blocks of a disk, to memory that begins at one.
BLOCK = 4096


class HostKV:
    """K and V of T document tokens in host memory, pinned where there is a GPU.

    blocks: uint8 [bytes] for each layer, aligned and padded to `BLOCK`. layers: the same memory as
    [2, T, kv_heads, D].
    """

    def __init__(self, shape: ModelGeometry, tokens: int, dtype: torch.dtype, pinned: bool) -> None:
        sizes = (2, tokens, shape.kv_heads, shape.head_dim)
        used = shape.kv_bytes(tokens, dtype.itemsize) // shape.layers
        self.blocks = [_aligned(-(-used // BLOCK) * BLOCK, pinned) for _ in range(shape.layers)]
        self.layers = [block[:used].view(dtype).view(sizes) for block in self.blocks]
        self.tokens = tokens

    @property
    def nbytes(self) -> int:
        """Bytes of K and V, without padding."""
        return sum(layer.nbytes for layer in self.layers)

    def fill(self, device: torch.device, seed: int = 0) -> None:
        """Write random numbers, made on the device: a host takes minutes for them."""
        generator = torch.Generator(device).manual_seed(seed)
        for layer in self.layers:
            for part in layer:
                options = {"generator": generator, "device": device, "dtype": part.dtype}
                part.copy_(torch.randn(part.shape, **options))


def _aligned(size: int, pinned: bool) -> torch.Tensor:
    raw = torch.empty(size + BLOCK, dtype=torch.uint8, pin_memory=pinned)
    offset = -raw.data_ptr() % BLOCK
    return raw[offset : offset + size]


class Source(Protocol):
    """Where stored KV comes from."""

    kv: HostKV

    def begin(self) -> None:
        """Start reading all layers in order, from the place where they lie at rest."""

    def read(self, layer: int) -> None:
        """Return once a layer is in host memory."""


class InMemory:
    """KV that lies in host memory."""

    def __init__(self, kv: HostKV) -> None:
        self.kv = kv

    def begin(self) -> None:
        """Nothing is read ahead."""

    def read(self, layer: int) -> None:
        """It is there."""


class Loading:
    """One load of all layers to the device, in order, beside whatever it computes.

    keys, values: [tokens, kv_heads, D] for each layer, stored tokens at [start, start + T). Rows of
    other tokens are left to whoever computes them.
    """

    def __init__(
        self, source: Source, tokens: int, start: int, device: torch.device, laps: Laps
    ) -> None:
        self._source, self._start, self._laps = source, start, laps
        first = source.kv.layers[0]
        sizes = (tokens, *first.shape[2:])

        def room() -> list[torch.Tensor]:
            count = len(source.kv.layers)
            return [torch.empty(sizes, dtype=first.dtype, device=device) for _ in range(count)]

        self.keys, self.values = room(), room()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self._stream is not None:  # the memory may have been somebody else's a moment ago
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._pool = ThreadPoolExecutor(1)
        source.begin()
        layers = range(len(source.kv.layers))
        self._loaded: Sequence[Future[Any]] = [self._pool.submit(self._load, n) for n in layers]

    def wait(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a layer's keys and values; what the device does next waits until they are there.

        Raises whatever reading them raised.
        """
        with self._laps.lap(WAIT):
            event = self._loaded[layer].result()
            if event is not None:
                event.wait()
        return self.keys[layer], self.values[layer]

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown(cancel_futures=True)

    def _load(self, layer: int) -> Any:
        """Copy one layer; return the event behind it, None where copying is done already."""
        stored = slice(self._start, self._start + self._source.kv.tokens)
        with self._beside(), self._laps.lap(LOAD):
            self._source.read(layer)
            for target, part in zip(
                (self.keys, self.values), self._source.kv.layers[layer], strict=True
            ):
                target[layer][stored].copy_(part, non_blocking=True)
        return None if self._stream is None else self._stream.record_event()

    def _beside(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
