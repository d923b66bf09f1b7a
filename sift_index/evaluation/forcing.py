"""One prompt, prefilled once, then continued by any number of answers with teacher forcing."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from sift_index.adapters.hf_calls import cache_argument, cache_of, stop_tokens, trim_cache


class PrefilledPrompt:
    """A prompt in the KV cache; `last` are the logits [vocabulary] behind its final token."""

    def __init__(self, model: Any, ids: torch.Tensor) -> None:
        self._model = model
        self._length = ids.shape[1]
        output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        self._cache = cache_of(output)
        self.last: torch.Tensor = output.logits[0, -1].float()

    def forced(self, answer: list[int]) -> torch.Tensor:
        """Return float32 logits [len(answer), vocabulary] that predict each answer token."""
        if len(answer) == 1:
            return self.last[None]
        rest = self._step(answer[:-1])
        trim_cache(self._cache, self._length)
        return torch.cat((self.last[None], rest))

    def greedy(self, most: int, guess: Sequence[int] = ()) -> list[int]:
        """Return the greedy continuation: up to `most` tokens, the stop token included.

        guess: an answer that may be right for its first tokens, as another method's; those that
        are take one pass together instead of one each.
        """
        stops = stop_tokens(self._model)
        ended = next((at + 1 for at, token in enumerate(guess) if token in stops), most)
        answer = self._confirmed(guess[: min(ended, most)])
        if len(answer) > 1:
            self._step(answer[:-1])
        while len(answer) < most and answer[-1] not in stops:
            answer.append(int(self._step([answer[-1]])[-1].argmax()))
        trim_cache(self._cache, self._length)
        return answer

    def _confirmed(self, guess: Sequence[int]) -> list[int]:
        """Return the longest start of `guess` that is greedy, and the greedy token behind it."""
        if not guess:
            return [int(self.last.argmax())]
        chosen = self.forced(list(guess)).argmax(-1).tolist()
        right = next((i for i, g in enumerate(guess) if g != chosen[i]), len(guess) - 1)
        return [*guess[:right], chosen[right]]

    def _step(self, tokens: list[int]) -> torch.Tensor:
        ids = torch.tensor([tokens], device=self.last.device)
        cache = {cache_argument(self._model): self._cache}
        logits: torch.Tensor = self._model(input_ids=ids, use_cache=True, **cache).logits
        return logits[0].float()


@contextmanager
def prefilled(
    model: Any, ids: torch.Tensor, attention: AbstractContextManager[None]
) -> Iterator[PrefilledPrompt]:
    """Prefill `ids` [1, length] inside a treatment's context, and keep it open for answers."""
    with torch.inference_mode(), attention:
        yield PrefilledPrompt(model, ids)
