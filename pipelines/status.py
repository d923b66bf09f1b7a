"""What can be known of an index and its builds from outside, while they run or after they died.

Only reads; needs neither Ray nor a model, and works from any machine that sees the index.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sift_index.errors import FormatError, IndexNotFoundError
from sift_index.formats.buildstate import RUNNING, BuildState, read_states
from sift_index.formats.failures import FailedDocument, failure_path, find_failure
from sift_index.formats.manifest import Manifest, current_version, read_manifest
from sift_index.formats.parallel import ask_all
from sift_index.formats.receipts import Receipt, read_receipt
from sift_index.formats.store import IndexPaths, file_names
from sift_index.pipelines.timing import BuildTiming, build_timing

NONE = "none"


@dataclass(frozen=True)
class IndexStatus:
    """Builds, units and failures of one index.

    `builds` wrote last at the end; `state` is that of the one that runs, else of the last, `none`
    when no build says anything. `unpublished_units` are committed and in no version. `timing` is
    that of `receipts_read` of the `committed_units`; `receipts_damaged` could not be read.
    `failed` may be fewer than the `failed_documents` there are.
    """

    index: str
    state: str
    builds: tuple[BuildState, ...]
    version: int | None
    documents: int
    keys: int
    tokens: int
    committed_units: int
    unpublished_units: int
    receipts_read: int
    receipts_damaged: int
    timing: BuildTiming
    failed_documents: int
    failed: tuple[FailedDocument, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON values; each build with what its silence means."""
        builds = [
            {
                **build.to_json(),
                "state": build.verdict(),
                "silent_seconds": round(build.silent_seconds(), 1),
                "eta_seconds": build.eta_seconds,
            }
            for build in self.builds
        ]
        return {**asdict(self), "builds": builds}


def index_status(paths: IndexPaths, receipts: int, failed: int | None = None) -> IndexStatus:
    """Look at an index and its builds; read at most so many receipts and failure records.

    `failed` None reads all. Raises IndexNotFoundError where nothing was ever built, IntegrityError
    for a damaged manifest, state or failure record. A damaged receipt is counted, because builds
    that go wrong are what this is for.
    """
    builds = tuple(read_states(paths))
    manifest = read_manifest(paths) if current_version(paths) else None
    units = [name.removesuffix(".json") for name in file_names(paths.commits, ".json")]
    if not builds and manifest is None and not units:
        raise IndexNotFoundError(
            f"expected an index or a build in {paths.root}, found {paths.absence()}; give the "
            "place that sift-index build writes to"
        )
    read = ask_all(lambda unit: _receipt(paths, unit), _spread(units, receipts))
    found = [receipt for receipt in read if receipt is not None]
    published = set(manifest.units if manifest else ())
    names = file_names(paths.failed, ".json")
    records = ask_all(lambda name: find_failure(paths, name), names[:failed])
    early = _not_recorded_yet(paths, found, published, set(names))
    return IndexStatus(
        index=str(paths.root),
        state=_state(builds),
        builds=builds,
        **_version(manifest),
        committed_units=len(units),
        unpublished_units=len(set(units) - published),
        receipts_read=len(found),
        receipts_damaged=len(read) - len(found),
        timing=build_timing(found),
        failed_documents=len(names) + len(early),
        failed=(*sorted(filter(None, records), key=_source), *early)[:failed],
    )


def _not_recorded_yet(
    paths: IndexPaths, receipts: Sequence[Receipt], published: set[str], names: set[str]
) -> list[FailedDocument]:
    """Return what receipts say of documents a build left out, for it writes records at its end."""
    waiting = (receipt for receipt in receipts if receipt.unit not in published)
    found = {failure.source: failure for receipt in waiting for failure in receipt.failed}
    new = (f for f in found.values() if failure_path(paths, f.source).name not in names)
    return sorted(new, key=_source)


def _source(failure: FailedDocument) -> str:
    return failure.source


def _state(builds: Sequence[BuildState]) -> str:
    verdicts = [build.verdict() for build in builds]
    return RUNNING if RUNNING in verdicts else verdicts[-1] if verdicts else NONE


def _version(manifest: Manifest | None) -> dict[str, Any]:
    if manifest is None:
        return {"version": None, "documents": 0, "keys": 0, "tokens": 0}
    return {"version": manifest.version, **asdict(manifest.counts)}


def _spread(units: Sequence[str], count: int) -> list[str]:
    """Return at most `count` units, evenly from all: names are hashes, so a random sample."""
    if len(units) <= count:
        return [*units]
    return [units[place * len(units) // count] for place in range(count)]


def _receipt(paths: IndexPaths, unit: str) -> Receipt | None:
    try:
        return read_receipt(paths, unit)
    except FormatError:
        return None
