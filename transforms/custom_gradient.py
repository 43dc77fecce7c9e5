"""`custom_gradient`: a function that returns its value and the rule for its gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar, cast

from xfunc import tree
from xfunc.core.locations import described, function_name
from xfunc.core.wrappers import Part
from xfunc.errors import TreeMismatchError, fail, kind_of
from xfunc.program.bind import bind
from xfunc.stages.arguments import avals_of
from xfunc.stages.checks import Fun, Tensor, as_tensors, is_pair, is_sequence
from xfunc.stages.entry import Entry
from xfunc.stages.staging import Staged
from xfunc.torchlib.eager import is_eager
from xfunc.transforms.custom_vjp import CustomVjp, custom_vjp
from xfunc.tree import PyTree

P = ParamSpec("P")
R = TypeVar("R")


def custom_gradient(fun: Callable[P, tuple[R, object]]) -> CustomVjp[P, R]:
    """Differentiate `fun` by the function that it returns as its second result.

    ::

        @xf.custom_gradient
        def f(x, y):
            z = torch.exp(x)
            return z * y, lambda ct: (ct * z * y, ct * z)

    Values that the rule closes over are kept for the backward pass. `custom_vjp` expresses the same
    with two functions.

    Args:
        fun: a pure function of trees of tensors that returns ``(out, rule)``. ``rule(ct)`` takes a
            tree like `out` and returns a tuple with one entry for each argument, None meaning zero;
            for a single argument it may return just its gradient, if that is not a tuple.

    Returns:
        A function of the same arguments that returns `out`, the first result of `fun`.

    Raises:
        TreeMismatchError: `fun` does not return a pair with a function, or the result of the rule
            does not fit the arguments.
        UnsupportedOpError: it is differentiated in forward mode.

    Source: ``jax.custom_gradient``.
    """

    @functools.wraps(fun)
    def primal(*args: object) -> R:
        return _pair(fun, args)[0]

    def forward(*args: object) -> tuple[R, PyTree]:
        out, rule = _pair(fun, args)
        if is_eager():
            return out, args
        leaves, structure = tree.flatten(((as_tensors(out),), {}))
        entry, held = Staged(rule, value=Part(rule, "gradient")).find(structure, avals_of(leaves))
        return out, Residuals(entry.inputs(leaves, held)[len(leaves) :], entry)

    def backward(residuals: PyTree, ct: PyTree) -> Sequence[PyTree]:
        if isinstance(residuals, Residuals):
            entry = residuals.entry
            outs = bind(entry.call, [*tree.leaves(ct), *residuals.tensors])
            grads = tree.unflatten(entry.out_tree, outs)
        else:  # made under `disable_jit`: the arguments
            grads = _pair(fun, residuals)[1](ct)
        return grads if is_sequence(grads) else (grads,)

    forward.__qualname__ = backward.__qualname__ = function_name(fun)
    found = custom_vjp(primal)
    found.defvjp(forward, backward)
    return cast(CustomVjp[P, R], found)


class Residuals:
    """The values that a rule closes over, and its program: a tree."""

    def __init__(self, tensors: Iterable[Tensor], entry: Entry):
        self.tensors, self.entry = tuple(tensors), entry


tree.register(Residuals, lambda r: (r.tensors, r.entry), lambda entry, ts: Residuals(ts, entry))


def _pair(fun: Callable[..., tuple[R, object]], args: tuple[object, ...]) -> tuple[R, Fun]:
    out = fun(*args)
    if is_pair(out) and callable(out[1]):
        return out
    fail(
        TreeMismatchError,
        f"custom_gradient({described(fun)}): the function returned {kind_of(out)}, "
        "not a pair of its value and a function",
        "return (out, rule), where rule(ct) returns the gradients of the arguments.",
    )
