"""Which of an index's nested thresholds a request takes: by a word, or by its number.

Level 1 marks the most and stays closest to dense attention; the highest level is the sparsest.
"""

from sift_index.errors import UsageError

BEST, BALANCED, FAST = "best", "balanced", "fast"
QUALITIES = (BEST, BALANCED, FAST)


def highest_level(bits: int) -> int:
    """Return the highest level of masks of 1 or 2 bits an entry: 1 or 3."""
    return (1 << bits) - 1


def level_of(quality: str | int, bits: int) -> int:
    """Return the level of a quality, in masks of `bits` bits an entry.

    quality: `best` is level 1, `fast` the highest, `balanced` between them; a number is the level
    itself. With one level all are the same. Raises UsageError for anything else.
    """
    top = highest_level(bits)
    named = {BEST: 1, BALANCED: (1 + top) // 2, FAST: top}
    if isinstance(quality, str) and quality in named:
        return named[quality]
    if type(quality) is not int or not 1 <= quality <= top:
        raise UsageError(
            f"expected a level of 1 to {top} (the index stores {bits} bits per entry) or one of "
            f"{', '.join(QUALITIES)}, found {quality!r}"
        )
    return quality


def requested_level(level: int, quality: str | int | None, bits: int) -> int:
    """Return the level of a request that may give either. Raises UsageError where both are given.

    level: 1 unless given.
    """
    if quality is not None and level != 1:
        raise UsageError(
            f"expected a level or a quality, found level {level!r} and quality {quality!r}; "
            "give one of them"
        )
    return level_of(level if quality is None else quality, bits)


def level_notes(quality: str | int | None, bits: int) -> list[str]:
    """Return a note where a quality was asked for that an index of one level cannot give."""
    if quality in (None, BEST) or highest_level(bits) > 1:
        return []
    return [
        f"quality {quality!r} is the same as {BEST!r}: the index stores one level; build it with "
        "two or three thresholds to choose between them"
    ]
