"""What each word of xfunc means, in plain eager torch.

A program under test calls xfunc as `xf`. With this module in its place the same text runs as
ordinary torch: loops are Python loops, `vmap` is a loop over the examples, derivatives are
torch.func's reverse mode (a derivative along a direction is the derivative of the pullback, which
is linear), and what only says how to compile or to store is the function itself.

The result of a transform shares no memory with anything, as a value has none to share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as tree

Tensor = torch.Tensor
Fun = Callable[..., Any]


def fresh(value: Any) -> Any:
    """A tree of copies."""
    return tree.tree_map_only(Tensor, lambda t: t.clone(), value)


def _identity(fun: Fun) -> Fun:
    return lambda *args: fresh(fun(*args))


jit = checkpoint = _identity


def stop_gradient(x: Tensor) -> Tensor:
    """The value, without a derivative."""
    return x.detach()


# -- batching and loops -----------------------------------------------------------------------


def vmap(fun: Fun, in_axes: Any = 0, out_axes: int = 0) -> Fun:
    """`fun` of each example, stacked."""

    def mapped(*args: Tensor) -> Any:
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        size = next(a.shape[d] for a, d in zip(args, axes, strict=True) if d is not None)
        rows = [
            fun(
                *(
                    a if d is None else a.select(d, i).clone()
                    for a, d in zip(args, axes, strict=True)
                )
            )
            for i in range(size)
        ]
        return tree.tree_map(lambda *ys: torch.stack(ys, out_axes), *rows)

    return mapped


def scan(
    fun: Fun, init: Any, xs: Any = None, length: int | None = None, reverse: bool = False
) -> Any:
    """A Python loop that carries a value, and stacks what each step gives."""
    leaves = tree.tree_leaves(xs)
    n = leaves[0].shape[0] if xs is not None else length or 0
    carry, rows = fresh(init), [None] * n
    for i in reversed(range(n)) if reverse else range(n):
        x = None if xs is None else tree.tree_map(lambda t, i=i: t[i].clone(), xs)
        carry, rows[i] = fun(carry, x)
    ys = None if rows[0] is None else tree.tree_map(lambda *ts: torch.stack(ts), *rows)
    return fresh(carry), ys


def map(fun: Fun, xs: Any, batch_size: int | None = None) -> Any:
    """`fun` of each slice, stacked."""
    return scan(lambda _, x: (None, fun(x)), None, xs)[1]


def while_loop(test: Fun, body: Fun, init: Any) -> Any:
    """A Python loop."""
    value = fresh(init)
    while test(value):
        value = fresh(body(value))
    return value


def fori_loop(low: int, high: int, body: Fun, init: Any) -> Any:
    """A Python loop."""
    value = fresh(init)
    for i in range(int(low), int(high)):
        value = fresh(body(torch.tensor(i), value))
    return value


def associative_scan(fun: Fun, xs: Tensor, reverse: bool = False, axis: int = 0) -> Tensor:
    """All prefixes, one after the other."""
    parts = list(xs.unbind(axis))
    if reverse:
        parts.reverse()
    for i in range(1, len(parts)):
        a, b = parts[i - 1].unsqueeze(axis), parts[i].unsqueeze(axis)
        parts[i] = fun(a, b).squeeze(axis)
    if reverse:
        parts.reverse()
    return torch.stack(parts, axis)


def cond(which: Tensor, yes: Fun, no: Fun, *operands: Any) -> Any:
    """An `if`."""
    return fresh(yes(*operands) if which else no(*operands))


def switch(index: Tensor, branches: Sequence[Fun], *operands: Any) -> Any:
    """A choice; an index beyond the ends means the end."""
    return fresh(branches[min(max(int(index), 0), len(branches) - 1)](*operands))


# -- derivatives ------------------------------------------------------------------------------

_vjp: Callable[..., tuple[Any, Fun]] = torch.func.vjp  # pyright: ignore[reportAssignmentType]


def vjp(fun: Fun, *primals: Any) -> Any:
    """A value and its pullback."""
    out, pull = _vjp(fun, *primals)
    return fresh(out), lambda ct: fresh(pull(ct))


def jvp(fun: Fun, primals: Any, tangents: Any) -> Any:
    """A value and its derivative along a direction."""
    out = fresh(fun(*primals))
    # Anywhere will do: it is linear. But torch's formula for logcumsumexp takes logarithms.
    ones = tree.tree_map(torch.ones_like, out)
    _, push = _vjp(lambda ct: _vjp(fun, *primals)[1](ct), ones)
    (dots,) = push(tuple(tangents))
    return out, fresh(dots)


def linearize(fun: Fun, *primals: Any) -> Any:
    """A value, and the derivative as a function of a direction."""
    return fresh(fun(*primals)), lambda *tangents: jvp(fun, primals, tangents)[1]


def grad(fun: Fun, argnums: Any = 0, has_aux: bool = False) -> Fun:
    """The gradient."""
    return lambda *args: fresh(torch.func.grad(fun, argnums, has_aux)(*args))


def value_and_grad(fun: Fun, argnums: Any = 0, has_aux: bool = False) -> Fun:
    """The value and the gradient, in this order."""

    def both(*args: Any) -> Any:
        grads, value = torch.func.grad_and_value(fun, argnums, has_aux)(*args)
        return fresh((value, grads))

    return both


def jacrev(fun: Fun) -> Fun:
    """The derivatives of all entries of the result, row by row."""

    def jacobian(x: Tensor) -> Tensor:
        out, pull = _vjp(fun, x)
        units = torch.eye(out.numel(), dtype=out.dtype).reshape(-1, *out.shape)
        rows = [pull(unit)[0] for unit in units]
        return torch.stack(rows).reshape(*out.shape, *x.shape)

    return jacobian


def jacfwd(fun: Fun) -> Fun:
    """The same column by column, of the dtype of the result; it differs beside NaN and infinities.

    There a product with an entry of a unit that is zero is NaN, and stands in a row or a column.
    """

    def jacobian(x: Tensor) -> Tensor:
        units = torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
        out = fun(x)
        columns = [jvp(fun, (x,), (unit,))[1] for unit in units]
        if not columns:
            return jacrev(fun)(x).to(out.dtype)
        return torch.stack(columns, -1).reshape(*out.shape, *x.shape).to(out.dtype)

    return jacobian


def hessian(fun: Fun) -> Fun:
    """The derivative of the gradient."""
    return jacfwd(jacrev(fun))


# -- rules of the user's own ------------------------------------------------------------------


class _Custom:
    """A function with a derivative of its own: `pull(args, ct)` gives the cotangents."""

    pull: Callable[[Sequence[Tensor], Tensor], Any]

    def __init__(self, fun: Fun):
        self._fun = fun

    def __call__(self, *args: Tensor) -> Tensor:
        fun, pull = self._fun, self.pull

        class Rule(torch.autograd.Function):
            @staticmethod
            def forward(*args: Tensor) -> Tensor:
                return fresh(fun(*args))

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx: Any, ct: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
                return tuple(pull(ctx.saved_tensors, ct))

        return Rule.apply(*args)  # pyright: ignore[reportReturnType]


class custom_vjp(_Custom):
    """`forward` keeps its arguments."""

    def defvjp(self, forward: Fun, backward: Fun) -> None:
        self.pull = backward


class custom_jvp(_Custom):
    """Its pullback is the transpose of the rule, which is linear in the tangents."""

    def defjvp(self, rule: Fun) -> Fun:
        def pull(args: Sequence[Tensor], ct: Tensor) -> Any:
            zeros = [torch.zeros_like(a) for a in args]
            _, back = _vjp(lambda *tangents: rule(tuple(args), tangents)[1], *zeros)
            return back(ct)

        self.pull = pull
        return rule
