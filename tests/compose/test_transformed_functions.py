"""Every transform accepts the functions that other transforms return."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

X = torch.tensor([0.5, -1.0, 2.0])


def ruled(f: Any) -> Any:
    g: Any = xf.custom_vjp(f)
    g.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * 3 * x.cos(),))
    return g


# Each makes of a function another of the same values.
MAKERS: dict[str, Callable[[Any], Any]] = {
    "jit": xf.jit,
    "jit(jit)": lambda f: xf.jit(xf.jit(f)),
    "jit, donated": lambda f: xf.jit(f, donate_argnums=0),
    "jit(vmap)": lambda f: xf.jit(xf.vmap(f)),
    "vmap": xf.vmap,
    "vmap(jit)": lambda f: xf.vmap(xf.jit(f)),
    "checkpoint": xf.checkpoint,
    "checkpoint(jit)": lambda f: xf.checkpoint(xf.jit(f)),
    "custom_vjp": ruled,
    "custom_vjp(jit)": lambda f: ruled(xf.jit(f)),
    "jit(custom_vjp)": lambda f: xf.jit(ruled(f)),
}

# Each takes a function, and returns what it is of `X`, or something that depends on it alone.
TAKERS: dict[str, Callable[[Any], Any]] = {
    "eval_shape": lambda f: torch.empty(xf.eval_shape(f, X).shape).shape,
    "make_hlo": lambda f: xf.make_hlo(f)(X).entry.root.shape.elements[0].dims,
    "jit": lambda f: xf.jit(f)(X.clone()),
    "lower": lambda f: xf.jit(f).lower(X).compile()(X.clone()),
    "grad": lambda f: xf.grad(lambda x: f(x).sum())(X),
    "vmap": lambda f: xf.vmap(f)(X[None])[0],
    "checkpoint": lambda f: xf.checkpoint(f)(X),
    "vjp": lambda f: xf.vjp(f, X)[1](X)[0],
    "map": lambda f: xf.map(f, X[None])[0],
    "scan": lambda f: xf.scan(lambda c, x: (f(c), None), X, torch.ones(1))[0],
    "cond": lambda f: xf.cond(torch.tensor(True), f, f, X),
    "memory_report": lambda f: str(xf.memory_report(xf.jit(lambda x: f(x).sum()), X))[:9],
    "export": lambda f: xf.export.deserialize(xf.export.serialize(xf.jit(f).lower(X)))(X),
}


@pytest.mark.sample(9, seed=0)
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("maker", MAKERS)
def test_transform_accepts_transformed_function(maker: str, taker: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 3

    got, want = (xf.device_get(TAKERS[taker](g)) for g in (MAKERS[maker](f), f))
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    else:
        assert got == want
