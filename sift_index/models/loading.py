"""Loading a model by preset name, local folder or hub id, refusing what cannot be indexed."""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch

from sift_index.errors import ModelError, UsageError
from sift_index.formats.presence import is_folder, resolved
from sift_index.models.geometry import ModelGeometry, geometry_of
from sift_index.models.gguf import converted_model
from sift_index.models.presets import PromptTemplate, load_preset, preset_names
from sift_index.models.support import check_supported
from sift_index.models.templates import default_template

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, its tokenizer and the texts around documents."""

    name: str
    model: Any
    tokenizer: Any
    prompt: PromptTemplate

    @property
    def geometry(self) -> ModelGeometry:
        """Architecture numbers of the model."""
        return geometry_of(self.model.config)

    @property
    def device(self) -> torch.device:
        """Device of the model's first parameter."""
        device: torch.device = next(self.model.parameters()).device
        return device


@dataclass(frozen=True)
class ModelReference:
    """What `--model` names: `location` is a folder or hub id, `context` the tokens it can take."""

    name: str
    location: str
    prompt: PromptTemplate | None
    context: int | None


def resolve_model(name: str) -> ModelReference:
    """Turn a preset name, local folder or hub id into a place transformers can load from."""
    if name in preset_names():
        preset = load_preset(name)
        gguf = preset.source.kind == "gguf-package"
        location = str(converted_model(preset)) if gguf else preset.source.repo
        return ModelReference(name, location, preset.prompt, preset.context)
    if is_folder(name) or (name.count("/") == 1 and not name.startswith((".", "/", "~"))):
        return ModelReference(name, name, None, None)
    close = get_close_matches(name, preset_names(), n=1)
    raise UsageError(
        f"expected a preset ({', '.join(preset_names())}), a local folder or a hub id "
        f"(owner/name), found {name!r}{f'; did you mean {close[0]}?' if close else ''}"
    )


def model_label(name: str) -> str:
    """Return what measurements call a model: a local folder by its base name, others as they are.

    Where a folder lies means nothing on another machine.
    """
    local = name not in preset_names() and is_folder(name)
    return resolved(name).name if local else name


def load_tokenizer(name: str) -> tuple[Any, PromptTemplate]:
    """Load only a model's tokenizer and the texts around its documents."""
    reference = resolve_model(name)
    tokenizer = _guard(name, lambda: _auto().AutoTokenizer.from_pretrained(reference.location))
    return tokenizer, reference.prompt or default_template(tokenizer)


def load_config(name: str) -> Any:
    """Load a model's config and refuse what cannot be indexed (UnsupportedModelError)."""
    reference = resolve_model(name)
    config = _guard(name, lambda: _auto().AutoConfig.from_pretrained(reference.location))
    check_supported(config)
    return config


def load_model(name: str, dtype: str = "auto", device: str = "auto") -> LoadedModel:
    """Load a model for indexing or serving.

    `device` is auto (CUDA when present), cpu or cuda[:n]; `dtype` is auto (bfloat16 on CUDA,
    float32 on CPU), float32, bfloat16 or float16. Raises UnsupportedModelError, ModelError.
    """
    load_config(name)
    reference = resolve_model(name)
    place = resolve_device(device)
    kind = resolve_dtype(dtype, place)
    model = _guard(name, lambda: _load_weights(reference.location, kind))
    tokenizer, prompt = load_tokenizer(name)
    return LoadedModel(name, model.to(place).eval(), tokenizer, prompt)


def resolve_device(device: str) -> torch.device:
    """Turn `auto`, `cpu` or `cuda[:n]` into a device that exists here, or raise UsageError."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place: torch.device | None = torch.device(device)
    except RuntimeError:
        place = None
    if place is None or place.type not in ("cpu", "cuda"):
        raise UsageError(f"expected auto, cpu or cuda[:n] as device, found {device!r}")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda was asked for, but torch sees no GPU; use --device cpu")
    return place


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Turn `auto` or a dtype name into a torch dtype, or raise UsageError."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise UsageError(f"expected a dtype of auto, {', '.join(DTYPES)}, found {dtype!r}")
    return DTYPES[dtype]


def _load_weights(location: str, dtype: torch.dtype) -> Any:
    """Load a causal language model; transformers would fill what a checkpoint lacks at random."""
    loader = _auto().AutoModelForCausalLM
    model, report = loader.from_pretrained(location, dtype=dtype, output_loading_info=True)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"the checkpoint lacks {len(missing)} of its tensors, first {missing[0]}")
    return model


def _auto() -> Any:
    import transformers

    return transformers


def _guard(name: str, load: Any) -> Any:
    """Run a transformers loader; its many failure types become one ModelError with a hint."""
    try:
        return load()
    except Exception as problem:  # loaders of configs, weights and tokenizers share no base class
        first = str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem)
        raise ModelError(
            f"model {name!r} cannot be loaded: {first}. Expected a folder or hub repository that "
            "transformers can read; check the name, the licence you accepted and the network"
        ) from problem
