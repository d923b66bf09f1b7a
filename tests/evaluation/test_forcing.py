"""Answers behind a prefilled prompt: forced, greedy, and greedy with a guess that may be wrong."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from sift_index.evaluation.forcing import PrefilledPrompt, prefilled
from tests.attention import eager_logits
from tests.evaluation.spoken import MODEL, full_logits, greedy, speaking
from tests.plans import tokens

IDS = tuple(tokens(150))
FREE = greedy(IDS, 12)
WRONG = [(token + 1) % 256 for token in FREE]
GUESSES = {
    "none": [],
    "right": FREE,
    "right and short": FREE[:4],
    "right but for the last": [*FREE[:-1], WRONG[-1]],
    "right but for one": [*FREE[:5], WRONG[5], *FREE[6:]],
    "right for one": [*FREE[:1], *WRONG[1:]],
    "wrong": WRONG,
    "one wrong": WRONG[:1],
    "one right": FREE[:1],
    "too long": [*FREE, *WRONG],
}


@contextmanager
def opened(model=MODEL.model):
    with prefilled(model, torch.tensor([IDS]), nullcontext()) as prompt:
        yield prompt


@pytest.fixture
def prompt():
    with opened() as found:
        yield found


@pytest.fixture
def passes():
    """Token numbers of the model's forward calls."""
    lengths: list[int] = []
    hook = MODEL.model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    yield lengths
    hook.remove()


def assert_untouched(prompt: PrefilledPrompt) -> None:
    """The cache holds the prompt and nothing behind it."""
    expected = full_logits([*IDS, 65, 66], None)[len(IDS) - 1 :]
    torch.testing.assert_close(prompt.forced([65, 66, 67]), expected, atol=1e-3, rtol=1e-3)


def test_answers_of_any_length_leave_the_prefilled_prompt_as_it_was(prompt):
    for answer in (FREE, [5], [7, 8, 9], FREE):
        expected = full_logits([*IDS, *answer[:-1]], None)[len(IDS) - 1 :]
        torch.testing.assert_close(prompt.forced(answer), expected, atol=1e-3, rtol=1e-3)
    assert prompt.greedy(12) == FREE == prompt.greedy(12)
    assert_untouched(prompt)


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_never_changes_a_greedy_answer(prompt, name):
    for most in (12, 5, 1):
        assert prompt.greedy(most, GUESSES[name]) == FREE[:most]
    assert_untouched(prompt)


def test_the_answer_has_more_than_one_token(prompt):
    assert len(set(FREE)) > 2  # or a guess would prove little
    assert prompt.greedy(40)[:12] == FREE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [150, *[1] * 11]),
        ("right", [150, 11, 11]),
        ("right but for one", [150, 11, 5, *[1] * 6]),
        ("wrong", [150, 11, *[1] * 11]),
    ],
)
def test_what_is_right_takes_one_pass_together(passes, name, expected):
    with opened() as prompt:
        prompt.greedy(12, GUESSES[name])
    assert passes == expected


@pytest.mark.parametrize("place", [0, 2, 11])
def test_greedy_stops_behind_the_stop_token(place):
    model = speaking().model
    model.generation_config.eos_token_id = [FREE[place], 300]
    end = FREE.index(FREE[place]) + 1
    guesses = {
        "right": FREE[:end],
        "beyond the stop": [*FREE[:end], *FREE[end:]],
        "wrong beyond the stop": [*FREE[:end], *WRONG[end:]],
        "wrong": WRONG,
        "without the stop": FREE[: end - 1],
        "stop too early": [FREE[place]],
        "none": [],
    }
    with opened(model) as prompt:
        for guess in guesses.values():
            assert prompt.greedy(12, guess) == FREE[:end]
            assert prompt.greedy(32, guess) == FREE[:end]
        assert_untouched(prompt)


def test_one_stop_token_and_none():
    model = speaking().model
    for stop, expected in ((FREE[0], FREE[:1]), (None, FREE)):
        model.generation_config.eos_token_id = stop
        with opened(model) as prompt:
            assert prompt.greedy(12) == expected


def test_the_context_of_a_treatment_is_open_while_answers_are_decoded():
    entered: list[str] = []

    @contextmanager
    def treatment():
        entered.append("in")
        yield
        entered.append("out")

    with prefilled(MODEL.model, torch.tensor([IDS]), treatment()) as prompt:
        assert not torch.is_grad_enabled()
        prompt.greedy(3)
        assert entered == ["in"]
    assert entered == ["in", "out"]
    torch.testing.assert_close(
        prompt.last, eager_logits(MODEL.model, IDS)[-1], atol=1e-3, rtol=1e-3
    )
