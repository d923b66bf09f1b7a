"""The protocol in pretended time: workers that hang, die, lie, join, leave and are late."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_index.errors import BuildError
from sift_index.pipelines.failures import FailureBudget, TooManyFailuresError
from sift_index.pipelines.limits import Limits
from sift_index.pipelines.runner import UnitRunner
from tests.pipelines.pretended import (
    Build,
    Fate,
    a_unit,
    documents_of,
    failed_of,
    singles,
)

OK = Fate()
# Nothing is done twice, so that it can be counted how often it is tried.
ONCE = Limits(straggler_factor=1e9)


def always(worker, method, unit):
    return OK


def numbers(unit) -> set[int]:
    return set() if unit is None else {int(piece.location.file) for piece in unit.pieces}


class Poison:
    """Documents with a fate of their own, everywhere and always."""

    def __init__(self, **kinds: int | tuple[int, ...]) -> None:
        self.fates = {
            number: kind
            for kind, found in kinds.items()
            for number in (found if isinstance(found, tuple) else (found,))
        }

    def __call__(self, worker, method, unit):
        bad = sorted(numbers(unit) & self.fates.keys())
        return Fate(self.fates[bad[0]]) if bad else OK


def first_workers(count: int, method: str, fate: Fate):
    """The first workers that are started have a fate in a method, later ones are well."""
    return lambda worker, asked, unit: fate if worker.number < count and asked == method else OK


def test_a_unit_that_hangs_is_timed_out_isolated_and_the_rest_done() -> None:
    build = Build(Poison(hang=4), slots=2, limits=ONCE)
    result = build.run([*singles(4), a_unit(4, 5), *[a_unit(n) for n in range(6, 12)]])
    assert documents_of(result) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert "took longer than its limit" in failed_of(result)[4]
    assert result.timeouts == len(build.noted("timeout")) == 6  # of the pair, then of document 4
    assert build.workers.time < 8 * 700  # ten minutes and a little each time


def test_a_given_limit_is_kept_to() -> None:
    build = Build(Poison(hang=2), limits=Limits(unit_seconds=30))
    result = build.run(singles(5))
    assert documents_of(result) == [0, 1, 3, 4] and failed_of(result).keys() == {2}
    assert 90 <= build.workers.time <= 90 + 3 * 5
    assert "its limit of 30 s on host-" in failed_of(result)[2]


def test_the_clock_of_a_unit_starts_when_it_is_its_turn() -> None:
    """Two in flight of 20 s each: the second is answered after 40 s and has taken 20."""
    build = Build(lambda *call: Fate(seconds=20), limits=Limits(unit_seconds=30))
    result = build.run(singles(6))
    assert documents_of(result) == list(range(6)) and result.timeouts == result.retries == 0


def test_a_slow_device_is_not_timed_out_for_the_pace_of_fast_ones() -> None:
    """A hundred times slower than the others, and never replaced once it has shown its pace."""

    def script(worker, method, unit):
        slow = worker.number == 0 and unit is not None
        return Fate(seconds=100.0) if slow else OK

    limits = Limits(unit_floor=90, unit_factor=20, straggler_factor=1e9)
    build = Build(script, slots=3, limits=limits)
    result = build.run(singles(600))
    assert documents_of(result) == list(range(600))
    assert result.timeouts == 0 and len(build.workers.started) == 3


def test_what_was_behind_a_unit_that_hangs_is_done_elsewhere_and_not_blamed() -> None:
    build = Build(Poison(hang=0), limits=Limits(unit_seconds=30))
    result = build.run([a_unit(0), a_unit(1)])
    assert documents_of(result) == [1] and failed_of(result).keys() == {0}
    assert not any(a_unit(1).id[:12] in note for note in build.noted("retry"))


def test_a_unit_that_timed_out_is_alone_on_its_worker() -> None:
    running: dict[int, set[str]] = {}
    poison = Poison(hang=0)

    def script(worker, method, unit):
        if unit is not None:
            running.setdefault(worker.number, set()).add(unit.id)
        return poison(worker, method, unit)

    build = Build(script, slots=1, limits=Limits(unit_seconds=30))
    build.run(singles(6))
    again = [units for units in running.values() if a_unit(0).id in units][1:]
    assert len(again) == 2
    # The next worker did all that waited before it: nothing was handed out beside or after it.
    assert again[-1] == {a_unit(0).id}


def test_a_worker_that_does_not_load_is_replaced() -> None:
    build = Build(first_workers(1, "fingerprint", Fate("hang")))
    result = build.run(singles(3))
    assert documents_of(result) == [0, 1, 2]
    assert "did not load within 1800 s" in build.noted("worker_lost")[0]


def test_a_broken_node_is_given_up_and_the_others_go_on() -> None:
    def script(worker, method, unit):
        # The second slot's first worker, and each that takes its place.
        return Fate("die") if method == "fingerprint" and worker.number > 0 else OK

    build = Build(script, slots=2)
    result = build.run(singles(200))
    assert documents_of(result) == list(range(200)) and result.retries == 0
    assert len(build.workers.started) == 1 + build.limits.slot_troubles
    assert len(build.noted("worker_given_up")) == 1


def test_restarts_of_a_broken_node_are_spread_in_time() -> None:
    starts = []

    def script(worker, method, unit):
        if method == "place" and worker.number > 0:
            starts.append(build.workers.time)
        return Fate("die", 0.0) if method == "fingerprint" and worker.number > 0 else OK

    build = Build(script, slots=2)
    build.run(singles(200))
    waits = [later - earlier for earlier, later in zip(starts, starts[1:], strict=False)]
    assert waits[0] < 2.5 and waits == sorted(waits) and waits[-1] >= 4


def test_a_worker_that_kills_every_unit_it_gets_does_not_eat_the_build() -> None:
    """A card that dies under load: its units are done elsewhere, none is split or lost."""

    def script(worker, method, unit):
        return Fate("die", 0.1) if unit is not None and worker.number in broken else OK

    broken = {0}
    build = Build(script, slots=3)
    start = build.workers.start

    def start_in_place():
        worker = start()
        if worker.number >= 3:  # a replacement on the same node
            broken.add(worker.number)
        return worker

    build.workers.start = start_in_place  # type: ignore[method-assign]
    result = build.run([a_unit(2 * n, 2 * n + 1) for n in range(100)])
    assert documents_of(result) == list(range(200)) and result.failed == []
    assert not build.noted("split") and len(build.noted("worker_given_up")) == 1
    assert result.retries == build.limits.slot_troubles


def test_a_worker_on_which_every_unit_fails_does_not_draw_all_units_to_itself() -> None:
    """A GPU in an error state answers at once; it is restarted, and then given up."""

    def script(worker, method, unit):
        return Fate("raise", 0.001) if unit is not None and worker.number not in (0, 1) else OK

    build = Build(script, slots=3)
    result = build.run([a_unit(2 * n, 2 * n + 1) for n in range(300)])
    assert documents_of(result) == list(range(600)) and result.failed == []
    assert result.retries <= build.limits.slot_errors * build.limits.slot_troubles
    assert len(build.noted("worker_given_up")) == 1 and not build.noted("split")


def test_when_every_worker_dies_the_build_ends_and_says_how_to_resume() -> None:
    build = Build(lambda w, method, unit: Fate("die") if unit else OK, slots=4)
    with pytest.raises(BuildError, match=r"failed 31 times in a row.*same command"):
        build.run([a_unit(*range(8 * n, 8 * n + 8)) for n in range(50)])


def test_a_large_cluster_survives_the_loss_of_many_nodes_at_once() -> None:
    build = Build(always, slots=100)
    for number in range(80):
        build.workers.at(3.5, partial(build.workers.lose, number))
    result = build.run(singles(2000))
    assert documents_of(result) == list(range(2000)) and result.failed == []


def test_nobody_alive_for_too_long_is_an_error() -> None:
    build = Build(lambda w, method, unit: Fate("nowhere") if w.number > 0 else OK)
    build.workers.at(4.5, lambda: build.workers.lose(0))
    with pytest.raises(BuildError, match=r"no worker has had a place.*90\d s.*same command"):
        build.run(singles(20))
    assert 900 < build.workers.time < 920 and len(build.workers.committed) >= 2


def test_a_replacement_without_a_place_holds_up_nobody() -> None:
    build = Build(lambda w, method, unit: Fate("nowhere") if w.number > 1 else OK, slots=2)
    build.workers.at(2.5, lambda: build.workers.lose(0))
    result = build.run(singles(20))
    assert documents_of(result) == list(range(20)) and build.workers.time < 30


def test_workers_are_hired_when_nodes_join_and_checked_before_they_get_units() -> None:
    def script(worker, method, unit):
        return Fate("other") if worker.number == 2 and method == "fingerprint" else OK

    build = Build(script, slots=1)

    def grow() -> None:
        build.slots = 4

    build.workers.at(5.0, grow)
    result = build.run(singles(100))
    assert documents_of(result) == list(range(100))
    assert len(build.workers.started) == 4  # the one of another build is not tried again
    assert "make every node the same" in build.noted("worker_given_up")[0]
    assert build.workers.time < 50  # alone it takes 100 s


def test_a_worker_of_another_build_ends_it_when_there_is_no_other() -> None:
    build = Build(first_workers(99, "fingerprint", Fate("other")), slots=2)
    with pytest.raises(BuildError, match="make every node the same"):
        build.run(singles(3))
    assert not build.workers.runs


def late(seconds: float, worker_number: int = 0):
    """The first unit that a worker gets takes long; with another one it is done in a second."""
    slow: list[str] = []

    def script(worker, method, unit):
        if unit is None or worker.number != worker_number:
            return OK
        slow.append(unit.id)
        return Fate(seconds=seconds) if len(slow) == 1 else OK

    return script


def test_a_late_unit_is_done_by_an_idle_worker_and_counted_once() -> None:
    build = Build(late(5000.0), slots=2)
    result = build.run(singles(10))
    assert documents_of(result) == list(range(10)) and result.reissued >= 1
    assert build.workers.time < 60 and result.retries == 0
    assert [update[0] for update in build.progress.updates] == list(range(1, 11))
    assert build.workers.stopped == [build.workers.started[0]]  # the loser is not waited for
    assert "again_on=host-1" in build.noted("straggler")[0]


def test_the_late_answer_of_a_unit_done_twice_is_ignored() -> None:
    """It comes while others still run: one receipt, one update, no failure."""

    def script(worker, method, unit):
        if unit is not None and worker.number == 0 and 0 in numbers(unit):
            return Fate("raise", 30.0)
        return Fate(seconds=40.0) if unit is not None and 5 in numbers(unit) else OK

    build = Build(script, slots=3)
    result = build.run(singles(6))
    assert documents_of(result) == list(range(6)) and result.failed == [] and result.retries == 0
    assert len(build.progress.updates) == 6


def test_a_unit_that_waits_behind_a_hanging_one_is_done_by_an_idle_worker() -> None:
    """Both in flight on one worker; nothing waits for the ten minutes of a time limit."""

    def script(worker, method, unit):
        return Fate("hang") if unit is not None and worker.number == 0 else OK

    build = Build(script, slots=2)
    result = build.run(singles(12))
    assert documents_of(result) == list(range(12))
    assert build.workers.time < 60 and result.timeouts == 0


def test_a_copy_that_fails_is_not_held_against_the_unit() -> None:
    def script(worker, method, unit):
        if unit is None or 0 not in numbers(unit):
            return OK
        return Fate(seconds=100.0) if worker.number == 0 else Fate("raise", 1.0)

    build = Build(script, slots=2)
    result = build.run(singles(8))
    assert documents_of(result) == list(range(8)) and result.failed == []
    assert result.retries == 0 and result.reissued >= 1
    assert build.workers.runs[a_unit(0).id] == 2  # and not given out once more


def test_a_unit_of_two_copies_that_fail_is_tried_again_once() -> None:
    def script(worker, method, unit):
        if unit is None or 0 not in numbers(unit) or build.workers.runs[unit.id] > 1:
            return OK
        return Fate("raise", 100.0 if worker.number == 0 else 1.0)

    build = Build(script, slots=2)
    result = build.run(singles(8))
    assert documents_of(result) == list(range(8)) and result.retries == 1


def test_a_unit_that_failed_is_never_given_to_two_workers() -> None:
    def script(worker, method, unit):
        if unit is None or 0 not in numbers(unit):
            return OK
        return Fate("raise") if build.workers.runs[unit.id] == 0 else Fate(seconds=300.0)

    build = Build(script, slots=3)
    result = build.run(singles(9))
    assert documents_of(result) == list(range(9)) and result.reissued == 0


def test_a_retry_goes_to_another_worker() -> None:
    """A node that cannot do a unit does not use up its three tries."""

    def script(worker, method, unit):
        bad = unit is not None and worker.number == 0 and 0 in numbers(unit)
        return Fate("raise", 5.0) if bad else OK

    build = Build(script, slots=2, limits=ONCE)
    assert documents_of(build.run(singles(2))) == [0, 1]
    assert build.workers.runs[a_unit(0).id] == 2


def test_a_retry_waits_for_another_worker_only_for_so_long() -> None:
    """The other one is busy for an hour: better on the same again than then."""

    def script(worker, method, unit):
        if unit is not None and 1 in numbers(unit):
            return Fate(seconds=3600.0)
        return Fate("raise") if build.workers.runs[a_unit(0).id] < 1 and unit else OK

    build = Build(script, slots=2, limits=ONCE)
    build.run(singles(2))
    again = build.workers.runs[a_unit(0).id], build.workers.time
    assert again[0] == 2 and build.progress.updates[0][1] == 10 and again[1] < 3700


@pytest.mark.parametrize("count", range(40, 60))
def test_the_last_units_are_not_kept_waiting_behind_a_slow_worker(count) -> None:
    """A worker ten times slower has no second unit in hand when the last ones are given out."""

    def script(worker, method, unit):
        return Fate(seconds=10.0) if unit is not None and worker.number == 0 else OK

    build = Build(script, slots=2, limits=ONCE)
    build.run(singles(count))
    assert build.workers.time <= count * 10 / 11 + 10 + 3  # the ideal, and one slow unit


def test_a_full_disk_on_one_node_is_not_the_end() -> None:
    def script(worker, method, unit):
        return Fate("full") if unit is not None and worker.number not in (0, 1) else OK

    build = Build(script, slots=3)
    result = build.run(singles(100))
    assert documents_of(result) == list(range(100)) and result.retries == 0
    assert len(build.noted("worker_given_up")) == 1


def test_a_full_disk_everywhere_is() -> None:
    build = Build(lambda w, method, unit: Fate("full") if unit else OK, slots=3)
    with pytest.raises(BuildError, match="^No space left; resume"):
        build.run(singles(100))
    assert build.workers.looks < 200


def test_an_answer_that_came_with_the_death_counts() -> None:
    build = Build(Poison(lose=3))
    result = build.run(singles(6))
    assert documents_of(result) == list(range(6)) and result.failed == []
    assert build.workers.computed == {unit.id: 1 for unit in singles(6)}


def test_what_a_worker_answered_before_it_died_counts_whatever_is_seen_first() -> None:
    build = Build(always)
    answers = build.workers.answers

    def newest_first(seconds):
        found = answers(seconds)
        return found[::-1]

    build.workers.answers = newest_first  # type: ignore[method-assign]
    build.workers.at(3.0, lambda: build.workers.at(3.0, lambda: build.workers.lose(0)))
    result = build.run(singles(6))
    assert documents_of(result) == list(range(6))
    assert len(build.workers.started) == 2 and build.workers.runs[a_unit(0).id] == 1


def test_a_unit_that_another_worker_finished_is_not_done_again_when_the_late_one_dies() -> None:
    """The late worker dies while others are busy: its unit is settled, and stays so."""

    def script(worker, method, unit):
        if unit is not None and worker.number == 0 and 0 in numbers(unit):
            return Fate("die", 30.0)
        return Fate(seconds=60.0) if unit is not None and 5 in numbers(unit) else OK

    build = Build(script, slots=3)
    result = build.run(singles(6))
    assert documents_of(result) == list(range(6)) and result.retries == 0
    assert build.workers.runs[a_unit(0).id] == 2 and len(build.noted("worker_lost")) == 1


def test_too_many_failures_stop_the_build_with_reasons() -> None:
    budget = FailureBudget(2)
    build = Build(Poison(**{"raise": (1, 3, 5, 7)}), runner_options={"failures": budget})
    with pytest.raises(TooManyFailuresError, match=r"at most 2 .*found 3, such as 1: .*poison"):
        build.run(singles(9))
    assert len(budget.found) == 3 and len(build.workers.committed) == 5


def test_as_many_failures_as_allowed_do_not() -> None:
    build = Build(Poison(**{"raise": (1, 3)}), runner_options={"failures": FailureBudget(2)})
    assert len(build.run(singles(9)).failed) == 2


def test_two_units_with_one_receipt_have_it_once() -> None:
    """What is left of two units may be the same unit: the receipt on disk is the same."""
    build = Build(always)
    shared = build.workers._commit(a_unit(9))
    build.workers._commit = lambda unit: shared  # type: ignore[method-assign]
    result = build.run([a_unit(9, 1), a_unit(9, 2)])
    assert [receipt.unit for receipt in result.receipts] == [shared.unit]


def test_workers_that_are_not_busy_are_left_for_the_next_run() -> None:
    build = Build(always, slots=2)
    build.run(singles(8))
    assert build.workers.stopped == []
    build.runner_options["joined"] = build.workers.started[:]
    assert documents_of(build.run([a_unit(n) for n in range(10, 14)])) == [10, 11, 12, 13]
    assert len(build.workers.started) == 2


QUICK = Limits(unit_floor=20, unit_unknown=60, loading=30, nothing_alive=600, avoid=5)
RUN_FATES = ("ok", "ok", "ok", "raise", "die", "lose", "hang", "full")
START_FATES = ("ok", "ok", "ok", "die", "hang", "nowhere", "other", "raise")


@st.composite
def disasters(draw):
    """Units, documents that never work, and what else goes wrong, call by call."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=10))
    count = sum(sizes)
    kinds = st.sampled_from(["raise", "die", "hang"])
    poison = draw(st.dictionaries(st.integers(0, count - 1), kinds, max_size=3))
    chance = draw(st.sampled_from([0.0, 0.05, 0.2, 0.6]))
    losses = draw(st.lists(st.floats(0, 60), max_size=4))
    growth = draw(st.lists(st.floats(0, 60), max_size=2))
    return sizes, poison, chance, losses, growth, draw(st.integers(1, 4))


