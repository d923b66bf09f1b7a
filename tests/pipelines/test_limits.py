"""Time limits and late units as pure functions of what was observed."""

from math import isinf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sift_index.pipelines.limits import (
    LIMITS,
    REMEMBERED,
    Limits,
    Pace,
    is_straggling,
    most_troubles,
    rest,
    spare,
    unit_limit,
)


def paced(*seconds: float, tokens: int = 10) -> Pace:
    pace = Pace()
    for each in seconds:
        pace.add(each, tokens)
    return pace


def test_a_given_limit_holds_whatever_the_pace() -> None:
    limits = Limits(unit_seconds=7.0)
    assert unit_limit(limits, paced(), paced(), 10) == 7.0
    assert unit_limit(limits, paced(900, 900, 900), paced(), 10**6) == 7.0


def test_before_some_units_are_finished_only_hours_count() -> None:
    assert unit_limit(LIMITS, paced(), paced(1, 1), 10**9) == LIMITS.unit_unknown == 6 * 3600


def test_the_limit_is_minutes_and_a_multiple_of_the_slowest() -> None:
    build = paced(1, 5, 2)  # half a second a token at worst
    assert unit_limit(LIMITS, paced(), build, 100) == 600 + 20 * 0.5 * 100
    assert unit_limit(LIMITS, paced(9), build, 100) == 600 + 20 * 0.5 * 100  # one tells nothing


def test_a_worker_is_judged_by_its_own_pace() -> None:
    build = paced(1, 5, 2)
    assert unit_limit(LIMITS, paced(100, 120, 110), build, 100) == 600 + 20 * 12 * 100
    assert unit_limit(LIMITS, paced(1, 1, 1), build, 100) == 600 + 20 * 0.1 * 100


@given(st.lists(st.floats(0.01, 1e4), min_size=3), st.integers(1, 10**6))
def test_no_pace_that_was_seen_exceeds_its_limit(seconds, tokens) -> None:
    own = paced(*seconds, tokens=tokens)
    assert max(seconds) < unit_limit(LIMITS, own, own, tokens)
    assert not isinf(unit_limit(LIMITS, own, own, tokens))


def test_late_is_a_multiple_of_the_median_and_of_seconds() -> None:
    build = paced(100, 100, 100)  # ten seconds a token
    assert not is_straggling(LIMITS, build, 299, 10) and is_straggling(LIMITS, build, 301, 10)
    assert not is_straggling(LIMITS, build, 301, 11)
    quick = paced(0.001, 0.001)
    assert not is_straggling(LIMITS, quick, 4.9, 10) and is_straggling(LIMITS, quick, 5.1, 10)
    assert not is_straggling(LIMITS, paced(), 1e9, 10)


def test_the_median_is_of_the_last_units_and_the_slowest_of_all() -> None:
    pace = paced(5000, *[10] * REMEMBERED)
    assert (pace.median, pace.slowest, pace.count) == (1.0, 500.0, REMEMBERED + 1)
    assert paced().median == 0.0


def test_a_slow_worker_needs_more_units_that_wait_before_it_gets_a_second() -> None:
    build = paced(*[1] * 10, 10)  # one in eleven on a worker that is ten times slower
    assert spare(1, paced(10), build) == 0
    assert spare(2, paced(1), build) == spare(2, paced(), build) == spare(2, paced(), paced()) == 2
    assert spare(2, paced(10), build) == pytest.approx(11)


def test_rests_grow_up_to_a_bound() -> None:
    assert [rest(LIMITS, n) for n in range(8)] == [0, 0, 1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(("slots", "most"), [(1, 30), (10, 30), (11, 33), (1000, 3000)])
def test_a_large_cluster_may_lose_more(slots, most) -> None:
    assert most_troubles(LIMITS, slots) == most
