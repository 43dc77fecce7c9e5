"""Changes in place under vmap, whose operands or tangents differ between the examples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
torch.manual_seed(0)
XS, BS = torch.rand(3, 2, 2) + 0.5, torch.rand(2, 3, 2, 2) + 0.5
AT = torch.tensor([1, 0])
MASK = torch.tensor([[True, False], [True, True]])

CHANGES: dict[str, Callable[[Tensor, Tensor], object]] = {
    **{
        f"{name}_": lambda x, b, name=name: getattr(x, f"{name}_")(b)
        for name in (
            "add clamp clip copy div eq floor_divide fmod ge gt heaviside hypot igamma igammac le "
            "less lt ne nextafter pow remainder xlogy"
        ).split()
    },
    **{
        f"{name}_": lambda x, b, name=name: getattr(x, f"{name}_")(b, b + 1)
        for name in ("addcdiv", "addcmul", "addmm", "clamp")
    },
    "addbmm_": lambda x, b: x.addbmm_(b[None], b[None]),
    "addmv_": lambda x, b: x[0].addmv_(b, b[0]),
    "addr_": lambda x, b: x.addr_(b[0], b[1]),
    "baddbmm_": lambda x, b: x[None].baddbmm_(b[None], b[None]),
    "div_ of a mode": lambda x, b: x.div_(b, rounding_mode="floor"),
    "cumprod_": lambda x, b: x.cumprod_(0),
    "cumsum_": lambda x, b: x.mul_(b).cumsum_(1),
    "tril_": lambda x, b: x.copy_(b).tril_(),
    "triu_": lambda x, b: x.triu_(1).add_(b),
    "renorm_": lambda x, b: x.add_(b).renorm_(2, 0, 0.7),
    "index_copy_": lambda x, b: x.index_copy_(0, AT, b),
    "masked_scatter_": lambda x, b: x.masked_scatter_(MASK, b),
    "put_": lambda x, b: x.put_(AT, b[0]),
    "scatter_": lambda x, b: x.scatter_(0, AT[None], b),
    "scatter_reduce_": lambda x, b: x.scatter_reduce_(0, AT[None], b, "prod"),
    "//=": lambda x, b: x.__ifloordiv__(b),
    "%=": lambda x, b: x.__imod__(b),
    "**=": lambda x, b: x.__ipow__(b),
    "a row": lambda x, b: x[0].add_(b[0]),
    "a column": lambda x, b: x.select(1, 0).mul_(b[0]),
    "an item": lambda x, b: x.__setitem__(0, b[1]),
    "a new axis": lambda x, b: x[None].add_(b),
    "the transpose": lambda x, b: x.T.add_(b),
    "all elements": lambda x, b: x.view(4).add_(b.view(4)),
    "one of several": lambda x, b: x.unbind(0)[1].add_(b[0]),
    "a view of a view": lambda x, b: x[0][:1].div_(b[0, :1]),
    "data": lambda x, b: x.data.add_(b),
}


def changed(change: Callable[[Tensor, Tensor], object], x: Tensor, b: Tensor) -> Tensor:
    """A tensor, and a view that was made before the change."""
    y = x.clone()
    view = y[:1]
    change(y, b)
    return torch.cat([y, view])


@pytest.mark.parametrize("axes", [(0, 0), (None, 0)], ids=["both", "one"])
def test_nested_vmap_in_place_with_different_mapped_operands(axes: tuple[int | None, int]) -> None:
    xs = XS if axes[0] == 0 else XS[0]

    def run(xs: Tensor, bs: Tensor) -> dict[str, Tensor]:
        return {
            name: xf.vmap(xf.vmap(partial(changed, c), axes), (None, 0))(xs, bs)
            for name, c in CHANGES.items()
        }

    expected = {
        name: torch.stack(
            [
                torch.stack([changed(c, XS[i if axes[0] == 0 else 0], b[i]) for i in range(3)])
                for b in BS
            ]
        )
        for name, c in CHANGES.items()
    }
    found = xf.device_get(xf.jit(run)(xs, BS))
    for name, want in expected.items():
        torch.testing.assert_close(found[name], want, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("name", ["flip", "roll"])
def test_vmap_flip_and_roll_of_scalars(name: str) -> None:
    f = getattr(torch, name)
    xs = torch.tensor([1.0, 2.0, 3.0])
    moved = (lambda x: f(x, 1)) if name == "roll" else (lambda x: f(x, [0]))
    for x in (xs, xs[:, None].expand(3, 2)):
        found = (xf.vmap(moved)(x), xf.vmap(xf.grad(lambda x: moved(x * x).sum()))(x))
        expected = torch.stack([moved(row) for row in x]), 2 * x
        torch.testing.assert_close(xf.device_get(found), expected)
    with pytest.raises(IndexError, match="Dimension out of range"):
        xf.vmap(lambda x: torch.flip(x, (1,)))(xs)


WITH_INDEX: dict[str, Callable[..., torch.Tensor]] = {
    "index_select": lambda x, i, y: x.index_select(0, i) * y,
    "index_add": lambda x, i, y: x.index_add(0, i, y),
    "index_add_": lambda x, i, y: x.clone().index_add_(0, i, y),
    "index_copy": lambda x, i, y: torch.index_copy(x, 0, i, y),
    "index_reduce": lambda x, i, y: x.index_reduce(0, index=i, source=y, reduce="amax"),
    "index_fill": lambda x, i, y: x.index_fill(0, i, 2.0) + y,
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("shape", [(3,), (3, 2)])
@pytest.mark.parametrize("name", WITH_INDEX)
def test_index_without_dimensions(name: str, shape: tuple[int, ...]) -> None:
    f = WITH_INDEX[name]
    x, y = torch.rand(shape), 5 + torch.rand(1, *shape[1:])
    index = torch.tensor([1, 2])
    expected = torch.stack([f(x, i, y) for i in index])
    torch.testing.assert_close(xf.jit(f)(x, index[0], y).cpu(), expected[0])
    torch.testing.assert_close(xf.vmap(f, (None, 0, None))(x, index, y).cpu(), expected)
    found = xf.vmap(f, (0, None, None))(torch.stack([x, x]), index[1], y).cpu()
    torch.testing.assert_close(found, expected[1:].expand_as(found))


@pytest.mark.parametrize("squeeze", [torch.squeeze, torch.Tensor.squeeze])
def test_vmap_squeeze_of_scalars(squeeze: Callable[..., torch.Tensor]) -> None:
    xs = torch.tensor([1.0, 2.0, 3.0])
    for dims in ((), (0,), (-1,), ((-1,),), ((),)):
        found = xf.vmap(xf.value_and_grad(lambda x, dims=dims: squeeze(x, *dims) ** 2))(xs)
        torch.testing.assert_close(xf.device_get(found), (xs**2, 2 * xs))
    with pytest.raises(IndexError, match="Dimension out of range"):
        xf.vmap(lambda x: squeeze(x, 1))(xs)


@pytest.mark.parametrize("exponent", [True, False])
@pytest.mark.parametrize("name", ["pow_", "__ipow__"])
def test_bool_power_in_place_stays_bool(name: str, exponent: bool) -> None:
    x = torch.tensor([True, False])
    expected = getattr(x.clone(), name)(exponent)
    for f in (xf.jit, xf.vmap):
        found = f(lambda v: getattr(v.clone(), name)(exponent))(x)
        torch.testing.assert_close(xf.device_get(found), expected)


# -- values whose tangents differ between examples -----------------------------------------------


@pytest.mark.parametrize("change", [Tensor.mul_, Tensor.add_, Tensor.div_])
@pytest.mark.parametrize("transform", [xf.grad, xf.hessian, lambda f: xf.jit(xf.hessian(f))])
def test_in_place_change_in_loop_under_grad_and_hessian(
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


def test_in_place_change_under_vmap_of_hessian_is_refused() -> None:
    def f(v: Tensor) -> Tensor:
        return torch.stack([torch.ones(2), v])[0].mul_(v).sum()

    with pytest.raises(xf.errors.UnsupportedOpError, match=r"(?s)differ between the.*Hint: comp"):
        xf.vmap(xf.hessian(f))(torch.ones(3, 2))


def test_vmap_in_place_of_views_that_take_the_place_of_others_in_memory() -> None:
    def fill(x: Tensor) -> Tensor:
        y = torch.zeros(4, 3)
        for k in range(4):  # Each view is freed before the next is made.
            y[k].fill_(k)
            y.data[k].add_(k)
        y[2].copy_(x)
        return y

    x = torch.arange(6.0).reshape(2, 3)
    want = torch.stack([2.0 * torch.arange(4)[:, None].expand(4, 3)] * 2)
    want[:, 2] = x
    torch.testing.assert_close(xf.vmap(fill)(x).cpu(), want)
