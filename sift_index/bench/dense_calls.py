"""Dense causal attention as other libraries compute it, all called in one way.

q: [heads, R, D]; k, v: [kv_heads, R, D].
"""

from collections.abc import Callable
from importlib import import_module

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sift_index.kernels import varlen

# Returns [heads, R, D] for q, k, v and a scale, None for 1 / sqrt(D).
Dense = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float | None], torch.Tensor]


def fa3() -> Dense:
    """Return FlashAttention-3's attention. Raises ImportError where it is not installed."""
    attend = import_module(varlen.FA3_MODULE).flash_attn_func

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        rows = (x.transpose(0, 1)[None] for x in (q, k, v))
        found = attend(*rows, causal=True, softmax_scale=scale)
        # Some versions return the log-sum-exp too.
        out: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return out[0].transpose(0, 1)

    return attention


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Attend through cuDNN."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=True
        )[0]
