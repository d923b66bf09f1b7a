"""How large a model is, known from its config alone: no weights are read and no memory is used."""

from typing import Any

import torch


def parameter_count(config: Any) -> int:
    """Return the number of parameters of a model with this config; tied ones count once."""
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())
