"""Functions written twice: with xfunc, and as a plain loop in torch; and transforms of them.

Each case is checked under each transform, in float64, against plain torch.func on the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import xfunc as xf

Fun = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """``ours(x, w)`` and ``plain(x, w)``: scalar functions of x [3] and w [3, 3]."""

    name: str
    ours: Fun
    plain: Fun


def _loop(f: Any, init: Any, xs: Any, length: int | None = None, reverse: bool = False) -> Any:
    """What scan means."""
    n = length if length is not None else len(xf.tree.leaves(xs)[0])
    carry, ys = init, []
    for i in reversed(range(n)) if reverse else range(n):
        carry, y = f(carry, xf.tree.map(lambda x, i=i: x[i], xs))
        ys.append(y)
    if reverse:
        ys.reverse()
    return carry, xf.tree.map(lambda *y: torch.stack(y), *ys)


def dense(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x @ w) * x).sum() + x.sin().prod()


def with_jit(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    inner = xf.jit(lambda a, b: {"y": torch.tanh(a @ b), "n": None})
    return (inner(x, w)["y"] * inner(x * 1.0, w)["y"] * x).sum() + x.sin().prod()


def plain_jit(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x @ w) ** 2 * x).sum() + x.sin().prod()


def nested_jit(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    @xf.jit
    def outer(a: torch.Tensor) -> torch.Tensor:
        return xf.jit(lambda b: torch.tanh(b @ w) * a)(a) + x

    return outer(x).pow(2).sum()


def plain_nested_jit(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x @ w) * x + x).pow(2).sum()


def with_checkpoint(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return xf.checkpoint(lambda a: torch.tanh(torch.tanh(a @ w) @ w))(x).pow(2).sum()


def plain_checkpoint(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.tanh(x @ w) @ w).pow(2).sum()


def scans(scan: Any, **options: Any) -> dict[str, Fun]:
    """Functions of x and w around `scan`."""

    def xs_and_closure(x: Any, w: Any) -> Any:
        c, ys = scan(lambda c, v: (torch.tanh(c @ w) + v, c * v), x, torch.stack([x, x.sin(), x]))
        return c.sum() + ys.pow(2).sum()

    def weights_as_xs(x: Any, w: Any) -> Any:
        c, _ = scan(lambda c, v: (torch.sin(c @ v), None), x, torch.stack([w, w * 2, w.t()]))
        return c.pow(2).sum()

    def no_xs(x: Any, w: Any) -> Any:
        c, ys = scan(lambda c, _: (torch.cos(c @ w) * x, c.sum()), x, None, length=3)
        return c.sum() + ys.prod()

    def trees(x: Any, w: Any) -> Any:
        def body(c: Any, v: Any) -> Any:
            h, (n, keep), nothing = c["h"], c["pair"], c["none"]
            h = torch.where(keep, torch.tanh(h @ w), h) * v["a"]
            new = {"h": h, "pair": (n + 1, ~keep), "none": nothing}
            return new, {"y": h * n, "i": n + v["i"], "none": None}

        init = {
            "h": x,
            "pair": (
                torch.zeros((), dtype=torch.int64, device=x.device),
                torch.ones((), dtype=torch.bool, device=x.device),
            ),
            "none": None,
        }
        steps = {"a": torch.stack([x, x, x.cos()]), "i": torch.arange(3, device=x.device)}
        c, ys = scan(body, init, steps)
        return c["h"].sum() * c["pair"][0] + (ys["y"] * ys["i"][:, None]).sum()

    def nested(x: Any, w: Any) -> Any:
        def outer(c: Any, v: Any) -> Any:
            inner_c, zs = scan(
                lambda d, u: (torch.tanh(d @ w) * u, d.sum()), c, torch.stack([v, c])
            )
            return inner_c + x, zs.sum()

        c, ys = scan(outer, x, torch.stack([x, x * 0.5]))
        return c.sum() + ys.pow(2).sum()

    def empty_carry(x: Any, w: Any) -> Any:
        _, ys = scan(lambda c, v: (c, torch.tanh(v @ w)), (), torch.stack([x, x.sin()]))
        return ys.pow(3).sum()

    def reverse(x: Any, w: Any) -> Any:
        c, ys = scan(
            lambda c, v: (torch.sin(c @ w) + v, c), x, torch.stack([x, x * 2]), reverse=True
        )
        return (c * ys[0]).sum() + ys[1].pow(2).sum()

    def integer_carry(x: Any, w: Any) -> Any:
        def body(c: Any, v: Any) -> Any:
            i, h = c
            return (i + 1, h + torch.sin(v) * i), h * i

        start = (torch.ones((), dtype=torch.int64, device=x.device), x @ w)
        (i, h), ys = scan(body, start, torch.stack([x, x, x]))
        return (h * i).sum() + ys.pow(2).sum()

    def inner_gradient(x: Any, w: Any) -> Any:
        def body(c: Any, v: Any) -> Any:
            g = torch.func.grad(lambda t: torch.sin(t @ w).sum())(c)
            return c + 0.1 * g, (g * v).sum()

        c, ys = scan(body, x, torch.stack([x, x.cos()]))
        return c.pow(2).sum() + ys.sum()

    found = locals().copy()
    return {k: v for k, v in found.items() if k not in ("scan", "options")}


def _cases() -> list[Case]:
    cases = [
        Case("dense", dense, dense),
        Case("jit", with_jit, plain_jit),
        Case("nested jit", nested_jit, plain_nested_jit),
        Case("checkpoint", with_checkpoint, plain_checkpoint),
    ]
    ours, plain = scans(xf.scan), scans(_loop)
    cases += [Case(f"scan {k}", ours[k], plain[k]) for k in ours]

    def unrolled(f: Any, init: Any, xs: Any, **k: Any) -> Any:
        return xf.scan(f, init, xs, unroll=2, **k)

    def recomputed(f: Any, init: Any, xs: Any, **k: Any) -> Any:
        return xf.scan(f, init, xs, checkpoint_policy=xf.checkpoint_policies.nothing_saveable, **k)

    for name, scan in (("unroll", unrolled), ("recompute", recomputed)):
        other = scans(scan)
        for k in ("xs_and_closure", "trees", "nested"):
            cases.append(Case(f"scan {k} {name}", other[k], plain[k]))
    return cases


CASES = {c.name: c for c in _cases()}


def _both(t: Any) -> dict[str, Callable[[Fun], Fun]]:
    """Transforms, written with the functions of `t` (xfunc or torch.func)."""

    def dots(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.cos(), w.sin()

    def jvp_of_grad(f: Fun) -> Fun:
        return lambda x, w: t.jvp(t.grad(f, argnums=(0, 1)), (x, w), dots(x, w))

    def grad_of_jvp(f: Fun) -> Fun:
        return t.grad(lambda x, w: t.jvp(f, (x, w), dots(x, w))[1], argnums=(0, 1))

    def grad_of_grad(f: Fun) -> Fun:
        return t.grad(lambda x, w: t.grad(f, 1)(x, w).pow(2).sum(), argnums=(0, 1))

    def third_order(f: Fun) -> Fun:
        second = t.grad(lambda x, w: t.grad(f)(x, w).pow(2).sum())
        return t.grad(lambda x, w: second(x, w).sin().sum(), 1)

    def batched(f: Fun) -> Fun:
        return lambda x, w: t.vmap(f, (0, None))(torch.stack([x, x.sin()]), w)

    def batched_weights(f: Fun) -> Fun:
        return lambda x, w: t.vmap(f, (None, 1))(x, torch.stack([w, w * 0.5, w.t()], 1))

    def batched_grad(f: Fun) -> Fun:
        return batched(t.grad(f, argnums=(0, 1)))

    def grad_of_batched(f: Fun) -> Fun:
        return t.grad(lambda x, w: batched(f)(x, w).pow(2).sum(), argnums=(0, 1))

    def twice_batched_grad(f: Fun) -> Fun:
        inner = t.vmap(t.grad(f, argnums=(0, 1)), (None, 0))
        return lambda x, w: t.vmap(inner, (0, None))(torch.stack([x, x.sin()]), torch.stack([w, w]))

    def batched_hessian(f: Fun) -> Fun:
        return batched(t.hessian(f))

    def batched_jvp(f: Fun) -> Fun:
        return batched(lambda x, w: t.jvp(f, (x, w), dots(x, w)))

    def jvp_of_batched(f: Fun) -> Fun:
        return lambda x, w: t.jvp(batched(f), (x, w), dots(x, w))

    return {
        "value": lambda f: f,
        "grad": lambda f: t.grad(f, argnums=(0, 1)),
        "grad of grad": grad_of_grad,
        "third order": third_order,
        "jvp": lambda f: lambda x, w: t.jvp(f, (x, w), dots(x, w)),
        "jvp of grad": jvp_of_grad,
        "grad of jvp": grad_of_jvp,
        "vmap": batched,
        "vmap of weights": batched_weights,
        "vmap of grad": batched_grad,
        "grad of vmap": grad_of_batched,
        "vmap of vmap of grad": twice_batched_grad,
        "vmap of jvp": batched_jvp,
        "jvp of vmap": jvp_of_batched,
        "hessian": lambda f: t.hessian(f),
        "vmap of hessian": batched_hessian,
        "jacrev of jacfwd": lambda f: t.jacrev(t.jacfwd(f)),
    }


OURS, PLAIN = _both(xf), _both(torch.func)


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, dtype=torch.float64, generator=generator)
    return x, torch.randn(3, 3, dtype=torch.float64, generator=generator)
