"""Public name of the error tree; the classes live in the lowest layer, `sift_index.formats`."""

from sift_index.formats.errors import (
    BuildError,
    CommitConflictError,
    CorpusError,
    DocumentError,
    FeatureError,
    FingerprintMismatchError,
    FormatError,
    IndexNotFoundError,
    IntegrityError,
    ModelError,
    PlanError,
    SiftError,
    SiftWarning,
    TargetNotMetError,
    UnsupportedModelError,
    UsageError,
)

__all__ = [
    "BuildError",
    "CommitConflictError",
    "CorpusError",
    "DocumentError",
    "FeatureError",
    "FingerprintMismatchError",
    "FormatError",
    "IndexNotFoundError",
    "IntegrityError",
    "ModelError",
    "PlanError",
    "SiftError",
    "SiftWarning",
    "TargetNotMetError",
    "UnsupportedModelError",
    "UsageError",
]
