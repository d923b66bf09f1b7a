"""How many documents may fail before a build stops by itself (`--max-failures`).

A corpus given with the wrong field, or a share that lost its files, fails document by document:
that is better said after ten than after ten million.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from sift_index.errors import BuildError
from sift_index.formats.failures import FailedDocument, record_failure
from sift_index.formats.store import IndexPaths

SHOWN = 3


class FailureBudget:
    """Counts failed documents, each once however many of its pieces failed.

    `found` are those so far, by their source. Without a limit nothing is kept.
    """

    def __init__(self, allowed: int | None = None) -> None:
        self._allowed = allowed
        self.found: dict[str, FailedDocument] = {}

    def add(self, failed: Iterable[FailedDocument]) -> None:
        """Take in failures; raises BuildError with the first reasons when there are too many."""
        if self._allowed is None:
            return
        for failure in failed:
            self.found.setdefault(failure.source, failure)
        if len(self.found) > self._allowed:
            raise TooManyFailuresError(
                f"expected at most {self._allowed} failed documents (--max-failures), found "
                f"{len(self.found)}, such as {examples(self.found.values())}; cure the cause, or "
                "allow more, and run the same command again: committed units stay"
            )


def examples(failed: Iterable[FailedDocument]) -> str:
    """Return the first sources with their reasons, for a message."""
    return "; ".join(each.line() for each in islice(failed, SHOWN))


class TooManyFailuresError(BuildError):
    """More documents failed than were allowed to."""


def record_all(paths: IndexPaths, failed: Iterable[FailedDocument]) -> None:
    """Write a record of every one; raise BuildError or StorageError."""
    for failure in failed:
        record_failure(paths, failure)


@contextmanager
def recorded(paths: IndexPaths, failures: FailureBudget) -> Iterator[None]:
    """Write a record of every failed document when there are too many of them."""
    try:
        yield
    except TooManyFailuresError:
        record_all(paths, failures.found.values())
        raise
