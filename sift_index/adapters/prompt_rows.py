"""One prompt of a batch: which rows of a call are its own, and its attention under its plan.

Prompts of a batch have plans, lengths and padding of their own. A row of the batch is a stretch of
padding, then the prompt, then what was generated; positions inside a plan count from its start.
"""

from dataclasses import dataclass, field

import torch

from sift_index.errors import PlanError
from sift_index.kernels.api import DevicePlan, attend, dense_rows
from sift_index.runtime.plan import PromptPlan
from sift_index.serving.decoded import DecodedPlans


@dataclass
class PlannedPrompt:
    """A plan, decoded once for each device that a model is spread over, not layer by layer.

    dense: run the prompt densely all the same, by a fast library where there is one.
    """

    plan: PromptPlan
    dense: bool = False
    _decoded: DecodedPlans = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._decoded = DecodedPlans(self.plan.sparse)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        row_start: int,
        scale: float,
    ) -> torch.Tensor:
        """Attend rows [row_start, row_start + R): q [heads, R, D], k and v [kv_heads, N, D]."""
        if self.dense:
            return dense_rows(q, k, v, scale)
        return attend(q, k, v, self.on(q.device), layer, row_start, scale)

    def on(self, device: torch.device) -> DevicePlan:
        """Return the plan decoded on a device, for its current stream."""
        return self._decoded.on(device)


@dataclass(frozen=True)
class PromptRows:
    """The rows of one prompt in a call whose first column stands at `column` of the cache.

    pad: columns of padding in front of the prompt. columns: columns of the call.
    """

    prompt: PlannedPrompt
    pad: int
    column: int
    columns: int

    @property
    def skipped(self) -> int:
        """Columns of the call that are padding."""
        return min(max(self.pad - self.column, 0), self.columns)

    @property
    def count(self) -> int:
        """Columns of the call that are none."""
        return self.columns - self.skipped

    @property
    def row_start(self) -> int:
        """Position in the prompt of the call's first row that is none."""
        return max(self.column - self.pad, 0)

    def check(self, ids: torch.Tensor, name: str) -> None:
        """Raise PlanError unless ids, int [columns], are the plan's; `name` says which prompt."""
        difference = self.prompt.plan.first_difference(ids[self.skipped :], self.row_start)
        if difference is None:
            return
        at, wanted, found = difference
        behind = f", behind {self.pad} tokens of padding" if self.pad else ""
        raise PlanError(
            f"{name}expected the plan's tokens, found token {found} at position {at} where the "
            f"plan has {wanted}{behind}; compose this prompt"
        )

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return one layer's rows that are no padding, [columns - skipped, heads, D].

        q: [heads, columns, D]; k, v: [kv_heads, column + columns, D].
        """
        rows, keys, values = q[:, self.skipped :], k[:, self.pad :], v[:, self.pad :]
        if not self.count:
            return rows.transpose(0, 1)  # of no rows
        return self.prompt.attend(layer, rows, keys, values, self.row_start, scale).transpose(0, 1)


def padding(mask: torch.Tensor | None, prompts: int, column: int, columns: int) -> list[int]:
    """Return the columns of padding in front of each prompt, from a mask [prompts, all columns].

    Padding behind a prompt is allowed where nothing follows it: in the only call of a prefill.
    Raises PlanError for a mask of any other kind.
    """
    if mask is None:
        return [0] * prompts
    if mask.ndim != 2 or mask.shape != (prompts, column + columns):
        raise PlanError(
            f"expected an attention mask of shape [{prompts}, {column + columns}] that says which "
            f"tokens are padding, or none, found one of shape {list(mask.shape)}"
        )
    on = mask.bool().cpu()  # a GPU is waited for once, not for every question below
    pads = (on.cumsum(-1) == 0).sum(-1)
    behind = (on.flip(-1).cumsum(-1) == 0).sum(-1)
    inside = on.sum(-1) + pads + behind != mask.shape[1]
    # A row of padding alone is in front of its prompt, which comes in a later chunk.
    empty = pads == mask.shape[1]
    if bool((inside & ~empty).any()) or (column and bool((behind > 0)[~empty].any())):
        raise PlanError(
            "expected padding in front of prompts, found masked tokens inside or behind one; pad "
            "on the left and pass attention_mask, as batch_inputs does: without one, generate "
            "takes every token that is the pad token for padding"
        )
    found: list[int] = pads.tolist()
    return found
