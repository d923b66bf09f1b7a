"""Measured quality of a policy: what a policy file and an index say about it, checked on reading.

An entry holds for one model and one set of data. It is no part of the policy itself: the same
masks come out whatever was measured about them.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

from sift_index.errors import UsageError

Quality = Mapping[str, Any]


def quality_entries(value: object, where: str) -> tuple[Quality, ...]:
    """Return the `quality` block of a policy file: a list of entries, none where there is no block.

    An entry is {model, data, prompts, kl, kl_low, kl_high, top1, top1_low, top1_high, ca_density,
    density, date}: KL in nats; top-1 and densities are shares; `_low` and `_high` are the bounds of
    95 % bootstrap intervals over prompts. Raises UsageError naming the field.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise UsageError(
            f"{where}: expected quality as a list of measurements, found {str(value)[:60]!r}; run "
            "`sift-index tune`, which writes it, or leave it out"
        )
    return tuple(_entry(entry, f"{where}: quality[{i}]") for i, entry in enumerate(value))


def quality_for(entries: Sequence[Quality], model: str) -> Quality | None:
    """Return the first entry measured on `model`, or None."""
    return next((entry for entry in entries if entry["model"] == model), None)


def quality_line(quality: Quality | None) -> str:
    """Return an index's quality as one line for people."""
    if quality is None:
        return "not measured"
    try:
        (entry,) = quality_entries([dict(quality)], "quality")
    except UsageError:  # another writer may record other fields
        return ", ".join(f"{name}={value}" for name, value in quality.items())
    return (
        f"KL {entry['kl']:.3g} [{entry['kl_low']:.3g}, {entry['kl_high']:.3g}], "
        f"top-1 {entry['top1']:.3f} [{entry['top1_low']:.3f}, {entry['top1_high']:.3f}] "
        f"at CA density {entry['ca_density']:.2f} on {entry['prompts']} prompts of "
        f"{entry['data']} ({entry['model']}, {entry['date']})"
    )


def _entry(values: dict[str, Any], where: str) -> Quality:
    for name in (*_CHECKS, *values):
        if name not in values:
            raise UsageError(f"{where}: field {name} is missing; run `sift-index tune` again")
        if name not in _CHECKS:
            raise UsageError(f"{where}: unknown field {name}; known are {', '.join(_CHECKS)}")
    return {name: _checked(values[name], f"{where}: {name}", name) for name in _CHECKS}


def _checked(value: object, where: str, name: str) -> Any:
    wanted, convert = _CHECKS[name]
    found = convert(value)
    if found is None:
        raise UsageError(f"{where}: expected {wanted}, found {value!r}")
    return found


def _text(value: object) -> str | None:
    # YAML reads a bare date as one.
    found = value.isoformat() if isinstance(value, date) else value
    return found if isinstance(found, str) and found.strip() else None


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def _number(value: object, most: float) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= most else None


_NATS = ("a number of nats from 0", lambda value: _number(value, 1e6))
_SHARE = ("a share of 0 to 1", lambda value: _number(value, 1.0))
_CHECKS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "model": ("a model's name", _text),
    "data": ("the name of the data", _text),
    "prompts": ("a whole number from 1", _count),
    **dict.fromkeys(("kl", "kl_low", "kl_high"), _NATS),
    **dict.fromkeys(("top1", "top1_low", "top1_high", "ca_density", "density"), _SHARE),
    "date": ("a date as text", _text),
}
