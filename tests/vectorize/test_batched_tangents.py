"""Changes in place of values whose tangents differ between the examples of a vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor


@pytest.mark.parametrize("change", [Tensor.mul_, Tensor.add_, Tensor.div_])
@pytest.mark.parametrize("transform", [xf.grad, xf.hessian, lambda f: xf.jit(xf.hessian(f))])
def test_tangents_that_differ_are_written_where_none_did(
    transform: Callable[[Any], Any], change: Callable[..., Tensor]
) -> None:
    """A loop gives each carry a tangent, zero for one that nothing is differentiated by."""
    plain: Any = getattr(torch.Tensor, change.__name__.removesuffix("_"))
    k = torch.tensor([0.3, 0.4], dtype=torch.float64)

    def step(v: Tensor, write: Callable[..., Tensor], c: tuple[Tensor, Tensor]) -> Any:
        return c[0].sin(), c[1].sin() + write(torch.stack([c[0], c[0]]), v).square().sum(0)

    def looped(v: Tensor) -> Tensor:
        return xf.fori_loop(0, 2, lambda i, c: step(v, change, c), (k, v * 2))[1].sum()

    def unrolled(v: Tensor) -> Tensor:
        return step(v, plain, step(v, plain, (k, v * 2)))[1].sum()

    v = torch.tensor([0.5, 0.2], dtype=torch.float64)
    eager: Any = torch.func.grad if transform is xf.grad else torch.func.hessian
    torch.testing.assert_close(xf.device_get(transform(looped)(v)), eager(unrolled)(v))


def test_tangents_that_differ_written_where_a_vmap_is_within_a_vmap_are_refused() -> None:
    def f(v: Tensor) -> Tensor:
        return torch.stack([torch.ones(2), v])[0].mul_(v).sum()

    with pytest.raises(xf.errors.UnsupportedOpError, match=r"(?s)differ between the.*Hint: comp"):
        xf.vmap(xf.hessian(f))(torch.ones(3, 2))
