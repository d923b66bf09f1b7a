"""Packaged data: model presets, policies, probe texts, the example corpus.

Data is read through `resource` and `load_yaml`, so that a wheel, an editable install and a
checkout all find the same files.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml


def resource(*parts: str) -> Path:
    """Return the path of a packaged file or folder, e.g. `resource("policies", "probe.yaml")`."""
    return Path(str(files(__name__).joinpath(*parts)))


def names(folder: str) -> list[str]:
    """Return the sorted stems of a folder's YAML files, e.g. `names("models")`."""
    return sorted(path.stem for path in resource(folder).glob("*.yaml"))


def load_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; anything else raises ValueError naming the file."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: expected a YAML mapping in UTF-8, found {problem}") from problem
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a YAML mapping, found {type(value).__name__}")
    return value
