"""Every transform as a map from functions R^3 -> R^3 to such functions, written twice.

Once with xfunc and once in plain torch (loops, Python's `if`, torch.func), so that any two of them
compose in both orders and can be compared in float64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import xfunc as xf

Fun = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A transform, twice.

    Attributes:
        ours: with xfunc.
        plain: what it means.
        differentiates: the mode in which it differentiates its function ("forward", "reverse").
        refuses: the modes in which it cannot be differentiated.
    """

    ours: Callable[[Fun], Fun]
    plain: Callable[[Fun], Fun]
    differentiates: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()


def base(x: torch.Tensor) -> torch.Tensor:
    """A smooth function with a dense Jacobian and values of order one."""
    return torch.sin(x * x.roll(1)) + 0.5 * torch.cos(x.sum()) * x


def _batch(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x.sin(), 1 - x])


def _staged(t: Any) -> dict[str, Callable[[Fun], Fun]]:
    """What xfunc and torch.func both have."""
    return {
        "grad": lambda f: lambda x: t.grad(lambda y: (f(y) * y).sum())(x),
        "vjp": lambda f: lambda x: t.vjp(f, x)[1](x.cos())[0],
        "jvp": lambda f: lambda x: t.jvp(f, (x,), (x.cos(),))[1],
        "vmap": lambda f: lambda x: t.vmap(f)(_batch(x)).sum(0),
        "vmap of axis 1": lambda f: lambda x: t.vmap(f, 1)(_batch(x).t()).sum(0),
        "jacfwd": lambda f: lambda x: t.jacfwd(f)(x) @ x,
        "jacrev": lambda f: lambda x: x @ t.jacrev(f)(x),
        "hessian": lambda f: lambda x: t.hessian(lambda y: f(y).sum())(x) @ x,
    }


def _value_and_grad(f: Fun) -> Fun:
    def run(x: torch.Tensor) -> torch.Tensor:
        value, g = xf.value_and_grad(lambda y: f(y).pow(2).sum())(x)
        return value * g

    return run


def _plain_value_and_grad(f: Fun) -> Fun:
    def run(x: torch.Tensor) -> torch.Tensor:
        g, value = torch.func.grad_and_value(lambda y: f(y).pow(2).sum())(x)
        return value * g

    return run


def _plain_scan(f: Fun) -> Fun:
    def run(x: torch.Tensor) -> torch.Tensor:
        c, ys = x, []
        for v in _batch(x):
            c = f(c) + v
            ys.append(c * v)
        return c + torch.stack(ys).sum(0)

    return run


def _scan(f: Fun, **options: Any) -> Fun:
    def run(x: torch.Tensor) -> torch.Tensor:
        def body(c: torch.Tensor, v: torch.Tensor) -> Any:
            c = f(c) + v
            return c, c * v

        c, ys = xf.scan(body, x, _batch(x), **options)
        return c + ys.sum(0)

    return run


def _prefixes(f: Fun, scan: Any) -> Fun:
    """Affine maps ``a x + b`` compose associatively; the slopes come from f."""

    def run(x: torch.Tensor) -> torch.Tensor:
        def then(first: Any, second: Any) -> Any:
            return first[0] * second[0], second[0] * first[1] + second[1]

        slopes = torch.tanh(torch.stack([f(x), x, f(x) * x, x.cos(), x]))
        return scan(then, (slopes, slopes.flip(0)))[1].sum(0)

    return run


def _plain_prefixes(then: Any, xs: Any) -> Any:
    found = [(xs[0][0], xs[1][0])]
    for a, b in zip(xs[0][1:], xs[1][1:], strict=True):
        found.append(then(found[-1], (a, b)))
    return torch.stack([f[0] for f in found]), torch.stack([f[1] for f in found])


def _while(f: Fun) -> Fun:
    def run(x: torch.Tensor) -> torch.Tensor:
        def more(state: Any) -> torch.Tensor:
            return (state[0] < 2) & (state[1].abs().sum() < 50)

        return xf.while_loop(more, lambda s: (s[0] + 1, f(s[1]) + x), (0, x))[1]

    return run


def _twice_more(f: Fun) -> Fun:
    return lambda x: f(f(x) + x) + x


def _custom_vjp(f: Fun) -> Fun:
    """The cube of f, whose rule is written by hand."""

    def run(x: torch.Tensor) -> torch.Tensor:
        cube = xf.custom_vjp(lambda y: y**3)
        cube.defvjp(lambda y: (y**3, y), lambda y, ct: (3 * y**2 * ct,))
        return 0.1 * cube(f(x))

    return run


