"""Reductions of arrays without elements or without dimensions: the values and errors of torch."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

NAMES = """
    sum mean prod all any amax amin max min argmax argmin std var var_mean std_mean nansum nanmean
    count_nonzero logsumexp median nanmedian mode cumsum cumprod logcumsumexp cummax cummin norm
    aminmax
""".split()
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in NAMES},
    "vector_norm": torch.linalg.vector_norm,
    "norm of inf": lambda x, *a, **k: torch.linalg.vector_norm(x, float("inf"), *a, **k),
    "quantile": lambda x, *a, **k: torch.quantile(x, 0.5, *a, **k),
    "nanquantile": lambda x, *a, **k: torch.nanquantile(x, 0.5, *a, **k),
    "kthvalue": lambda x, *a, **k: torch.kthvalue(x, 1, *a, **k),
}
SHAPES = [(0,), (0, 3), (3, 0), (), (2, 3)]
ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (((),), {}),
    ((0,), {}),
    ((1,), {}),
    ((0,), {"keepdim": True}),
    (((),), {"keepdim": True}),
]
# torch's own kernel fails on ().
NOT_OF_TORCH = {("logsumexp", (2, 3))}


@pytest.mark.sample(3, seed=0)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_reductions_of_empty_arrays_match_eager_torch(name: str) -> None:
    f = FUNCTIONS[name]
    cases, expected, refused = [], {}, {}
    for shape, (args, kwargs) in itertools.product(SHAPES, ARGUMENTS):
        x = torch.arange(6.0)[: 6 if len(shape) == 2 and all(shape) else 1]
        x = x.reshape(shape) if all(shape) else torch.zeros(shape)
        key = f"{shape} {args} {kwargs}"
        cases.append((key, x, args, kwargs))
        try:
            found = f(x, *args, **kwargs)
            expected[key] = tuple(found) if isinstance(found, tuple) else found
        except (RuntimeError, IndexError, TypeError) as error:
            if (name, shape) not in NOT_OF_TORCH:
                refused[key] = type(error)

    met: dict[str, type] = {}

    def every(xs: dict[str, torch.Tensor]) -> dict[str, Any]:
        out = {}
        for key, _, args, kwargs in cases:
            try:
                found = f(xs[key], *args, **kwargs)
                out[key] = tuple(found) if isinstance(found, tuple) else found
            except (RuntimeError, IndexError, TypeError) as error:
                met[key] = type(error)
        return {k: v for k, v in out.items() if k in expected}

    got = xf.device_get(xf.jit(every)({key: x for key, x, _, _ in cases}))
    assert {k: met.get(k) for k in refused} == refused
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("tolerance", ["atol", "rtol"])
def test_pseudo_inverses_of_empty_batches_in_vmap_over_tolerances(tolerance: str) -> None:
    def f(x: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
        return torch.linalg.pinv(x, **{tolerance: bound})

    x, bounds = torch.zeros(0, 5, 4, 3), torch.tensor([1e-3, 1e-2])
    assert xf.vmap(f, (None, 0))(x[..., 0], bounds).shape == (2, 0, 4, 5)
    nested = xf.vmap(xf.vmap(f, (3, None)), (None, 0))
    assert nested(x, bounds).shape == (2, 3, 0, 4, 5)
    assert xf.grad(lambda x: (nested(x, bounds).sum((-1, -2, -3)) + 1).sum())(x).shape == x.shape


def test_reductions_of_empty_arrays_derivatives_and_vmap() -> None:
    x = torch.zeros(0, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sum(0) + 1).square().sum() + x.prod() + x.square().sum(())

    torch.testing.assert_close(xf.device_get(xf.jit(f)(x)), f(x))
    assert xf.grad(f)(x).shape == (0, 3)
    torch.testing.assert_close(
        xf.device_get(xf.vmap(f)(torch.zeros(2, 0, 3))), torch.stack([f(x), f(x)])
    )
    found = xf.jvp(f, (x,), (x,))
    torch.testing.assert_close(xf.device_get(found), torch.func.jvp(f, (x,), (x,)))
