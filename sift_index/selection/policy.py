"""Policies: the rule and the numbers that turn attention statistics into masks."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from sift_index import configs
from sift_index.errors import UsageError
from sift_index.formats.presence import is_regular
from sift_index.selection.quality import Quality, quality_entries

BUILTIN = "builtin"
CORPUS = "corpus"
PAGE_SIZES = (8, 16, 32, 64, 128)
WINDOWS = (1, 2, 4, 8, 16, 32, 64, 128)
BOUNDARIES = (0, 64, 128, 256, 512)


@dataclass(frozen=True)
class ProbePolicy:
    """Pages and tiles by what foreign text, and the document itself, attend to (DESIGN section 3).

    Thresholds are mean attention probabilities per key, ascending: one gives 1-bit masks, two or
    three give 2-bit masks with nested levels. `window` and `la_window` are the query rows a
    probability is averaged over before the maximum is taken; 1 is the maximum over single rows.
    `head_weights` [layers][heads] multiply the CA statistic: a head whose output matters less needs
    a higher one (empty = 1 everywhere). `skip_last_layer` marks nothing in the last layer: what
    document rows attend to there reaches no later token. `boundary` keys in front of a document
    are seen by all rows of its first tile, whatever the bits say (rule 4; 0 = none). `probe_source`
    is `builtin`, a path of texts, or `corpus`, which those who read a corpus turn into a path.
    """

    rule: ClassVar[str] = "probe"
    page_size: int = 32
    window: int = 1
    ca_thresholds: tuple[float, ...] = (0.003,)
    la_window: int = 64
    la_thresholds: tuple[float, ...] = (0.0002,)
    la_dense_tiles: int = 8
    head_sharing: str = "query"
    head_weights: tuple[tuple[float, ...], ...] = ()
    skip_last_layer: bool = True
    boundary: int = 128
    probe_source: str = BUILTIN
    probe_rows: int = 1088
    probe_tokens: int = 1024

    def __post_init__(self) -> None:
        _one_of("page_size", self.page_size, PAGE_SIZES)
        _one_of("window", self.window, WINDOWS)
        _one_of("la_window", self.la_window, WINDOWS)
        _one_of("head_sharing", self.head_sharing, ("query", "kv"))
        _one_of("skip_last_layer", self.skip_last_layer, (True, False))
        _one_of("boundary", self.boundary, BOUNDARIES)
        _ascending("ca_thresholds", self.ca_thresholds)
        _ascending("la_thresholds", self.la_thresholds)
        _weights("head_weights", self.head_weights)
        _at_least("la_dense_tiles", self.la_dense_tiles, 0)
        _at_least("probe_rows", self.probe_rows, self.window)
        _at_least("probe_tokens", self.probe_tokens, self.window)
        if not isinstance(self.probe_source, str) or not self.probe_source:
            raise UsageError(
                f"expected probe_source 'builtin', 'corpus' or a path, found {self.probe_source!r}"
            )

    @property
    def levels(self) -> int:
        """Bits per mask entry: 1, or 2 when there is more than one threshold."""
        return 1 if max(len(self.ca_thresholds), len(self.la_thresholds)) == 1 else 2

    @property
    def ca_levels(self) -> tuple[float, ...]:
        """CA thresholds, one per level."""
        return self._per_level(self.ca_thresholds)

    @property
    def la_levels(self) -> tuple[float, ...]:
        """LA thresholds, one per level."""
        return self._per_level(self.la_thresholds)

    def _per_level(self, thresholds: tuple[float, ...]) -> tuple[float, ...]:
        """Repeat the last threshold where the other mask has more levels.

        Without it a mask of one threshold would be off at level 2 of the other mask.
        """
        missing = 2**self.levels - 1 - len(thresholds)
        return (*thresholds, *thresholds[-1:] * missing)


@dataclass(frozen=True)
class PaperPolicy:
    """The rule of arXiv 2606.09441 with its fixed thresholds, the baseline of comparisons.

    normalisation: rows a key's high scores are counted over. `earlier` divides by j + 1 for key j,
    as the prototype does; `remaining` by the K - j rows that can see it.
    """

    rule: ClassVar[str] = "paper"
    page_size: int = 128
    alpha: float = 0.001
    beta: float = 0.01
    gamma: float = 0.1
    normalisation: str = "earlier"

    def __post_init__(self) -> None:
        _one_of("page_size", self.page_size, (128,))
        _one_of("normalisation", self.normalisation, ("earlier", "remaining"))
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


@dataclass(frozen=True)
class PolicyFile:
    """What a policy file says: the policy, and entries of what was measured about it."""

    policy: Policy
    quality: tuple[Quality, ...] = ()


def load_policy(name: str) -> Policy:
    """Return the policy of `read_policy`."""
    return read_policy(name).policy


def read_policy(name: str) -> PolicyFile:
    """Return a packaged policy by name, or one from a YAML file, with its measured quality.

    A relative `probe_source` is meant from the file's folder (`./corpus` is a folder of that
    name). UsageError says what is wrong.
    """
    path = configs.resource("policies", f"{name}.yaml") if name in policy_names() else Path(name)
    if not is_regular(path):
        known = ", ".join(policy_names())
        raise UsageError(f"expected a policy ({known}) or a YAML file, found {name!r}")
    try:
        values = configs.load_yaml(path)
    except OSError as problem:
        raise UsageError(f"policy file {path} cannot be read: {problem}") from problem
    except ValueError as problem:
        raise UsageError(str(problem)) from problem
    quality = quality_entries(values.pop("quality", None), path.name)
    source = values.get("probe_source", BUILTIN)
    if isinstance(source, str) and source not in (BUILTIN, CORPUS):
        values["probe_source"] = str((path.parent / source).resolve())
    return PolicyFile(policy_from(values), quality)


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
    return kind(**{name: _frozen(value) for name, value in rest.items()})


def policy_values(policy: Policy) -> dict[str, Any]:
    """Return the policy as plain JSON values, for fingerprints; the inverse of `policy_from`."""
    values: dict[str, Any] = _plain({"rule": policy.rule, **asdict(policy)})
    return values


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


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


def _weights(name: str, values: object) -> None:
    """Accept nothing, or a table of layers x heads of finite numbers from zero."""
    rows = values if isinstance(values, tuple) else (None,)
    table = [row if isinstance(row, tuple) else () for row in rows]
    numbers = [number for row in table for number in row]
    right = all(type(number) is float and 0 <= number < float("inf") for number in numbers)
    if not right or any(not row or len(row) != len(table[0]) for row in table):
        raise UsageError(
            f"expected {name} as a list per layer of one decimal number from 0 per head (1.0, not "
            f"1), as `sift-index tune` writes it, found {str(values)[:60]}"
        )
