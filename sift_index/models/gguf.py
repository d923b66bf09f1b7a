"""The demo model: a GGUF file shipped inside a Python package, converted once to safetensors.

Reading GGUF takes about 12 seconds each time, the converted copy about one. The package itself is
never imported: importing it would start an inference engine this project does not use.
"""

import copy
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from sift_index.environment import cache_directory
from sift_index.errors import ModelError
from sift_index.models.presets import ModelPreset


def converted_model(preset: ModelPreset) -> Path:
    """Return a folder with the preset's model as safetensors, converting it on first use."""
    source = _gguf_file(preset)
    target = cache_directory() / "models" / f"{preset.name}-{source.stat().st_size}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        _convert(source, target)
    return target


def is_installed(preset: ModelPreset) -> bool:
    """Say whether the package that carries the preset's file is installed."""
    return importlib.util.find_spec(preset.source.package) is not None


def _gguf_file(preset: ModelPreset) -> Path:
    spec = importlib.util.find_spec(preset.source.package)
    if spec is None or spec.origin is None:
        raise ModelError(
            f"model '{preset.name}' needs the package {preset.source.package}, which is not "
            f"installed; run: {preset.source.install}"
        )
    path = Path(spec.origin).parent / preset.source.file
    if not path.is_file():
        raise ModelError(
            f"expected {preset.source.file} in package {preset.source.package}, found no such "
            f"file; run: {preset.source.install}"
        )
    return path


def _convert(source: Path, target: Path) -> None:
    """Write into a temporary folder and rename it, so that a half copy is never used."""
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    except ImportError as missing:
        raise ModelError(
            f"reading {source.name} needs the packages gguf and accelerate ({missing}); "
            "run: pip install 'sift-index[demo]'"
        ) from missing
    from transformers import AutoModelForCausalLM, AutoTokenizer

    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=".converting-"))
    try:
        options = {"gguf_file": source.name, "local_files_only": True}
        model = AutoModelForCausalLM.from_pretrained(source.parent, dtype="float32", **options)
        _plain_copy(model).save_pretrained(scratch)
        AutoTokenizer.from_pretrained(source.parent, **options).save_pretrained(scratch)
        _rename(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _plain_copy(model: Any) -> Any:
    """Return the same weights in an ordinary model: one marked as GGUF refuses to be saved."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    return plain


def _rename(scratch: Path, target: Path) -> None:
    try:
        scratch.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise another process finished first: use its copy
            raise
