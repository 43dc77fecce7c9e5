"""Operations at values with a meaning of their own: values, batches and derivatives of eager torch.

An infinite slope makes NaN of what stands beside it, in a row of a Jacobian in reverse mode and in
a column in forward mode. So where one of eager torch's two modes is not finite, a derivative may be
that of either one; otherwise it is that of reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support import special_layers  # noqa: F401  # adds to CASES
from tests.support.special_values import CASES, Case

Tensor = torch.Tensor
Function = Callable[..., Any]


WERE_WRONG = (
    "det of a singular matrix",
    "embedding_bag by weights alone, padding_idx=5",
    "gaussian_nll_loss variance 0, mean",
    "grid_sample bilinear, border, align_corners=True",
    "grid_sample bilinear, reflection, align_corners=False",
    "grid_sample 3D bilinear, border, align_corners=False",
    "grid_sample 3D bilinear, reflection, align_corners=True",
    "histc 1.0, 1.0",
    "nll_loss of nothing, mean",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.sample(100, seed=0)
@pytest.mark.parametrize("name", CASES)
def test_operation_at_special_values(name: str) -> None:
    compare_with_torch(CASES[name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WERE_WRONG)
def test_operation_at_special_values_that_were_wrong(name: str) -> None:
    compare_with_torch(CASES[name])


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_gradient_of_mean_loss_of_nothing(loss: Function) -> None:
    x = torch.zeros(0, 2)
    assert xf.grad(lambda x: loss(x, x + 1))(x).shape == (0, 2)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_outside_an_image_is_no_pixel_of_it(mode: str, padding: str) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 3, 4, 4, generator=generator)
    image[0, 0, 0, 0], image[1, 2, 3, 3] = float("nan"), float("inf")
    grid = torch.rand(2, 5, 5, 2, generator=generator) * 3 - 1.5

    def sampled(x: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode, padding, align_corners=False)

    right = sampled(image)
    (right_slope,) = torch.func.vjp(sampled, image)[1](right)
    out, pulled = xf.vjp(sampled, image)
    torch.testing.assert_close(out, right, equal_nan=True)
    torch.testing.assert_close(pulled(right)[0], right_slope, equal_nan=True)


def compare_with_torch(case: Case) -> None:
    args, count = (*case.floats, *case.fixed), len(case.floats)
    other = [t * 0.5 for t in case.floats]
    other += [t.flip(-1) if case.batched and t.ndim else t for t in case.fixed]
    batch = [torch.stack(pair) for pair in zip(args, other, strict=True)]

    def floating(f: Function) -> Function:
        return lambda *x: tuple(t for t in _leaves(f(*x, *case.fixed)) if t.is_floating_point())

    close = {"rtol": case.rtol, "atol": 1e-11, "equal_nan": True}
    right, numbers = case.right or case.f, tuple(range(count))
    modes: dict[str, Function] = {}
    if case.smooth and floating(right)(*case.floats):
        modes = {m.__name__: m(floating(case.f), argnums=numbers) for m in (xf.jacrev, xf.jacfwd)}
    if case.elementwise:
        modes = {name: xf.vmap(mode) for name, mode in modes.items()}

    @xf.jit
    def all_of_them(args: Any, batch: Any) -> dict[str, Any]:
        found = {"value": case.f(*args), "vmap": _leaves(xf.vmap(case.f)(*batch))}
        return found | {name: mode(*args[:count]) for name, mode in modes.items()}

    found = xf.device_get(all_of_them(args, batch))
    one, two = right(*args), right(*other)
    torch.testing.assert_close(_leaves(found["value"]), _leaves(one), **close)
    both = [torch.stack(pair) for pair in zip(_leaves(one), _leaves(two), strict=True)]
    torch.testing.assert_close(_leaves(found["vmap"]), both, **close)
    if modes:
        f = floating(right)
        reverse = _of(_by_rows, case.elementwise)(f, case.floats)
        try:
            forward = _of(_by_columns, case.elementwise)(f, case.floats)
        except RuntimeError:  # torch has no rule.
            forward = reverse
        for mode in modes:
            _compare_slopes(found[mode], reverse, forward, mode, close)


def _leaves(out: Any) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else list(out)


def _by_rows(f: Function, floats: tuple[Tensor, ...]) -> list[list[Tensor]]:
    """By plain autograd."""
    xs = [x.clone().requires_grad_() for x in floats]

    def row(out: Tensor) -> list[Tensor]:
        options: Any = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        if not out.requires_grad:
            return [torch.zeros_like(x) for x in xs]
        return list(torch.autograd.grad(out, xs, **options))

    return [_rows([row(o) for o in out.flatten()], out, xs) for out in f(*xs)]


def _rows(rows: list[list[Tensor]], out: Tensor, xs: list[Tensor]) -> list[Tensor]:
    if not rows:
        return [torch.zeros((*out.shape, *x.shape), dtype=out.dtype) for x in xs]
    columns = zip(*rows, strict=True)
    return [torch.stack(c).reshape((*out.shape, *c[0].shape)) for c in columns]


def _by_columns(f: Function, floats: tuple[Tensor, ...]) -> list[list[Tensor]]:
    if not all(x.numel() for x in floats):  # There is no column.
        return _by_rows(f, floats)
    found: Any = torch.func.jacfwd(f, argnums=tuple(range(len(floats))))(*floats)
    return found


def _of(jacobian: Function, elementwise: bool) -> Function:
    """Of an elementwise function the slopes at each element, which stand beside nothing."""
    if not elementwise:
        return jacobian

    def each(f: Function, floats: tuple[Tensor, ...]) -> Any:
        found = [jacobian(f, xs) for xs in zip(*floats, strict=True)]
        return [[torch.stack(s) for s in zip(*o, strict=True)] for o in zip(*found, strict=True)]

    return each


def _compare_slopes(
    found: Any, reverse: Any, forward: Any, mode: str, close: dict[str, Any]
) -> None:
    all_of = [xf.tree.leaves(slopes) for slopes in (found, reverse, forward)]
    for have, row, column in zip(*all_of, strict=True):
        finite = row.isfinite() & column.isfinite()
        other = ~finite & torch.isclose(have, column, **close)
        torch.testing.assert_close(
            torch.where(other, row, have), row, **close, msg=lambda said: f"{mode}: {said}"
        )
