"""`sift-index status`: is a build running, how far is it, and what went wrong."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sift_index.cli.frame import emit, framed
from sift_index.cli.location import index_location
from sift_index.formats.buildstate import (
    DEAD,
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    BuildState,
)
from sift_index.formats.location import Location
from sift_index.formats.store import IndexPaths

if TYPE_CHECKING:
    from sift_index.pipelines.status import IndexStatus
    from sift_index.pipelines.timing import Speed

LISTED = 5
RESUME = "run the same command to resume; committed units are kept"


@click.command()
@click.argument("index", type=index_location)
@click.option(
    "--failed",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Show at most so many failed documents; JSON has all.",
)
@click.option(
    "--receipts",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    help="Take times from at most so many units, picked evenly.",
)
@framed
def status(index: Location, failed: int, receipts: int, output: str) -> None:
    """Say whether a build of INDEX runs, how far it is, and what failed.

    Reads what the build writes beside the index, so it works from any machine that sees INDEX. A
    build that was silent for a minute is called dead: killed or lost. The exit code is 0 whatever
    the state; scripts read `state` of the JSON: running, finished, failed, interrupted, dead, none.

    \b
    Example:
      sift-index status corpus.sift
      watch -n 10 sift-index status /shared/corpus.sift
      sift-index status s3://bucket/corpus.sift --output json
    """
    from sift_index.pipelines.status import index_status

    shown = None if output == "json" else failed
    found = index_status(IndexPaths(index), receipts, shown)
    emit(found.to_json(), lambda console: _print(console, found), output)


def _print(console: Console, found: "IndexStatus") -> None:
    running = [build for build in found.builds if build.verdict() == RUNNING]
    for build in running or found.builds[-1:]:
        _lines(console, build_lines(build))
    if not found.builds:
        _lines(console, ["state       none: no build has left word here"])
    _lines(console, [*index_lines(found), *timing_lines(found), *failure_lines(found)])


def _lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def build_lines(build: BuildState) -> list[str]:
    """Return one build for people, one fact a line."""
    lines = [
        f"state       {_verdict(build)}",
        f"build       pid {build.pid} on {build.host}, since {_when(build.started)}, "
        f"{build.software}",
        f"command     {build.command}",
        f"model       {build.model}, policy {build.policy}",
        f"work        {_work(build)}",
        f"trouble     {build.failures:,} failures, {build.retries:,} retries, "
        f"{build.worker_deaths:,} workers lost",
    ]
    said = build.message and build.verdict() != FINISHED
    return [*lines, f"last said   {build.message}"] if said else lines


def index_lines(found: "IndexStatus") -> list[str]:
    """Return what the index holds."""
    if found.version is None:
        held = "no version yet"
    else:
        held = f"version {found.version}: {found.documents:,} documents, {found.keys:,} keys"
    waiting = f"{found.unpublished_units:,} committed units that no version has yet"
    return [f"index       {held}; {waiting}"]


def timing_lines(found: "IndexStatus") -> list[str]:
    """Return how long units took, and where they took longest."""
    timing, lines = found.timing, []
    if found.receipts_damaged:
        lines.append(
            f"damaged     {found.receipts_damaged:,} receipts cannot be read; run sift-index verify"
        )
    if not timing.units:
        return lines
    lines.append(
        f"unit time   {timing.line()}, of {timing.units:,} of {found.committed_units:,} units"
    )
    lines += [f"device      {_speed(device)}" for device in timing.devices[:LISTED]]
    lines += [f"slow node   {_speed(node)}" for node in timing.nodes[:LISTED]]
    lines += [
        f"slow unit   {unit.unit[:12]}: {unit.seconds:.1f} s, {unit.tokens:,} tokens, "
        f"{unit.device} on {unit.host}"
        for unit in timing.slowest[:LISTED]
    ]
    return lines


def failure_lines(found: "IndexStatus") -> list[str]:
    """Return the failed documents that were read, and how many more there are."""
    lines = [f"failed      {record.line()}" for record in found.failed]
    if more := found.failed_documents - len(found.failed):
        lines.append(f"failed      … and {more:,} more (--failed N, --output json)")
    return lines


def _verdict(build: BuildState) -> str:
    verdict, ago = build.verdict(), _span(build.silent_seconds())
    if verdict == RUNNING:
        return f"running; last sign of life {ago} ago"
    if verdict == DEAD:
        return f"dead: no sign of life for {ago}, killed or lost; {RESUME}"
    if verdict in (FAILED, INTERRUPTED):
        advice = "" if "same command" in build.reason else f"; {RESUME}"
        return f"{verdict} {ago} ago: {build.reason}{advice}"
    return f"{verdict} {ago} ago"


def _work(build: BuildState) -> str:
    if not build.units:
        return "nothing to compute" if build.verdict() == FINISHED else "no units yet"
    share = build.tokens_done / max(1, build.tokens)
    text = (
        f"{build.units_done:,} of {build.units:,} units, {build.tokens_done:,} of "
        f"{build.tokens:,} tokens ({share:.1%}), {build.tokens_per_second:,} tokens/s in its "
        "last 5 minutes"
    )
    left = build.eta_seconds if build.verdict() == RUNNING else None
    return text if left is None else f"{text}, {_span(left)} left"


def _speed(speed: "Speed") -> str:
    return f"{speed.name}: {speed.tokens_per_second:,.0f} tokens/s a unit, {speed.units:,} units"


def _when(text: str) -> str:
    moment = datetime.fromisoformat(text).astimezone(UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(seconds: float) -> str:
    """Return a duration with its two largest units."""
    whole = max(0, round(seconds))
    for size, name, small, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // small} {part}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
