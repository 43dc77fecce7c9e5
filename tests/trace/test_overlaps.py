"""Changes in place of tensors several elements of which are one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from xfunc.errors import UnsupportedOpError

X = torch.tensor([1.0, -2.0, 3.0])

EXPANDED = {
    "expand": lambda x: x.expand(2, 3),
    "expand_as": lambda x: x.expand_as(torch.zeros(2, 3)),
    "broadcast_to": lambda x: torch.broadcast_to(x, (2, 3)),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.zeros(2, 1))[0],
    "meshgrid": lambda x: torch.meshgrid(x[:2], x, indexing="ij")[1],
    "a view of it": lambda x: x.expand(4, 3).T[:, :2].T,
}
WRITES = {
    "zero_": lambda v: v.zero_(),
    "add_": lambda v: v.add_(1),
    "triu_": lambda v: v.triu_(1),
    "fill_": lambda v: v.fill_(3.0),
    "copy_": lambda v: v.copy_(torch.ones(2, 3)),
    "setitem": lambda v: v.__setitem__(slice(None), 5.0),
    "out": lambda v: torch.add(torch.ones(2, 3), 1, out=v),
    "relu": lambda v: F.relu(v, inplace=True),
    "foreach": lambda v: torch._foreach_add_([v], 1.0),
}
TRANSFORMS = {
    "jit": lambda f: xf.jit(f)(X),
    "grad": lambda f: xf.grad(lambda x: f(x).sum())(X),
    "vmap": lambda f: xf.vmap(f)(torch.stack([X, X])),
    "jvp": lambda f: xf.jvp(f, (X,), (X,)),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("write", ["zero_", "fill_"])
def test_under_transforms(transform: Any, write: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        WRITES[write](y.expand(2, 3))
        return y

    with pytest.raises(UnsupportedOpError, match=r"expanded tensor(.|\n)*Hint: write to a copy"):
        transform(f)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("expand", EXPANDED.values(), ids=EXPANDED)
def test_writing_is_refused_by_name(expand: Any, write: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        write(expand(y))
        return y

    with pytest.raises(UnsupportedOpError, match=r"expanded tensor(.|\n)*Hint: write to a copy"):
        xf.jit(f)(X)


COPIED = {
    "clone": lambda v: v.clone(),
    "contiguous": lambda v: v.contiguous(),
    "reshape": lambda v: v.reshape(3, 2),
    "flatten": lambda v: v.flatten(),
    "to another dtype": lambda v: v.double(),
    "arithmetic": lambda v: v * 2,
}


@pytest.mark.parametrize("copied", COPIED.values(), ids=COPIED)
def test_copies_are_written_to_as_in_torch(copied: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 1
        v = copied(y.expand(2, 3))
        v.add_(1).mul_(2)
        return y, v

    for got, want in zip(xf.jit(f)(X), f(X), strict=True):
        torch.testing.assert_close(got.cpu(), want)


def test_what_expand_leaves_as_it_is_can_be_written_to() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.expand(1, 3).add_(1)
        return y

    torch.testing.assert_close(xf.jit(f)(X).cpu(), f(X))
