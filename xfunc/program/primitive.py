"""What `xfunc.program.bind` can apply: the protocols of primitives and of their two passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from xfunc.core.avals import Aval

Tensor = torch.Tensor
Dims = tuple[int | None, ...]


class Pair(Protocol):
    """A forward pass that keeps residuals, and the backward pass that uses them."""

    @property
    def wrt(self) -> tuple[int, ...]:
        """The inputs that get a gradient."""
        ...

    @property
    def n_outputs(self) -> int:
        """How many of the results of `forward` are outputs."""
        ...

    @property
    def cts(self) -> tuple[int, ...]:
        """The outputs that depend, differentiably, on the inputs in `wrt`."""
        ...

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        """Outputs, then residuals."""
        ...

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor]:
        """Gradients of the inputs in `wrt`; a cotangent None is zero."""
        ...

    def batched(self, dims: Dims, n: int) -> tuple[Pair, Dims, Dims, Dims]:
        """The pair of the batched program; batch dimensions of args, outputs, gradients."""
        ...


class Primitive(Protocol):
    """Something that `bind` can apply."""

    @property
    def outputs(self) -> tuple[Aval, ...]:
        """Avals of the results."""
        ...

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        """Apply to plain tensors."""
        ...

    def pair(self, wrt: tuple[bool, ...]) -> Pair | None:
        """The two passes for gradients with respect to the inputs marked; None: `vjp` serves."""
        ...

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        """Gradients of the inputs in `wrt`, differentiable again."""
        ...

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Tangents of the outputs; None: there is none."""
        ...

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        """Outputs of the vmap, and their batch dimensions."""
        ...
