"""How long units took, and on which devices and nodes, from what their receipts say.

Finds the slow node among a thousand: a build waits for its last unit. Receipts of earlier releases
lack some of it, and count where they can.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sift_index.formats.receipts import Receipt

SLOWEST = 10
UNKNOWN = "unknown"


@dataclass(frozen=True)
class UnitTime:
    """One unit: `seconds` of extraction, and of reading before and committing after it."""

    unit: str
    tokens: int
    seconds: float
    read_seconds: float
    commit_seconds: float
    host: str
    node: str
    device: str


@dataclass(frozen=True)
class Speed:
    """The units that one device kind, or one node, did: `tokens_per_second` of a unit there.

    Of one unit, not of the whole node: its workers' units run beside each other.
    """

    name: str
    units: int
    tokens: int
    tokens_per_second: float


@dataclass(frozen=True)
class BuildTiming:
    """Times of `units` units; percentiles are those of extraction, 0 without units.

    devices and nodes come slowest first, and so do the `slowest` units.
    """

    units: int
    seconds_p50: float
    seconds_p95: float
    seconds_max: float
    read_seconds: float
    commit_seconds: float
    devices: tuple[Speed, ...]
    nodes: tuple[Speed, ...]
    slowest: tuple[UnitTime, ...]

    def line(self) -> str:
        """Return the percentiles for people."""
        return (
            f"{self.seconds_p50:.1f} s median, {self.seconds_p95:.1f} s p95, "
            f"{self.seconds_max:.1f} s longest"
        )


def unit_time(receipt: Receipt) -> UnitTime | None:
    """Return what a receipt says of its unit's time; None when it does not."""
    if not isinstance(receipt.stats.get("seconds"), int | float):
        return None
    return UnitTime(
        unit=receipt.unit,
        tokens=receipt.tokens,
        seconds=_seconds(receipt, "seconds"),
        read_seconds=_seconds(receipt, "read_seconds"),
        commit_seconds=_seconds(receipt, "commit_seconds"),
        host=_text(receipt, "host"),
        node=_text(receipt, "node"),
        device=_text(receipt, "device"),
    )


def build_timing(receipts: Iterable[Receipt]) -> BuildTiming:
    """Return percentiles, speeds by device and node, and the slowest units."""
    times = [time for receipt in receipts if (time := unit_time(receipt)) is not None]
    times.sort(key=lambda time: (-time.seconds, time.unit))
    return BuildTiming(
        units=len(times),
        seconds_p50=percentile(times, 0.5),
        seconds_p95=percentile(times, 0.95),
        seconds_max=percentile(times, 1.0),
        read_seconds=round(sum(time.read_seconds for time in times), 3),
        commit_seconds=round(sum(time.commit_seconds for time in times), 3),
        devices=_speeds(times, lambda time: time.device),
        nodes=_speeds(times, _place),
        slowest=tuple(times[:SLOWEST]),
    )


def percentile(times: Sequence[UnitTime], share: float) -> float:
    """Return the seconds that `share` of the units, slowest first in `times`, did not exceed."""
    if not times:
        return 0.0
    return times[min(len(times) - 1, int((1 - share) * len(times)))].seconds


def _speeds(times: Sequence[UnitTime], name: Callable[[UnitTime], str]) -> tuple[Speed, ...]:
    groups: dict[str, list[UnitTime]] = {}
    for time in times:
        groups.setdefault(name(time), []).append(time)
    found = (_speed(label, group) for label, group in groups.items())
    return tuple(sorted(found, key=lambda speed: (speed.tokens_per_second, speed.name)))


def _speed(name: str, group: Sequence[UnitTime]) -> Speed:
    tokens, seconds = sum(t.tokens for t in group), sum(t.seconds for t in group)
    return Speed(name, len(group), tokens, round(tokens / max(seconds, 1e-9), 1))


def _place(time: UnitTime) -> str:
    """Return a node's host with its Ray id, for hosts may run several."""
    return time.host if time.node == UNKNOWN else f"{time.host} {time.node}"


def _seconds(receipt: Receipt, name: str) -> float:
    value = receipt.stats.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _text(receipt: Receipt, name: str) -> str:
    value = receipt.stats.get(name)
    return str(value) if value not in (None, "") else UNKNOWN
