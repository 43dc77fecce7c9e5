"""`optimization_barrier` and `reduce_precision`: limits to what the compiler may rewrite."""

from __future__ import annotations

import dataclasses
import operator
from typing import TypeVar

from xfunc import tree
from xfunc.core.avals import array_of, aval_of, short
from xfunc.core.types import ArrayLike
from xfunc.errors import fail
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node
from xfunc.program.annotation import Annotation
from xfunc.program.bind import bind
from xfunc.stages.checks import Tensor, arrays, as_tensor, as_tensors, labels_in
from xfunc.torchlib.eager import is_eager
from xfunc.trace import tracing
from xfunc.transforms.jit import jit

T = TypeVar("T")


def optimization_barrier(operand: T) -> T:
    """The same tree, all of which is computed before anything that uses the result.

    XLA does not merge, move or fuse operations across it. Derivatives have a barrier too.

    Args:
        operand: a tree of arrays.

    Returns:
        A tree like `operand`.

    Raises:
        TypeError: a leaf is not an array.

    Example::

        >>> xf.jit(lambda x: xf.optimization_barrier(x * 2) + 1)(torch.ones(2)).tolist()
        [3.0, 3.0]

    Semantics: ``jax.lax.optimization_barrier``.
    """
    leaves, structure = tree.flatten(as_tensors(operand))
    leaves = arrays(leaves, "optimization_barrier", labels_in(operand, "operand"))
    if not leaves or tracing.current() is None or is_eager():
        return tree.unflatten(structure, leaves)
    return tree.unflatten(structure, bind(Barrier(tuple(map(aval_of, leaves))), leaves))


@dataclasses.dataclass(frozen=True)
class Barrier(Annotation):
    """The primitive of `optimization_barrier`."""

    @property
    def graph(self) -> Graph:
        given = build.parameters([array_of(a) for a in self.avals])
        held = build.several("opt-barrier", [n.type for n in given], tuple(given))
        return Graph(self.name, given, held)


def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Tensor:
    """`operand` rounded to a format with fewer bits, in its own dtype.

    XLA does not remove it, as it may a conversion to bfloat16 and back.

    Args:
        operand: a floating array.
        exponent_bits: of the format, from 1 on.
        mantissa_bits: of the format, from 0 on.

    Returns:
        An array like `operand`. The derivative is that of the identity, rounded likewise.

    Raises:
        TypeError: `operand` is not floating.
        ValueError: a number of bits is out of range.

    Example::

        >>> xf.reduce_precision(torch.tensor([1.001, 3.0]), 8, 7).tolist()    # bfloat16
        [1.0, 3.0]

    Semantics: ``jax.lax.reduce_precision``.
    """
    x: Tensor = as_tensor(operand)
    bits = operator.index(exponent_bits), operator.index(mantissa_bits)
    if not x.dtype.is_floating_point:
        fail(TypeError, f"reduce_precision was given {short(x)}", "pass a floating array.")
    if bits[0] < 1 or bits[1] < 0:
        fail(
            ValueError,
            f"reduce_precision was given {bits[0]} bits of exponent and {bits[1]} of mantissa",
            "give at least 1 and 0.",
        )
    return _rounded(x, *bits)


@jit(static_argnums=(1, 2))
def _rounded(x: Tensor, exponent: int, mantissa: int) -> Tensor:
    return bind(Rounding((aval_of(x),), exponent, mantissa), [x])[0]


@dataclasses.dataclass(frozen=True)
class Rounding(Annotation):
    """The primitive of `reduce_precision`.

    Attributes:
        exponent: bits of the exponent.
        mantissa: bits of the mantissa.
    """

    exponent: int
    mantissa: int

    @property
    def graph(self) -> Graph:
        (x,) = build.parameters([array_of(self.avals[0])])
        rounded = Node("reduce-precision", x.type, (x,), (self.exponent, self.mantissa))
        return Graph(self.name, [x], [rounded])
