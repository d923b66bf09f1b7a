"""Small corpora on disk."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file below tmp_path: bytes, text, or records as JSON Lines."""

    def _write(name: str, content: bytes | str | list[object]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(record) + "\n" for record in content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return _write
