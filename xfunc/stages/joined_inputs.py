"""The flat inputs of several programs together: arguments first, then their captures."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xfunc.core.avals import Aval, aval_of
from xfunc.stages.entry import Entry


class SharedInputs:
    """The flat inputs of programs that take the same tensors; a shared capture is one input.

    Attributes:
        flat: the tensors.
    """

    def __init__(self, leaves: Sequence[torch.Tensor]):
        self.flat: list[torch.Tensor] = list(leaves)
        self._place: dict[int, int] = {}

    def add(
        self, entry: Entry, leaves: Sequence[torch.Tensor], held: Sequence[torch.Tensor]
    ) -> tuple[int, ...]:
        """Add the program's captures; returns their positions among the flat inputs.

        `leaves` are its arguments; `held` are the tensors that its function holds.
        """
        captures = entry.inputs(list(leaves), held)[len(leaves) :]
        for c in captures:
            if id(c) not in self._place:
                self._place[id(c)] = len(self.flat)
                self.flat.append(c)
        return tuple(self._place[id(c)] for c in captures)

    @property
    def avals(self) -> tuple[Aval, ...]:
        """Avals of all of them."""
        return tuple(map(aval_of, self.flat))
