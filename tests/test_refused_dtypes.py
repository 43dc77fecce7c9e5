"""What eager torch refuses, and XLA would end the process on, is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

F = torch.nn.functional
Z = torch.ones(4, 4, dtype=torch.complex64)
B = torch.ones(4, 4, dtype=torch.bool)
I = torch.zeros(4, 4, dtype=torch.int64)  # noqa: E741

COMPLEX: dict[str, Callable[..., Any]] = {
    "softmax": lambda z: z.softmax(0),
    "log_softmax": lambda z: z.log_softmax(0),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "max_pool1d": lambda z: F.max_pool1d(z[None], 2),
    "max_pool2d": lambda z: F.max_pool2d(z[None], 2),
    "max_pool3d": lambda z: F.max_pool3d(z[None, None], (1, 2, 2)),
    "attention": lambda z: F.scaled_dot_product_attention(z, z, z),
    "lcm": lambda z: torch.lcm(z, z),
    "maximum": lambda z: torch.maximum(z, z),
    "amax": lambda z: z.amax(0),
    "sort": lambda z: z.sort()[0],
    "topk": lambda z: z.topk(2)[0],
    "copysign": lambda z: torch.copysign(z, z),
    "copysign of a number": lambda z: torch.copysign(z, 2.0),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=r"omplex|not implemented"):
        COMPLEX[name](Z)
    with pytest.raises(xf.errors.UnsupportedOpError, match="was given complex64"):
        xf.jit(COMPLEX[name])(Z)


def test_means_of_complex_numbers_at_indices() -> None:
    with pytest.raises(xf.errors.UnsupportedOpError, match="means of complex numbers"):
        xf.jit(lambda z: z.scatter_reduce(0, I.to(z.device), z, "mean"))(Z)


PRODUCTS: dict[str, Callable[..., Any]] = {
    "mm": lambda b: b @ b,
    "bmm": lambda b: torch.bmm(b[None], b[None]),
    "mv": lambda b: b @ b[0],
    "dot": lambda b: b[0] @ b[0],
    "vdot": lambda b: torch.vdot(b[0], b[0]),
    "addmm": lambda b: torch.addmm(b, b, b),
    "addmv": lambda b: torch.addmv(b[0], b, b[0]),
    "linear": lambda b: F.linear(b, b, b[0]),
    "linear of a batch": lambda b: F.linear(b[None], b, b[0]),
    "bilinear": lambda b: F.bilinear(b, b, b[None]),
    "tensordot": lambda b: torch.tensordot(b, b, 1),
    "einsum": lambda b: torch.einsum("ij,jk->ik", b, b),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_booleans(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"not implemented|must have the same dtype"):
        PRODUCTS[name](B)
    with pytest.raises(xf.errors.UnsupportedOpError, match="was given bool"):
        xf.jit(PRODUCTS[name])(B)
