"""Changes in place of tensors in which several elements share memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from xfunc.errors import UnsupportedOpError

pytestmark = pytest.mark.quick

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
def test_inplace_on_expanded_tensor_under_transforms(transform: Any, write: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        WRITES[write](y.expand(2, 3))
        return y

    with pytest.raises(UnsupportedOpError, match=r"expanded tensor(.|\n)*Hint: write to a copy"):
        transform(f)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("expand", EXPANDED.values(), ids=EXPANDED)
def test_inplace_on_expanded_tensor_is_refused(expand: Any, write: Any) -> None:
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
def test_inplace_on_copy_of_expanded_tensor(copied: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 1
        v = copied(y.expand(2, 3))
        v.add_(1).mul_(2)
        return y, v

    for got, want in zip(xf.jit(f)(X), f(X), strict=True):
        torch.testing.assert_close(got.cpu(), want)


def test_inplace_on_trivially_expanded_tensor() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.expand(1, 3).add_(1)
        return y

    torch.testing.assert_close(xf.jit(f)(X).cpu(), f(X))


UNEXPANDED = {
    "expand": lambda x: x.expand(3),
    "expand to more dimensions": lambda x: x.t().expand(1, 1, -1),
    "expand_as": lambda x: x.expand_as(x),
    "broadcast_to": lambda x: torch.broadcast_to(x, x.shape),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x[0])[0],
    "meshgrid": lambda x: torch.meshgrid([x.view(-1), torch.ones(1)], indexing="xy")[0],
}


@pytest.mark.parametrize("transform", ["jit", "vmap", "jvp"])
@pytest.mark.parametrize("expand", UNEXPANDED.values(), ids=UNEXPANDED)
def test_inplace_on_trivially_expanded_infinities(expand: Any, transform: str) -> None:
    x = torch.tensor([torch.inf, -2.0, torch.nan])

    def f(x: torch.Tensor) -> torch.Tensor:
        y = (x * 1)[:, None] if expand is UNEXPANDED["expand to more dimensions"] else x * 1
        expand(y).add_(1)
        return y

    got, want = {
        "jit": lambda: (xf.jit(f)(x), f(x)),
        "vmap": lambda: (xf.vmap(f)(x[None]), f(x)[None]),
        "jvp": lambda: (xf.jvp(f, (x,), (x,))[0], f(x)),
    }[transform]()
    torch.testing.assert_close(got.cpu(), want, equal_nan=True)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: torch.meshgrid(x[:2], x[1:3], indexing="ij")[1],
        lambda x: x[:2].expand(2, 2),
        lambda x: x.unfold(0, 3, 2),
        lambda x: x.as_strided((2, 2), (1, 1)),
        lambda x: x[:4].as_strided((2, 2), (0, 1)),
    ],
)
def test_inplace_on_overlapping_view_is_refused(view: Any) -> None:
    """It need not have more elements than the whole. torch's own results vary here."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, x])
        view(y).mul_(2)
        return y

    with pytest.raises(UnsupportedOpError, match=r"expanded tensor(.|\n)*Hint: write to a copy"):
        xf.jit(f)(X)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.unfold(0, 2, 2),
        lambda x: x.unfold(0, 2, 3),
        lambda x: x[1:].unfold(0, 2, 2),
        lambda x: x.reshape(2, 3).unfold(-1, 1, 2),
        lambda x: x.reshape(2, 3).unfold(0, 1, 3),
        lambda x: x.reshape(2, 3)[:, 1:].unfold(1, 2, 2),
        lambda x: x.reshape(2, 1, 3).unfold(0, 2, 2),
        lambda x: x[0].unfold(0, 1, 1),
        lambda x: x.as_strided((2, 3), (3, 1)),
        lambda x: x.as_strided((1, 3), (0, 2)),
        lambda x: x.as_strided((2, 2), (1, 2), 1),
    ],
)
def test_inplace_on_view_without_overlap(view: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, x])
        view(y).mul_(2)
        return y

    torch.testing.assert_close(xf.jit(f)(X).cpu(), f(X))
    got = xf.jvp(lambda x: f(x) * view(torch.cat([x, x])).sum(), (X,), (X,))[1]
    want = torch.func.jvp(lambda x: f(x) * view(torch.cat([x, x])).sum(), (X,), (X,))[1]
    torch.testing.assert_close(got.cpu(), want)
    torch.testing.assert_close(
        xf.grad(lambda x: f(x).square().sum())(X).cpu(),
        torch.func.grad(lambda x: f(x).square().sum())(X),
    )


def test_inplace_on_unfold_with_remainder_is_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, x])[:5]
        y.unfold(0, 2, 3).mul_(2)
        return y

    with pytest.raises(UnsupportedOpError, match=r"writes to windows(.|\n)*Hint: write to slices"):
        xf.jit(f)(X)
