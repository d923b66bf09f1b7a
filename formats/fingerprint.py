"""What must match between index, build and model, in three grades.

*build*: everything that shapes masks; needed to append. *serve*: what makes masks fit a model;
needed to load. *advisory*: what may move quality; warned about, and refused when strict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sift_index.formats.canonical import canonical_bytes, digest
from sift_index.formats.errors import FingerprintMismatchError
from sift_index.formats.fields import Fields

# A checkpoint that says it is another dtype or quantisation of the same model has other weight
# bytes by nature; only then is a different weight digest not a different model.
_WEIGHTS = "weights"
_REPACKED = ("dtype", "quantisation")
_ABSENT = object()


@dataclass(frozen=True)
class Fingerprint:
    """Three maps of JSON values, nested as deep as canonical JSON allows.

    Raises UsageError (from the digests) for values that are no JSON.
    """

    build: Mapping[str, Any]
    serve: Mapping[str, Any]
    advisory: Mapping[str, Any] = field(default_factory=dict)

    @property
    def build_digest(self) -> str:
        """BLAKE2b-128 of the build grade's canonical JSON, 32 hex digits."""
        return digest(dict(self.build))

    @property
    def serve_digest(self) -> str:
        """BLAKE2b-128 of the serve grade's canonical JSON, 32 hex digits."""
        return digest(dict(self.serve))

    def to_json(self) -> dict[str, Any]:
        """Return the three grades as JSON values."""
        return {
            "build": dict(self.build),
            "serve": dict(self.serve),
            "advisory": dict(self.advisory),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Fingerprint:
        """Read the grades back; raise IntegrityError when one is missing."""
        return cls(fields.mapping("build"), fields.mapping("serve"), fields.mapping("advisory"))


def differences(
    expected: Mapping[str, Any],
    found: Mapping[str, Any],
    grade: str = "serve",
    sides: tuple[str, str] = ("index", "model"),
) -> list[str]:
    """Return one line a differing leaf: 'serve.layers: index has 32, model has 30'.

    Values are compared by their canonical JSON, so 1 and 1.0 differ as their digests do.
    """
    return [
        f"{name}: {sides[0]} has {_show(left)}, {sides[1]} has {_show(right)}"
        for name, left, right in _leaves(grade, expected, found)
    ]


def require_same_build(index: Fingerprint, wanted: Fingerprint) -> None:
    """Raise FingerprintMismatchError listing every differing build field."""
    lines = differences(index.build, wanted.build, "build", ("index", "this build"))
    if lines:
        advice = "use the configuration of the index, or build into another folder"
        raise _mismatch("the index was built with other settings", lines, advice)


def check_serve(index: Fingerprint, model: Fingerprint, strict: bool = False) -> list[str]:
    """Return advisory warnings, one line a field, if the index can serve this model.

    Raises FingerprintMismatchError listing every differing serve field; when only the weights
    differ and the model declares another dtype or quantisation, that is a warning. `strict`
    raises for warnings too.
    """
    serve = differences(index.serve, model.serve, "serve")
    warnings = differences(index.advisory, model.advisory, "advisory")
    if serve and _is_repacked(index, model):
        serve, warnings = [], serve + warnings
    if serve:
        advice = "load the model the index was built for, or build an index for this one"
        raise _mismatch("the index does not fit this model", serve, advice)
    if strict and warnings:
        advice = "make them equal, or drop --strict to serve with warnings"
        raise _mismatch("strict: advisory fields differ", warnings, advice)
    return warnings


def _is_repacked(index: Fingerprint, model: Fingerprint) -> bool:
    differing = {name.split(".")[1] for name, _, _ in _leaves("serve", index.serve, model.serve)}
    declared = {name.split(".")[1] for name, _, _ in _leaves("a", index.advisory, model.advisory)}
    return differing == {_WEIGHTS} and not declared.isdisjoint(_REPACKED)


def _leaves(name: str, left: object, right: object) -> list[tuple[str, object, object]]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        fields = sorted({*left, *right})
        pairs = [(f, left.get(f, _ABSENT), right.get(f, _ABSENT)) for f in fields]
        return [leaf for f, a, b in pairs for leaf in _leaves(f"{name}.{f}", a, b)]
    return [] if _same(left, right) else [(name, left, right)]


def _same(left: object, right: object) -> bool:
    if left is _ABSENT or right is _ABSENT:
        return left is right
    return canonical_bytes(left) == canonical_bytes(right)


def _show(value: object) -> str:
    return "nothing" if value is _ABSENT else f"{value!r:.120}"


def _mismatch(what: str, lines: list[str], advice: str) -> FingerprintMismatchError:
    listed = "".join(f"\n  {line}" for line in lines)
    return FingerprintMismatchError(f"{what}; {advice}:{listed}")
