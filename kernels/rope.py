"""Turning keys to another position: rotary embeddings applied as a pure rotation.

Keys arrive already rotated (and, under YaRN, already scaled), so they are turned with the bare
inverse frequencies: an attention scaling factor must not enter twice.
"""

import torch


def turn(keys: torch.Tensor, positions: int, inverse_frequencies: torch.Tensor) -> torch.Tensor:
    """Turn rotated keys by `positions` (negative = back), in float32.

    keys: [..., D]; inverse_frequencies: [R / 2] where the first R of D dimensions are rotary,
    in the half-split convention. Dimensions behind R are returned as they are.
    """
    keys = keys.float()
    angle = inverse_frequencies.to(keys.device, torch.float64) * positions
    cos, sin = angle.cos().float(), angle.sin().float()
    half = inverse_frequencies.shape[-1]
    first, second, rest = keys[..., :half], keys[..., half : 2 * half], keys[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