@settings(max_examples=400, deadline=None)
@given(disasters(), st.randoms(use_true_random=False))
def test_every_document_is_committed_once_or_failed_whatever_happens(disaster, random) -> None:
    sizes, poison, chance, losses, growth, slots = disaster
    numbers_left = iter(range(sum(sizes)))
    units = [a_unit(*(next(numbers_left) for _ in range(size))) for size in sizes]
    hurt: dict[int, int] = dict.fromkeys(range(sum(sizes)), 0)

    def script(worker, method, unit):
        wrong = random.random() < chance
        kind = random.choice(RUN_FATES if unit is not None else START_FATES) if wrong else "ok"
        if worker.number == 0 and unit is None:
            kind = "ok"  # a build begins with a worker that is well
        bad = sorted(numbers(unit) & poison.keys())
        kind = poison[bad[0]] if bad else kind
        return Fate(kind, random.choice([0.01, 1.0, 1.0, 30.0]))

    build = Build(script, slots, QUICK)
    ask = build.workers.ask

    def watched(worker, method, about, *arguments):
        assert worker.alive or worker not in build.workers.stopped, "a stopped worker was asked"
        assert len(worker.open) < 2, "more than two at once"
        for number in numbers(arguments[0] if arguments else None):
            hurt[number] += 1
        ask(worker, method, about, *arguments)

    build.workers.ask = watched  # type: ignore[method-assign]
    for time in losses:
        build.workers.at(time, lambda: build.workers.lose(len(build.workers.started) - 1))
    for time in growth:
        build.workers.at(time, lambda: setattr(build, "slots", build.slots + 1))
    try:
        result = build.run(units)
    except BuildError as error:
        known = ("in a row", "No space", "something else", "no worker has had a place")
        assert any(words in str(error) for words in known)
        assert chance or poison or losses
        return
    committed, failed = documents_of(result), failed_of(result)
    assert sorted([*committed, *failed]) == list(range(sum(sizes)))
    assert len({receipt.unit for receipt in result.receipts}) == len(result.receipts)
    assert failed.keys() >= poison.keys() and not set(committed) & poison.keys()
    assert all(hurt[number] >= 3 for number in failed), "given up before three tries"
    assert all(count == 1 for count in build.workers.computed.values())
    assert build.progress.updates[-1][1] == sum(unit.tokens for unit in units)
    if not chance and not poison:
        assert not failed


def test_a_plan_is_read_as_far_as_it_is_needed() -> None:
    made: list[int] = []

    class Lazy:
        tokens = 1000

        def __len__(self) -> int:
            return 100

        def __iter__(self):
            for number in range(100):
                made.append(number - len(build.workers.committed))
                yield a_unit(number)

    build = Build(always, slots=3)
    runner = UnitRunner(
        workers=build.workers,
        wanted=lambda units: 3,
        admit=lambda fingerprint: None,
        source=str,
        build_digest="ab" * 16,
        progress=build.progress,
    )
    assert documents_of(runner.run(Lazy())) == list(range(100))
    assert max(made) <= 2 * 3
