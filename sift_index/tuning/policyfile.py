"""Writing a tuned policy: a YAML file that says how it was made and what was measured."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from sift_index import outputs
from sift_index.errors import UsageError
from sift_index.formats.presence import is_folder, is_there
from sift_index.selection.policy import Policy, policy_values
from sift_index.selection.quality import Quality

COLUMNS = 96
ADVICE = "give another --out"


def require_writable(path: Path, force: bool = False) -> None:
    """Raise UsageError when a policy file cannot be written at `path`; creates nothing.

    An existing file is refused unless `force`.
    """
    if is_folder(path):
        raise UsageError(f"expected a file to write the policy to, found the folder {path}")
    if is_there(path) and not force:
        raise UsageError(
            f"expected a new file for the policy, found {path}; give another --out, or --force "
            "to replace it"
        )
    outputs.require_writable(path, ADVICE)


def write_policy(
    path: Path, policy: Policy, quality: Sequence[Quality], notes: Sequence[str]
) -> None:
    """Write a policy with its quality; `notes` are comments on top. A file there is replaced whole.

    Raises UsageError when it cannot be written.
    """
    outputs.write_whole(path, policy_text(policy, quality, notes), ADVICE)


def policy_text(policy: Policy, quality: Sequence[Quality], notes: Sequence[str]) -> str:
    """Return the file: comments, the policy's fields, and a `quality` block of measurements."""
    comments = [f"# {line}\n" for note in notes for line in textwrap.wrap(note, COLUMNS)]
    values = {name: value for name, value in policy_values(policy).items() if value != []}
    block = {"quality": [dict(entry) for entry in quality]}
    # Flow style (None) for the innermost lists only: one list of numbers per layer of head weights.
    return "".join([*comments, _yaml(values, None), _yaml(block, False)])


def _yaml(values: dict[str, Any], flow: bool | None) -> str:
    text: str = yaml.safe_dump(
        values, sort_keys=False, allow_unicode=True, width=COLUMNS, default_flow_style=flow
    )
    return text
