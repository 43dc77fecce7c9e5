"""The reverse rule of a primitive that uses its own `vjp` as its backward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from xfunc.program.primitive import Dims, Tensor


class Mappable(Protocol):
    """A primitive with a batched form of the same kind."""

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        """See `Primitive`."""
        ...

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> Sequence[Tensor | None]:
        """See `Primitive`."""
        ...

    def mapped(self, dims: Dims, n: int) -> tuple[Mappable, Dims, Dims]:
        """The primitive of a batch, and the batch dimensions of its arguments and outputs."""
        ...


@dataclasses.dataclass(frozen=True)
class CustomReverseRule:
    """First-order reverse mode that keeps no residuals: see `ReverseRule`."""

    primitive: Mappable
    wrt: tuple[int, ...] = (0,)
    cts: tuple[int, ...] = (0,)
    n_outputs: int = 1

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        return self.primitive.emit(args)

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        return self.primitive.vjp(args, cts, self.wrt)

    def batched(self, dims: Dims, n: int) -> tuple[CustomReverseRule, Dims, Dims, Dims]:
        inner, arg_dims, out_dims = self.primitive.mapped(dims, n)
        rule = dataclasses.replace(self, primitive=inner)
        return rule, arg_dims, out_dims, tuple(arg_dims[i] for i in self.wrt)
