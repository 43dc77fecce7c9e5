"""The protocols of primitives, which `xfunc.program.bind` applies, and of their two passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from xfunc.core.avals import Aval

Tensor = torch.Tensor
Dims = tuple[int | None, ...]


class ReverseRule(Protocol):
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
    ) -> Sequence[Tensor | None]:
        """Gradients of the inputs in `wrt`; None is zero, also for a cotangent."""
        ...

    def batched(self, dims: Dims, n: int) -> tuple[ReverseRule, Dims, Dims, Dims]:
        """The rule of the batched program; batch dimensions of args, outputs, gradients."""
        ...


class Rule:
    """How the innermost level of torch.func, a grad or jvp, differentiates a primitive.

    Levels below that see `forward`: see `xfunc.torchlib.functorch.apply_here`.
    """

    def forward(self, *args: Tensor) -> list[Tensor]:
        """Runs below the level; returns the outputs, and other values to keep."""
        raise NotImplementedError

    def keep(self, args: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The values that `gradients` and `jvp` receive."""
        return tuple(args)

    def gradients(
        self, kept: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> tuple[Sequence[int], Sequence[Tensor | None]]:
        """The inputs that have a gradient, and the gradients; at least one cotangent is given."""
        raise NotImplementedError

    def backward(
        self, n_inputs: int, kept: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> tuple[Tensor | None, ...]:
        """A gradient for each input, or None."""
        if all(c is None for c in cts):
            return (None,) * n_inputs
        return scatter_to_inputs(n_inputs, *self.gradients(kept, cts))

    def jvp(
        self, kept: Sequence[Tensor], tangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """Tangents of the results of `forward`."""
        raise NotImplementedError


def scatter_to_inputs(
    n_inputs: int, wrt: Sequence[int], gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """A gradient for each input; None for inputs that are not in `wrt`."""
    found: dict[int, Tensor | None] = dict(zip(wrt, gradients, strict=True))
    return tuple(found.get(i) for i in range(n_inputs))


class Primitive(Protocol):
    """Something that `bind` can apply: the base of all primitives."""

    @property
    def outputs(self) -> tuple[Aval, ...]:
        """Avals of the results."""
        ...

    @property
    def has_rule(self) -> bool:
        """Whether functions with custom rules are called in it."""
        return False

    def with_fwd_rules(self, wrt: tuple[int, ...], forward_mode: bool) -> Primitive:
        """The operations that levels below a gradient or a tangent see, if it `has_rule`.

        The level differentiates with respect to the inputs in `wrt`.
        """
        return self

    @property
    def rule(self) -> Rule | None:
        """How the innermost level differentiates it; None: by `vjp` and `jvp`."""
        return None

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        """Apply to plain tensors."""
        ...

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule | None:
        """The two passes for gradients with respect to the marked inputs; None: `vjp` is used."""
        return None

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> Sequence[Tensor | None]:
        """Gradients of the inputs in `wrt`, differentiable again; None, as in `cts`, is zero."""
        ...

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Tangents of the outputs; None: there is none."""
        ...

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        """Outputs of the vmap, and their batch dimensions."""
        ...
