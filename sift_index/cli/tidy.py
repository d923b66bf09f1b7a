"""`sift-index compact` and `gc`: one makes a version smaller, the other frees the disk."""

from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from sift_index.cli.frame import emit, framed
from sift_index.cli.location import index_location
from sift_index.formats.compaction import PACK_BYTES, Compaction
from sift_index.formats.compaction import compact as compact_index
from sift_index.formats.garbage import GRACE_SECONDS, Sweep, collect_garbage
from sift_index.formats.location import Location
from sift_index.formats.store import IndexPaths


@click.command()
@click.argument("index", type=index_location)
@click.option(
    "--pack-mib",
    type=click.IntRange(min=1),
    default=PACK_BYTES >> 20,
    show_default=True,
    help="Merge packs under half of this, up to this size.",
)
@framed
def compact(index: Location, pack_mib: int, output: str) -> None:
    """Rewrite packs of INDEX without deleted rows, and merge small ones, as a new version.

    Masks stay the same, byte for byte. Older versions keep their packs, so this takes disk space
    until `sift-index gc` removes those versions.

    \b
    Example:
      sift-index compact corpus.sift
      sift-index compact corpus.sift --pack-mib 256
    """
    done = compact_index(IndexPaths(index), pack_mib << 20)
    emit(_compaction(done), lambda console: _print_compaction(console, done), output)


@click.command()
@click.argument("index", type=index_location)
@click.option(
    "--keep", type=click.IntRange(min=1), required=True, help="Keep the newest N versions."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=GRACE_SECONDS / 3600,
    show_default=True,
    help="Hours for which a file that no version names may belong to a running build.",
)
@framed
def gc(index: Location, keep: int, dry_run: bool, grace: float, output: str) -> None:
    """Remove all but the newest versions of INDEX, and every file that nothing needs any more.

    Units that a build has committed but not yet published stay, and so do leftovers (.tmp-*, packs
    of workers that lost) younger than --grace. Use --grace 0 only when no build, delete or compact
    runs. Readers keep what they have mapped; those of a removed version must be opened again
    before they need more of it.

    \b
    Example:
      sift-index gc corpus.sift --keep 3 --dry-run
      sift-index gc corpus.sift --keep 1
    """
    sweep = collect_garbage(IndexPaths(index), keep, grace=grace * 3600, dry_run=dry_run)
    values = {**asdict(sweep), "dry_run": dry_run}
    emit(values, lambda console: _print_sweep(console, sweep, dry_run), output)


def _compaction(done: Compaction | None) -> dict[str, Any]:
    if done is None:
        return {"version": None}
    values = {name: value for name, value in vars(done).items() if name != "manifest"}
    return {"version": done.manifest.version, **values}


def _print_compaction(console: Console, done: Compaction | None) -> None:
    if done is None:
        console.print("nothing to compact: no dead rows, and no packs to merge")
        return
    console.print(
        f"version {done.manifest.version}: {done.packs_before:,} packs to {done.packs_after:,}, "
        f"{done.bytes_before:,} bytes to {done.bytes_after:,}, {done.dead_rows:,} dead rows left "
        "out; `sift-index gc` frees what only older versions need"
    )


def _print_sweep(console: Console, sweep: Sweep, dry_run: bool) -> None:
    for name in sweep.files if dry_run else ():
        console.print(f"would remove {name}", markup=False)
    verb = "would remove" if dry_run else "removed"
    numbers = ", ".join(map(str, sweep.versions)) or "none"
    console.print(f"{verb} versions: {numbers}; {len(sweep.files):,} files, {sweep.bytes:,} bytes")
    console.print(f"kept versions: {', '.join(map(str, sweep.kept))}")
    if sweep.young:
        console.print(
            f"{len(sweep.young):,} files that no version names may belong to a running build and "
            "stay until they are older than --grace"
        )
