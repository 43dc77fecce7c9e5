"""What both kinds of random programs share while they are written."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")


class Draft(Generic[V]):
    """The lines of a program under construction, and a source of choices.

    Attributes:
        random: makes all choices.
        scope: the variables that the next line may use, oldest first.
        reverse: whether an enclosing function is differentiated in reverse mode; a loop of unknown
            length cannot be.
        forward: the same for forward mode; a function with a custom vjp cannot be.
    """

    def __init__(self, seed: int | str):
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.scope: list[V] = []
        self.reverse = self.forward = False
        self._indent = self._names = 0

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def count(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    @contextlib.contextmanager
    def body(
        self,
        parameters: Sequence[str],
        variables: Sequence[V],
        *,
        closed: bool,
        reverse: bool,
        forward: bool,
        decorator: str,
    ) -> Iterator[str]:
        """Write the body of a nested function in a scope of its own; gives its name.

        Args:
            parameters: as written.
            variables: what of them is in scope.
            closed: whether it may use nothing else.
            reverse, forward: how it is differentiated.
            decorator: of the function.
        """
        name = self.name("f")
        if decorator:
            self.line(f"@{decorator}")
        self.line(f"def {name}({', '.join(parameters)}):")
        before = self.scope, self.reverse, self.forward, self._indent
        self.scope = [*(() if closed else self.scope), *variables]
        self.reverse, self.forward = self.reverse or reverse, self.forward or forward
        self._indent += 1
        try:
            yield name
        finally:
            self.scope, self.reverse, self.forward, self._indent = before


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Whether a shape broadcasts to another."""
    return len(shape) <= len(to) and all(
        a in (1, b) for a, b in zip(shape[::-1], to[::-1], strict=False)
    )
