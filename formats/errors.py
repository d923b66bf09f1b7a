"""The one error tree of the project.

It lives in the lowest layer so that every folder can raise from it; `sift_index.errors` is the
public name. A message says what was expected, what was found and what to do about it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


class SiftError(Exception):
    """Base of every error this project raises on purpose.

    `details` are JSON values that say the same as the message, and more, to a program.
    """

    details: Mapping[str, Any] = MappingProxyType({})


class SiftWarning(UserWarning):
    """Something that should match does not; results stay valid, quality or speed may differ."""


class UsageError(SiftError):
    """An argument, option or configuration value cannot be used as given."""


class CorpusError(SiftError):
    """The corpus as a whole cannot be read (a single bad document is recorded, not raised)."""


class DocumentError(CorpusError):
    """One document of the corpus cannot be read; it is recorded and the build goes on."""


class ModelError(SiftError):
    """The model cannot be found, loaded or used here."""


class UnsupportedModelError(ModelError):
    """The model's architecture cannot be indexed; the message names the reason."""


class FormatError(SiftError):
    """A file of an index is not what the format says it should be."""


class IntegrityError(FormatError):
    """Bytes of an index are not the ones that were written (checksum, size or structure)."""


class FeatureError(FormatError):
    """The index needs a reader feature or format version that this reader does not know."""


class IndexNotFoundError(FormatError):
    """The path holds no index, or not the version asked for."""


class FingerprintMismatchError(SiftError):
    """The index was built for something else; the message lists every differing field."""


class CommitConflictError(SiftError):
    """Another writer published this version first; run the same command again.

    The only error that is worth a retry as it is: nothing was changed, and `details` say so.
    """

    details: Mapping[str, Any] = MappingProxyType({"retryable": True})


class BuildError(SiftError):
    """A build cannot go on; what was committed stays and the same command resumes it."""


class BuildInterrupted(KeyboardInterrupt):
    """A build was stopped by a signal; what was committed stays and the same command resumes it.

    No SiftError: whoever handles those means to go on. `code` is the process exit code.
    """

    CTRL_C = 130

    def __init__(self, message: str, code: int = CTRL_C) -> None:
        super().__init__(message)
        self.code = code


class StorageError(SiftError):
    """An object store, or the cache of what it holds, cannot be reached or refuses."""


class PlanError(SiftError):
    """A prompt plan does not fit the model, the tokens or the call it is used with."""


class TargetNotMetError(SiftError):
    """No masks that were tried stay as close to dense attention as was asked for."""

    def __init__(self, message: str, details: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.details = details
