"""`eval_shape` and `make_hlo`: what a function would compute, without computing it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from xfunc.hlo import Module
from xfunc.stages import stages
from xfunc.stages.staging import Staged


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of ``fun(*args, **kwargs)`` as a tree of `ShapeDtypeStruct`.

    Arguments may be tensors or `ShapeDtypeStruct`; no data is allocated. Python numbers stand for
    0-d tensors; leaves that are no arrays (None, strings, flags in an object) are as they are.

    Source: ``jax.eval_shape``.
    """
    return stages.trace(Staged(fun), args, kwargs).out_info


def make_hlo(fun: Callable[..., Any]) -> Callable[..., Module]:
    """A function that returns the HLO of `fun` for given arguments; ``print`` shows it.

    The counterpart of ``jax.make_jaxpr``.
    """

    @functools.wraps(fun)
    def make(*args: Any, **kwargs: Any) -> Module:
        return stages.trace(Staged(fun, arrays_only=True), args, kwargs).lower().module

    return make