def _custom_jvp(f: Fun) -> Fun:
    def run(x: torch.Tensor) -> torch.Tensor:
        cube = xf.custom_jvp(lambda y: y**3)
        cube.defjvp(lambda p, t: (p[0] ** 3, 3 * p[0] ** 2 * t[0]))
        return 0.1 * cube(f(x))

    return run


def _linearize(f: Fun) -> Fun:
    def run(x: torch.Tensor) -> torch.Tensor:
        out, linear = xf.linearize(f, x)
        return out + linear(x.cos()) * linear(x)

    return run


def _plain_linearize(f: Fun) -> Fun:
    def run(x: torch.Tensor) -> torch.Tensor:
        def along(t: torch.Tensor) -> torch.Tensor:
            return torch.func.jvp(f, (x,), (t,))[1]

        return f(x) + along(x.cos()) * along(x)

    return run


def _choose(x: torch.Tensor, a: Fun, b: Fun) -> torch.Tensor:
    """Both, and a select: what `cond` means for values, also under torch.func.vmap."""
    return torch.where(x.sum() > 0, a(x), b(x))


def _switch(f: Fun) -> Fun:
    def run(x: torch.Tensor) -> torch.Tensor:
        index = (x.sum() > 0).to(torch.int64) + (x[0] > 0).to(torch.int64)
        return xf.switch(index, [f, lambda y: f(y) * x, torch.sin], x)

    return run


def _plain_switch(f: Fun) -> Fun:
    def run(x: torch.Tensor) -> torch.Tensor:
        index = (x.sum() > 0).to(torch.int64) + (x[0] > 0).to(torch.int64)
        return torch.where(index == 0, f(x), torch.where(index == 1, f(x) * x, torch.sin(x)))

    return run


def _table() -> dict[str, Entry]:
    ours, plain = _staged(xf), _staged(torch.func)
    forward, reverse = frozenset({"forward"}), frozenset({"reverse"})
    modes = {
        "grad": reverse, "vjp": reverse, "jvp": forward, "jacfwd": forward, "jacrev": reverse,
        "hessian": reverse,
    }  # fmt: skip
    table = {k: Entry(ours[k], plain[k], modes.get(k, frozenset())) for k in ours}
    table |= {
        "value_and_grad": Entry(_value_and_grad, _plain_value_and_grad, reverse),
        "jit": Entry(xf.jit, lambda f: f),
        "checkpoint": Entry(xf.checkpoint, lambda f: f),
        "linearize": Entry(_linearize, _plain_linearize, forward),
        "scan": Entry(_scan, _plain_scan),
        "scan recomputed": Entry(
            lambda f: _scan(f, checkpoint_policy=xf.checkpoint_policies.nothing_saveable),
            _plain_scan,
        ),
        "fori_loop": Entry(
            lambda f: lambda x: xf.fori_loop(1, 3, lambda i, y: f(y) * i + x, x),
            lambda f: lambda x: f(f(x) + x) * 2 + x,
        ),
        "map": Entry(
            lambda f: lambda x: xf.map(lambda y: f(y) + x, _batch(x)).sum(0),
            lambda f: lambda x: torch.stack([f(y) + x for y in _batch(x)]).sum(0),
        ),
        "map in batches": Entry(
            lambda f: lambda x: xf.map(lambda y: f(y) + x, _batch(x), batch_size=2).sum(0),
            lambda f: lambda x: torch.stack([f(y) + x for y in _batch(x)]).sum(0),
        ),
        "cond": Entry(
            lambda f: lambda x: xf.cond(x.sum() > 0, f, lambda y: f(y.cos()) * x, x),
            lambda f: lambda x: _choose(x, f, lambda y: f(y.cos()) * x),
        ),
        "switch": Entry(_switch, _plain_switch),
        "while_loop": Entry(_while, _twice_more, refuses=reverse),
        "associative_scan": Entry(
            lambda f: _prefixes(f, xf.associative_scan), lambda f: _prefixes(f, _plain_prefixes)
        ),
        "custom_vjp": Entry(_custom_vjp, lambda f: lambda x: 0.1 * f(x) ** 3, refuses=forward),
        "custom_jvp": Entry(_custom_jvp, lambda f: lambda x: 0.1 * f(x) ** 3),
        "stop_gradient": Entry(
            lambda f: lambda x: f(x) * xf.stop_gradient(f(x)),
            lambda f: lambda x: f(x) * f(x).detach(),
        ),
    }
    return table


TABLE = _table()
