from __future__ import annotations

import threading

import pytest

from sift_index.formats.parallel import READERS, ask_all


def test_questions_are_asked_at_once_and_answered_in_order() -> None:
    together = threading.Barrier(READERS, timeout=30)

    def question(number: int) -> int:
        together.wait()
        return number * number

    assert ask_all(question, range(2 * READERS)) == [n * n for n in range(2 * READERS)]
    assert ask_all(question, []) == []


def test_the_first_error_in_order_comes_out() -> None:
    def question(number: int) -> None:
        if number > 2:
            raise ValueError(str(number))

    with pytest.raises(ValueError, match="3"):
        ask_all(question, range(100))
