"""The operations by which devices, or the examples of a batch, combine their values.

There is a class for each. All but the maximum are linear in the values of all devices together, and
are differentiated as such:

===================  ========================================  ========================
class                result on a device                        transpose
===================  ========================================  ========================
`Sum`                the sum                                   `Sum`
`Gather`             all arrays, stacked on a new axis 0       `Scatter`
`Scatter`            row k of the sum, k being its index       `Gather`
`AllToAll`           row k of each device's array, stacked     `AllToAll`
`CollectivePermute`  the array of another device, or zeros     `CollectivePermute` back
`Maximum`            the elementwise maximum                   none: it is not linear
===================  ========================================  ========================
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from xfunc.graph.node import Node
from xfunc.hlo.spmd import collectives as hlo
from xfunc.hlo.spmd.collectives import Groups
from xfunc.program.primitive import Tensor

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class CollectiveOp:
    """Base of the classes.

    Attributes:
        name: of the public function.
        before: the axis of the argument before which the batch of a vmap goes.
        after: the axis of the result before which that batch goes.
        is_shared: whether all get the same result.
    """

    name: ClassVar[str]
    before: ClassVar[int] = 0
    after: ClassVar[int] = 0
    is_shared: ClassVar[bool] = False

    def result(self, shape: Shape, size: int) -> Shape:
        """The shape of the result in a group of the given size."""
        return shape

    def transposed(self) -> CollectiveOp | None:
        """The transpose, from a cotangent of the result to one of the argument; None if it is not
        linear.
        """
        return self

    def made(self, x: Node, groups: Groups) -> Node:
        """The result on one device."""
        raise NotImplementedError

    def of_all(self, x: Tensor) -> Tensor:
        """The result for the values along axis 0; stacked along axis 0 if the results differ."""
        raise NotImplementedError


class Sum(CollectiveOp):
    """``psum``."""

    name, is_shared = "psum", True

    def made(self, x: Node, groups: Groups) -> Node:
        return hlo.all_reduce(x, groups, "add")

    def of_all(self, x: Tensor) -> Tensor:
        return x.sum(0, dtype=x.dtype)


class Maximum(CollectiveOp):
    """``pmax``."""

    name, is_shared = "pmax", True

    def transposed(self) -> None:
        return None

    def made(self, x: Node, groups: Groups) -> Node:
        return hlo.all_max(x, groups)

    def of_all(self, x: Tensor) -> Tensor:
        return x.amax(0)


class Gather(CollectiveOp):
    """``all_gather``."""

    name, after, is_shared = "all_gather", 1, True

    def result(self, shape: Shape, size: int) -> Shape:
        return (size, *shape)

    def transposed(self) -> CollectiveOp:
        return Scatter()

    def made(self, x: Node, groups: Groups) -> Node:
        return hlo.all_gather(x, groups)

    def of_all(self, x: Tensor) -> Tensor:
        return x.clone()  # torch would take the argument itself for its old value.


class Scatter(CollectiveOp):
    """``psum_scatter``."""

    name, before = "psum_scatter", 1

    def result(self, shape: Shape, size: int) -> Shape:
        return shape[1:]

    def transposed(self) -> CollectiveOp:
        return Gather()

    def made(self, x: Node, groups: Groups) -> Node:
        return hlo.reduce_scatter(x, groups)

    def of_all(self, x: Tensor) -> Tensor:
        return x.sum(0, dtype=x.dtype)


class AllToAll(CollectiveOp):
    """``all_to_all``."""

    name, before, after = "all_to_all", 1, 1

    def made(self, x: Node, groups: Groups) -> Node:
        return hlo.all_to_all(x, groups)

    def of_all(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)


@dataclasses.dataclass(frozen=True)
class CollectivePermute(CollectiveOp):
    """``ppermute``.

    Attributes:
        perm: pairs of places in the group, from and to.
    """

    perm: tuple[tuple[int, int], ...]
    name = "ppermute"

    def transposed(self) -> CollectiveOp:
        return CollectivePermute(tuple((target, source) for source, target in self.perm))

    def made(self, x: Node, groups: Groups) -> Node:
        return hlo.collective_permute(x, groups, self.perm)

    def of_all(self, x: Tensor) -> Tensor:
        sources = {target: source for source, target in self.perm}
        nothing = torch.zeros_like(x[0])
        rows = [x[sources[k]] if k in sources else nothing for k in range(x.shape[0])]
        return torch.stack(rows)
