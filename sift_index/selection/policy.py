"""Policies: the rule and the numbers that turn attention statistics into masks."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from sift_index import configs
from sift_index.errors import UsageError

BUILTIN = "builtin"
PAGE_SIZES = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class ProbePolicy:
    """Pages and tiles by what foreign text, and the document itself, attend to (DESIGN section 3).

    Thresholds are mean attention probabilities per key, ascending: one gives 1-bit masks, two or
    three give 2-bit masks with nested levels.
    """

    rule: ClassVar[str] = "probe"
    page_size: int = 32
    window: int = 64
    ca_thresholds: tuple[float, ...] = (0.001,)
    la_thresholds: tuple[float, ...] = (0.0002,)
    la_dense_tiles: int = 8
    head_sharing: str = "query"
    probe_source: str = BUILTIN
    probe_rows: int = 1088
    probe_tokens: int = 1024

    def __post_init__(self) -> None:
        _one_of("page_size", self.page_size, PAGE_SIZES)
        _one_of("window", self.window, (16, 32, 64, 128))
        _one_of("head_sharing", self.head_sharing, ("query", "kv"))
        _ascending("ca_thresholds", self.ca_thresholds)
        _ascending("la_thresholds", self.la_thresholds)
        _at_least("la_dense_tiles", self.la_dense_tiles, 0)
        _at_least("probe_rows", self.probe_rows, self.window)
        _at_least("probe_tokens", self.probe_tokens, self.window)
        if not isinstance(self.probe_source, str) or not self.probe_source:
            raise UsageError(
                f"expected probe_source 'builtin' or a path, found {self.probe_source!r}"
            )

    @property
    def levels(self) -> int:
        """Bits per mask entry: 1, or 2 when there is more than one threshold."""
        return 1 if max(len(self.ca_thresholds), len(self.la_thresholds)) == 1 else 2

    def level_thresholds(self, thresholds: tuple[float, ...]) -> tuple[float, ...]:
        """Return one threshold per level, the last one repeated where fewer were given.

        Without it a mask of one threshold would be off at level 2 of the other mask.
        """
        missing = 2**self.levels - 1 - len(thresholds)
        return (*thresholds, *thresholds[-1:] * missing)


@dataclass(frozen=True)
class PaperPolicy:
    """The rule of arXiv 2606.09441 with its fixed thresholds, the baseline of comparisons."""

    rule: ClassVar[str] = "paper"
    page_size: int = 128
    alpha: float = 0.001
    beta: float = 0.01
    gamma: float = 0.1

    def __post_init__(self) -> None:
        _one_of("page_size", self.page_size, (128,))
        for name in ("alpha", "beta", "gamma"):
            _probability(name, getattr(self, name))

    @property
    def levels(self) -> int:
        """Bits per mask entry."""
        return 1


Policy = ProbePolicy | PaperPolicy
_RULES: dict[str, type[ProbePolicy] | type[PaperPolicy]] = {
    policy.rule: policy for policy in (ProbePolicy, PaperPolicy)
}


def policy_names() -> list[str]:
    """Return the names of the packaged policies."""
    return configs.names("policies")


def load_policy(name: str) -> Policy:
    """Return a packaged policy by name, or one from a YAML file.

    A relative `probe_source` is meant from the file's folder. UsageError says what is wrong.
    """
    path = configs.resource("policies", f"{name}.yaml") if name in policy_names() else Path(name)
    if not path.is_file():
        known = ", ".join(policy_names())
        raise UsageError(f"expected a policy ({known}) or a YAML file, found {name!r}")
    try:
        values = configs.load_yaml(path)
    except ValueError as problem:
        raise UsageError(str(problem)) from problem
    source = values.get("probe_source", BUILTIN)
    if isinstance(source, str) and source != BUILTIN:
        values["probe_source"] = str((path.parent / source).resolve())
    return policy_from(values)


def policy_from(values: dict[str, Any]) -> Policy:
    """Build a policy from plain values; unknown rules and fields are refused by name."""
    rest = dict(values)
    rule = rest.pop("rule", None)
    if not isinstance(rule, str) or rule not in _RULES:
        raise UsageError(f"expected a policy rule of {', '.join(_RULES)}, found {rule!r}")
    kind = _RULES[rule]
    known = {field.name for field in fields(kind)}
    if unknown := sorted(str(name) for name in rest if name not in known):
        raise UsageError(
            f"policy rule '{rule}' has no field {', '.join(unknown)}; "
            f"it has {', '.join(sorted(known))}"
        )
    arguments: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()
    }
    return kind(**arguments)


def policy_values(policy: Policy) -> dict[str, Any]:
    """Return the policy as plain JSON values, for fingerprints; the inverse of `policy_from`."""
    values = {"rule": policy.rule, **asdict(policy)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    # Equal is not enough: 32.0 and True would pass and be recorded as other values.
    if value not in allowed or type(value) is not type(allowed[0]):
        raise UsageError(f"expected {name} of {', '.join(map(str, allowed))}, found {value!r}")


def _at_least(name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise UsageError(f"expected {name} as a whole number from {least}, found {value!r}")


def _is_probability(value: object) -> bool:
    return isinstance(value, float) and 0 < value < 1


def _probability(name: str, value: object) -> None:
    if not _is_probability(value):
        raise UsageError(f"expected {name} as a probability between 0 and 1, found {value!r}")


def _ascending(name: str, values: object) -> None:
    numbers = isinstance(values, tuple) and all(_is_probability(value) for value in values)
    if not (isinstance(values, tuple) and numbers and 1 <= len(values) <= 3) or (
        sorted(values) != list(values)
    ):
        shown = list(values) if isinstance(values, tuple) else values
        raise UsageError(
            f"expected {name} as a list of one to three ascending probabilities between 0 and 1, "
            f"found {shown!r}"
        )
