"""`with` blocks that hold in the thread, or task, that entered them, and in no other.

A context variable says which are open. Contexts can be copied inside a block and outlive it, as in
a thread that goes on, and a generator may leave a block in another context than it entered it in;
so a block that was left counts nowhere any more, whoever still remembers it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import torch

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])


class Blocks(Generic[Value]):
    """Open blocks of one kind, each with a value."""

    def __init__(self, name: str) -> None:
        # Lists of one value, emptied when their block is left: the same object in all contexts.
        self._entered: ContextVar[tuple[list[Value], ...]] = ContextVar(name, default=())

    @contextmanager
    def entered(self, value: Value) -> Iterator[None]:
        """Open a block with a value in this context."""
        block = [value]
        token = self._entered.set((*filter(None, self._entered.get()), block))
        try:
            yield
        finally:
            block.clear()
            try:
                self._entered.reset(token)
            except ValueError:  # left in another context
                pass

    def innermost_first(self) -> Iterator[Value]:
        """Yield the values of the blocks that are open in this context."""
        for block in reversed(self._entered.get()):
            yield from tuple(block)  # another thread may empty it meanwhile


def uncompiled(function: Function) -> Function:
    """Return a function that a compiled model calls as it is.

    A graph would keep the block that was open when it was made, and not ask which one is now.
    """
    found: Function = torch.compiler.disable(function)
    return found
