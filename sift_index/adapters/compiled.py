"""A model whose pointwise parts are compiled for a while; attention stays what it is.

    with compiled_pieces(model):
        model(input_ids)

In a prefill that skips most of attention, norms, activations and rotary embeddings are the part
that eager PyTorch makes slow: each of their operations reads and writes all rows again. Works
around dense calls and around `sift_attention`, so that both sides of a comparison run the same
pieces.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from sift_index.adapters.blocks import Blocks
from sift_index.adapters.compiled_pieces import (
    is_gated_mlp,
    is_norm,
    is_pre_norm_layer,
    layer_forward,
    mlp_forward,
    norm_forward,
    rotary_function,
)
from sift_index.models.support import check_supported

ROTARY = "apply_rotary_pos_emb"
# In the order in which a module is asked what it is.
KINDS = ((is_norm, norm_forward), (is_gated_mlp, mlp_forward), (is_pre_norm_layer, layer_forward))


@dataclass(frozen=True)
class _Block:
    """A `with` block: `id` of its model, the module that defines the model's class, backend."""

    model: int
    file: str
    backend: str


_active: Blocks[_Block] = Blocks("sift_compiled")


@dataclass
class _Swapped:
    """What undoes the exchange of one model's or file's functions, and how many asked for it."""

    users: int = 0
    undo: list[Callable[[], None]] = field(default_factory=list)


_models: "WeakKeyDictionary[torch.nn.Module, _Swapped]" = WeakKeyDictionary()
_files: dict[str, _Swapped] = {}
_lock = threading.Lock()


@contextmanager
def compiled_pieces(model: Any, backend: str = "inductor") -> Iterator[None]:
    """Run a model's pointwise parts compiled in this thread, inside the `with` block.

    These are RMSNorms, activation times product of dense MLPs, rotary embeddings and, in pre-norm
    layers, the residual add behind attention. Experts of MoE models stay as they are, as does a
    module whose forward somebody else has replaced. The first call compiles for seconds; later
    ones, of any prompt length, of this model and of others of its type and shape, do not. Calls
    with gradients and calls of a single row, as in decoding, run the model's own code. backend: of
    torch.compile; "inductor" needs a C++ compiler on CPUs. Raises UnsupportedModelError.
    """
    check_supported(model.config)
    name = type(model).__module__
    with _lock:
        swaps = [_models.setdefault(model, _Swapped()), _files.setdefault(name, _Swapped())]
        for swapped, swap in zip(swaps, (_swap_modules, _swap_rotary), strict=True):
            if not swapped.users:
                swapped.undo = swap(model)
            swapped.users += 1
    try:
        with _active.entered(_Block(id(model), name, backend)):
            yield
    finally:
        with _lock:
            for swapped in swaps:
                _leave(swapped)


def _leave(swapped: _Swapped) -> None:
    swapped.users -= 1
    if not swapped.users:
        for undo in swapped.undo:
            undo()
        swapped.undo = []


def _swap_modules(model: Any) -> list[Callable[[], None]]:
    """Replace the forward of all modules that are pieces; return what puts them back."""
    undo: list[Callable[[], None]] = []
    key = id(model)

    def backend() -> str | None:
        return next((b.backend for b in _active.innermost_first() if b.model == key), None)

    for module in model.modules():
        make = next((make for is_kind, make in KINDS if is_kind(module)), None)
        if make is not None and "forward" not in vars(module):
            module.forward = make(module, backend)
            undo.append(lambda module=module: delattr(module, "forward"))  # type: ignore[misc]
    return undo


def _swap_rotary(model: Any) -> list[Callable[[], None]]:
    """Replace the function that rotates q and k, which all models of this type share."""
    name = type(model).__module__
    file = sys.modules[name]
    original = getattr(file, ROTARY, None)
    if original is None:
        return []

    def backend() -> str | None:
        return next((b.backend for b in _active.innermost_first() if b.file == name), None)

    setattr(file, ROTARY, rotary_function(original, backend))
    return [lambda: setattr(file, ROTARY, original)]
