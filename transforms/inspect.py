"""`eval_shape` and `make_hlo`: shapes and HLO of a function, without running it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from xfunc.core.wrappers import Part
from xfunc.hlo import Module
from xfunc.stages import stages
from xfunc.stages.staging import Staged
from xfunc.stages.transformed import CallableOrLambda
from xfunc.symbolic.abstract import is_symbolic, symbolic_hlo, symbolic_result
from xfunc.symbolic.interpolation import SymbolicModule
from xfunc.transforms.jit import Jit
from xfunc.tree import PyTree


def eval_shape(fun: CallableOrLambda[..., object], *args: object, **kwargs: object) -> PyTree:
    """The result of ``fun(*args, **kwargs)`` as a tree of `ShapeDtypeStruct`.

    Arguments may be tensors or `ShapeDtypeStruct`; no data is allocated. Python numbers stand for
    0-d tensors; leaves that are not arrays (None, strings, flags in an object) are unchanged.
    Shapes with a `Dim` in them give results with sizes computed from it.

    Args:
        fun: a function of trees of tensors.
        args: its arguments; see above.
        kwargs: likewise.

    Returns:
        A tree like the result of `fun`, with a `ShapeDtypeStruct` for each array.

    Raises:
        ShapeError: a size of the result is not a polynomial in the Dims.

    Source: ``jax.eval_shape``.
    """
    if is_symbolic(args, kwargs):
        return symbolic_result(fun, args, kwargs)
    fun = without_options(fun)
    staged = Staged(fun, Part(fun, "shapes"))
    return stages.trace(staged, args, kwargs).out_info


def make_hlo(fun: CallableOrLambda[..., object]) -> Callable[..., Any]:
    """A function that returns the HLO of `fun` for given arguments; ``print`` shows it.

    Arguments with a `Dim` in their shapes give the HLO for all sizes: ``f32[B,S-1,4096]``.

    Args:
        fun: a function of trees of tensors.

    Returns:
        A function of the same arguments, tensors or `ShapeDtypeStruct`, that returns the HLO;
        ``str`` gives its text.

    Raises:
        ShapeError: the function is not one program for all sizes.

    The counterpart of ``jax.make_jaxpr``.
    """

    # With Dims it is no `Module`; a union type would make each caller check.
    @functools.wraps(fun)
    def make(*args: object, **kwargs: object) -> Module | SymbolicModule:
        if is_symbolic(args, kwargs):
            return symbolic_hlo(fun, args, kwargs)
        inner = without_options(fun)
        staged = Staged(inner, Part(inner, "HLO"), arrays_only=True)
        return stages.trace(staged, args, kwargs).lower().module

    return make


def without_options(fun: Callable[..., object]) -> Callable[..., object]:
    """The function without its options for a compiler, if it is jitted with some."""
    inner: Callable[..., object] = fun
    if isinstance(fun, Jit) and fun.compiler:
        inner = fun.without_compiler()
    return inner
