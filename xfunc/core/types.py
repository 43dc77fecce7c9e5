"""Type names shared by several folders; the ones for trees are in `xfunc.tree`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from xfunc.hlo.spmd.tiles import HloSharding
    from xfunc.sharding.mesh import AbstractMesh

Number: TypeAlias = bool | int | float | complex
NumpyArray: TypeAlias = npt.NDArray[np.generic] | np.generic
ArrayLike: TypeAlias = torch.Tensor | NumpyArray | Number
"""Anything accepted where an array is expected."""


class Shaped(Protocol):
    """Anything with a shape and a dtype: a tensor, an aval, a node of a trace."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> torch.dtype: ...


@runtime_checkable
class Sharding(Protocol):
    """The part of `NamedSharding` that the folders below `xfunc.sharding` use."""

    @property
    def mesh(self) -> AbstractMesh: ...
    def tiles(self, ndim: int) -> HloSharding:
        """The part of an array that each device holds."""
        ...

    def of_tiles(self, tiles: HloSharding) -> Sharding | None:
        """The sharding on the same mesh that divides an array so; None: there is none."""
        ...

    def check(self, shape: tuple[int, ...], what: str) -> None:
        """Raise unless an array of this shape can be sharded like this."""
        ...


class AutogradContext(Protocol):
    """The context that torch passes to the methods of an `autograd.Function`.

    A function that stores more on it declares a subclass (see `xfunc.program.autograd_functions`).
    """

    needs_input_grad: tuple[bool, ...]

    @property
    def saved_tensors(self) -> tuple[torch.Tensor, ...]: ...
    def save_for_backward(self, *tensors: torch.Tensor | None) -> None: ...
    def save_for_forward(self, *tensors: torch.Tensor | None) -> None: ...
    def mark_non_differentiable(self, *outputs: torch.Tensor) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...
