"""The numbers of a model that shape its masks."""

from dataclasses import dataclass
from typing import Any

from sift_index.models.support import rope_parameters


@dataclass(frozen=True)
class ModelGeometry:
    """Architecture numbers: what an index must share with the model that serves it."""

    model_type: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    context: int

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    def kv_bytes(self, tokens: int, bytes_per_value: int = 2) -> int:
        """Return the size of the K and V tensors of `tokens` tokens (bf16 by default)."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value * tokens


def geometry_of(config: Any) -> ModelGeometry:
    """Read the geometry from a transformers config."""
    heads = int(config.num_attention_heads)
    return ModelGeometry(
        model_type=str(config.model_type),
        layers=int(config.num_hidden_layers),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        hidden_size=int(config.hidden_size),
        vocab_size=int(config.vocab_size),
        context=int(config.max_position_embeddings),
    )


def rope_identity(config: Any) -> dict[str, Any]:
    """Return the rotary parameters as plain JSON values, for the fingerprint.

    That all of a head is rotated is what a config without the factor says, so neither has it.
    """
    return {
        name: float(value) if isinstance(value, (int, float)) else value
        for name, value in sorted(rope_parameters(config).items())
        if isinstance(value, (str, int, float)) and (name, value) != ("partial_rotary_factor", 1)
    }
