"""SIFT index: sparse RAG prefill from stored attention locations.

Names are imported on first use (PEP 562), so that `sift_index.formats` works without torch.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("sift-index")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

_EXPORTS: dict[str, str] = {
    "PromptWriter": "sift_index.prompts",
    "Segment": "sift_index.prompts",
    "SiftError": "sift_index.errors",
    "SiftIndex": "sift_index.runtime.index",
    "SiftWarning": "sift_index.errors",
    "batch_inputs": "sift_index.adapters.transformers",
    "compiled_pieces": "sift_index.adapters.compiled",
    "load_model": "sift_index.models.loading",
    "sift_attention": "sift_index.adapters.transformers",
    "sift_generate": "sift_index.adapters.transformers",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'sift_index' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
