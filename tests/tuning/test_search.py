"""The search on made-up measurements: the optimum is known, and so is every step to it."""

import math

import pytest

from sift_index.errors import UsageError
from sift_index.evaluation.metrics import Interval
from sift_index.tuning.search import ALL_ON, Measured, Search, Target, rounded

LADDER = [0.0001, 0.001, 0.01, 0.1]


class Curve:
    """Sparser is worse: KL is 10 times the CA threshold, plus the LA threshold."""

    def __init__(self, kl=lambda ca, la: 10 * ca + la, top1=lambda ca: 1 - ca) -> None:
        self.asked: list[tuple[float, float]] = []
        self._kl, self._top1 = kl, top1

    def __call__(self, ca: float, la: float) -> Measured:
        self.asked.append((ca, la))
        kl, top1 = self._kl(ca, la), self._top1(ca)
        density = 1 / (1 + 100 * ca)
        return Measured(Interval(kl, kl, kl), Interval(top1, top1, top1), density, density / 2)


def cross(curve: Curve, target: Target, ladder=LADDER) -> Search:
    search = Search(curve, target)
    search.cross_threshold(ladder, 0.0)
    return search


def test_the_optimum_is_found_within_three_bisections():
    curve = Curve()
    search = cross(curve, Target(max_kl=0.04))
    best = search.best
    assert best is not None and best is search.closest
    # The optimum is 0.004, between 0.001 and 0.01: three halvings of a decade leave an eighth.
    assert 0.004 / 10 ** (1 / 8) <= best.ca_threshold <= 0.004
    assert [ca for ca, _ in curve.asked] == [0.0001, 0.001, 0.01, 0.00316, 0.00562, 0.00421]
    assert [point.ca_threshold for point in search.points] == [ca for ca, _ in curve.asked]
    assert [point.meets for point in search.points] == [True, True, False, True, False, False]
    assert best.kl.mean == pytest.approx(10 * best.ca_threshold)
    assert best.ca_density == 2 * best.density == 1 / (1 + 100 * best.ca_threshold)


def test_thresholds_are_walked_from_dense_to_sparse_in_any_order_given():
    curve = Curve()
    cross(curve, Target(max_kl=0.005), LADDER[::-1])
    assert [ca for ca, _ in curve.asked][:2] == [0.0001, 0.001]


def test_the_sparsest_candidate_that_meets_the_target_ends_the_search():
    curve = Curve()
    search = cross(curve, Target(max_kl=5.0))
    assert len(curve.asked) == len(LADDER)
    assert search.best == search.points[-1]


def test_a_target_out_of_reach_is_given_up_at_the_densest_point():
    curve = Curve()
    search = cross(curve, Target(max_kl=1e-6))
    assert search.best is None
    assert [ca for ca, _ in curve.asked] == [0.0001]
    assert search.closest == search.points[0] and not search.closest.meets


def test_no_bisection_between_neighbours_of_three_digits():
    curve = Curve()
    search = cross(curve, Target(max_kl=0.01015), [0.00101, 0.00102])
    assert [ca for ca, _ in curve.asked] == [0.00101, 0.00102]
    assert search.best is not None and search.best.ca_threshold == 0.00101


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target(max_kl=0.1, min_top1=0.9), True),
        (Target(max_kl=0.1), True),
        (Target(min_top1=0.9), True),
        (Target(max_kl=0.09), False),
        (Target(min_top1=0.91), False),
        (Target(max_kl=0.09, min_top1=0.9), False),
        (Target(max_kl=0.1, min_top1=0.91), False),
    ],
)
def test_every_bound_that_is_given_must_hold(target, met):
    assert (target.excess(0.1, 0.9) <= 0) is met


def test_the_closest_point_misses_its_worst_bound_by_least():
    target = Target(max_kl=0.01, min_top1=0.9)
    assert target.excess(0.02, 1.0) == pytest.approx(1.0)
    assert target.excess(0.0, 0.8) == pytest.approx(1.0)
    assert target.excess(0.02, 0.7) == pytest.approx(2.0)
    worse_top1 = {0.0001: 0.6, 0.001: 0.7, 0.01: 0.65, 0.1: 0.1}
    search = Search(Curve(top1=worse_top1.__getitem__), Target(min_top1=0.9))
    for ca in worse_top1:  # a search of one candidate each keeps all of them
        search.cross_threshold([ca], 0.0)
    assert search.closest.ca_threshold == 0.001


def test_la_is_the_sparsest_that_takes_a_tenth_of_the_target():
    curve = Curve()
    search = Search(curve, Target(max_kl=0.05, min_top1=0.99))
    assert search.local_threshold([0.001, 0.002, 0.004, 0.008, 0.016]) == 0.004
    assert curve.asked == [(ALL_ON, 0.016), (ALL_ON, 0.008), (ALL_ON, 0.004)]
    assert [point.meets for point in search.local] == [False, False, True]
    assert search.points == [] and search.best is None


def test_la_stays_lowest_where_none_is_good_enough():
    search = Search(Curve(), Target(max_kl=0.001))
    assert search.local_threshold([0.001, 0.002]) == 0.001
    assert not any(point.meets for point in search.local)


def test_without_a_kl_la_may_take_a_tenth_of_the_lost_top1():
    assert Target(min_top1=0.9).for_local() == Target(min_top1=0.99)
    assert Target(max_kl=0.02, min_top1=0.9).for_local() == Target(max_kl=0.002)


@pytest.mark.parametrize(
    ("bounds", "named"),
    [
        ((None, None), "--max-kl"),
        ((0.0, None), "max_kl"),
        ((-1.0, 0.9), "max_kl"),
        ((math.nan, None), "max_kl"),
        ((math.inf, None), "max_kl"),
        ((None, 0.0), "min_top1"),
        ((0.1, 1.1), "min_top1"),
        ((0.1, math.nan), "min_top1"),
    ],
)
def test_a_target_that_bounds_nothing_is_refused(bounds, named):
    with pytest.raises(UsageError, match=named):
        Target(*bounds)


def test_a_target_reads_like_one():
    assert str(Target(0.015, 0.95)) == "mean KL <= 0.015 nats and mean top-1 >= 0.95"
    assert str(Target(min_top1=0.9)) == "mean top-1 >= 0.9"


def test_rounded_keeps_significant_digits():
    assert [rounded(x) for x in (0.00123456, 12345.0, 1e-9)] == [0.00123, 12300.0, 1e-9]
