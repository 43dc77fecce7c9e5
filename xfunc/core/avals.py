"""Abstract values: the shape, dtype and sharding of an array during tracing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from xfunc.core.size_questions import TRACKED_NUMBERS
from xfunc.core.types import Shaped
from xfunc.graph.node import ArrayType, array_type
from xfunc.hlo import Shape


class SymbolicSize:
    """A size that is not known yet: see `xfunc.symbolic.dim`."""


@dataclasses.dataclass(frozen=True)
class ShapeDtypeStruct:
    """The shape and dtype (and, on a mesh, the sharding) of an array that need not exist."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    sharding: Any = None

    if TYPE_CHECKING:  # The constructor takes any sequence, and symbolic sizes.

        def __init__(
            self,
            shape: Sequence[int | SymbolicSize],
            dtype: torch.dtype,
            sharding: object = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        sizes = [d if type(d) is int or isinstance(d, SymbolicSize) else int(d) for d in self.shape]
        object.__setattr__(self, "shape", tuple(sizes))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def update(self, **fields: object) -> ShapeDtypeStruct:
        """The same with another shape, dtype or sharding."""
        return dataclasses.replace(self, **fields)

    def __str__(self) -> str:
        return short(self)


Aval = ShapeDtypeStruct


AvalKey: TypeAlias = tuple[tuple[int, ...], torch.dtype]
"""An aval as a part of a key, without its sharding."""


def aval_of(x: Shaped) -> Aval:
    """The aval of a tensor; an aval unchanged."""
    if isinstance(x, ShapeDtypeStruct):
        return x
    if type(x) is torch.Tensor:
        with torch._C.DisableTorchFunction():  # Each read would pass the mode of a trace.
            return Aval(tuple(x.shape), x.dtype)
    return Aval(tuple(x.shape), x.dtype)


def batched(avals: Sequence[Aval], dims: Sequence[int | None], n: int) -> tuple[Aval, ...]:
    """The avals with a batch dimension of size n at each of the dims; None: without one."""
    return tuple(
        a if d is None else Aval((*a.shape[:d], n, *a.shape[d:]), a.dtype)
        for a, d in zip(avals, dims, strict=True)
    )


def hlo_shape(aval: Shaped) -> Shape:
    """The HLO array shape of anything that has a shape and a dtype."""
    return Shape(aval.dtype, tuple(aval.shape))


def array_of(aval: Shaped) -> ArrayType:
    """The type of a node for anything that has a shape and a dtype."""
    return array_type(aval.dtype, tuple(aval.shape))


def short(x: Shaped) -> str:
    """``float32[3,4]``."""
    return f"{str(x.dtype).removeprefix('torch.')}[{','.join(str(d) for d in x.shape)}]"


NUMBERS: frozenset[type[Any]] = frozenset((bool, int, float, complex, *TRACKED_NUMBERS))
"""The types of Python numbers among the dynamic arguments."""


def dtype_of(number: type[Any]) -> torch.dtype:
    """The dtype of Python numbers of a type: as in torch, the default dtype for floating ones."""
    if issubclass(number, int):
        return torch.bool if number is bool else torch.int64
    default = torch.get_default_dtype()
    if issubclass(number, float):
        return default
    return torch.complex128 if default is torch.float64 else torch.complex64
