"""Extraction never holds an L x L tensor: every tensor PyTorch makes is measured."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sift_index.kernels.api import TILE
from sift_index.selection.extractor import Extractor
from sift_index.selection.policy import PaperPolicy, ProbePolicy
from tests.attention import eager
from tests.plans import loaded, tiny, tokens
from tests.selection.observed import write_probes

LENGTH, HEADS = 3000, 4
SQUARE = LENGTH * LENGTH  # one head's scores; all heads at once would be four times as much
ROWS_OF_A_TILE = HEADS * TILE * (LENGTH + 100)


class Largest(TorchDispatchMode):
    """Remembers the largest number of elements any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        out = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return out


def largest_of(policy: ProbePolicy | PaperPolicy) -> int:
    extractor = Extractor(loaded(tiny("llama")), policy, tokens(11))
    with Largest() as largest:
        masks = extractor.extract(tokens(LENGTH))
    assert masks.la is not None
    return largest.numel


def test_the_probe_rule(tmp_path):
    policy = ProbePolicy(probe_source=write_probes(tmp_path / "p", (1100, 1100)))
    assert ROWS_OF_A_TILE / 2 < largest_of(policy) <= ROWS_OF_A_TILE < SQUARE / 4


def test_the_paper_rule():
    assert largest_of(PaperPolicy()) <= ROWS_OF_A_TILE


def test_the_measurement_sees_full_attention():
    model = tiny("llama")
    with Largest() as largest, torch.inference_mode(), eager(model):
        model(torch.tensor([tokens(600)]), use_cache=False)
    assert largest.numel >= HEADS * 600 * 600
