"""What the sweeps over torch's database found, each as a class of its own, against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
INF, NAN = float("inf"), float("nan")


def same(found: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> None:
    torch.testing.assert_close(xf.device_get(found), expected, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, F32, F64], ids=str)
def test_zeta_at_its_poles_and_edges(dtype: torch.dtype) -> None:
    numbers = torch.tensor([-3, -2, -1.5, -1, 0, 0.5, 1, 2, 2.5, 3, 20])
    edges = [numbers, torch.tensor([INF, NAN])] if dtype.is_floating_point else [numbers]
    x = torch.cat(edges).to(dtype)
    pairs = torch.meshgrid(x, x, indexing="ij")
    same(xf.jit(torch.special.zeta)(*pairs), torch.special.zeta(*pairs))


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("dtype", [torch.int64, F32, F64, BF16, F16], ids=str)
def test_polygamma_at_its_poles_and_edges(order: int, dtype: torch.dtype) -> None:
    numbers = torch.tensor([-4, -2, -1.25, -1, -0.5, -0.0, 0, 0.25, 0.5, 1, 2, 3.5, 30])
    edges = [numbers, torch.tensor([INF, NAN])] if dtype.is_floating_point else [numbers]
    x = torch.cat(edges).to(dtype)
    digits = {BF16: 2**-7, F16: 2**-10}.get(dtype, 1e-5)
    f = lambda x: torch.polygamma(order, x)  # noqa: E731
    same(xf.jit(f)(x), f(x), rtol=digits, atol=1e-6)


I = torch.arange(6).reshape(2, 3) - 2  # noqa: E741
PRODUCTS: dict[str, Callable[..., torch.Tensor]] = {
    "addmv": lambda i: torch.addmv(i[:, 0], i, i[0], beta=1.6, alpha=2.7),
    "addmm": lambda i: torch.addmm(i[:, :2], i, i.T, beta=1.6, alpha=2.7),
    "baddbmm": lambda i: torch.baddbmm(i[None, :, :2], i[None], i.T[None], beta=1.6, alpha=2.7),
    "addbmm": lambda i: torch.addbmm(i[:, :2], i[None], i.T[None], beta=0.2, alpha=2.7),
    "no first": lambda i: torch.addmm(i[:, :2], i, i.T, beta=0.2),
}


COMPLEX_FACTORS: dict[str, Callable[..., torch.Tensor]] = {
    "addmm": lambda z, f, g: torch.addmm(z, z, z, beta=f, alpha=g),
    "addmv": lambda z, f, g: torch.addmv(z[0], z, z[1], beta=f, alpha=g),
    "addr": lambda z, f, g: torch.addr(z, z[0], z[1], beta=f, alpha=g),
    "addbmm": lambda z, f, g: torch.addbmm(z, z[None], z[None], beta=f, alpha=g),
    "baddbmm": lambda z, f, g: torch.baddbmm(z[None], z[None], z[None], beta=f, alpha=g),
    "addcmul": lambda z, f, g: torch.addcmul(z * f, z, z, value=g),
    "addcdiv": lambda z, f, g: torch.addcdiv(z * f, z, z + 3, value=g),
    "lerp": lambda z, f, g: torch.lerp(z * f, z, g),
    "add": lambda z, f, g: torch.add(z * f, z, alpha=g),
}


@pytest.mark.parametrize("name", COMPLEX_FACTORS)
def test_complex_factors(name: str) -> None:
    z = torch.tensor([[1 + 2j, -0.5j], [0.25, 3 - 1j]])

    def f(z: torch.Tensor) -> torch.Tensor:
        return COMPLEX_FACTORS[name](z, 0.5 + 1j, 2 - 1j)

    torch.testing.assert_close(xf.device_get(xf.vmap(f)(z[None])), f(z)[None])
    torch.testing.assert_close(
        xf.device_get(xf.jvp(f, (z,), (z,))), torch.func.jvp(f, (z,), (z,)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", PRODUCTS)
def test_factors_of_products_of_integers_are_integers_in_a_batch_too(name: str) -> None:
    f, batch = PRODUCTS[name], torch.stack([I, 2 * I, -I])
    same(xf.vmap(f)(batch), torch.stack([f(i) for i in batch]), rtol=0, atol=0)


TANGENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "frexp": lambda x: torch.frexp(x)[0],
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 3.5),
    "softmax": lambda x: x.softmax(0),
    "cumprod": lambda x: x.cumprod(0),
}


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("name", TANGENTS)
def test_tangents_of_narrow_numbers_are_narrow(name: str, dtype: torch.dtype) -> None:
    f, x = TANGENTS[name], (torch.arange(6.0).reshape(2, 3) / 4 + 0.3)
    theirs: Any = torch.func.jvp(f, (x.to(dtype).double(),), (torch.ones(2, 3, dtype=F64),))
    digits = 2**-6 if dtype is BF16 else 2**-9
    x = x.to(dtype)
    ours: Any = xf.jvp(f, (x,), (torch.ones_like(x),))
    same(ours[1], theirs[1].to(dtype), rtol=digits, atol=digits)
    assert xf.jacfwd(f)(x).dtype == dtype


@pytest.mark.parametrize("dtype", [BF16, F16, F32, F64], ids=str)
def test_places_in_a_histogram_are_not_rounded(dtype: torch.dtype) -> None:
    for step in (3, 7, 10):
        x = (torch.arange(300.0) / step).to(dtype)
        exact = torch.histc(x if dtype is F32 else x.double(), 17).to(dtype)
        same(xf.jit(lambda x: torch.histc(x, 17))(x), exact, rtol=0, atol=0)


@pytest.mark.parametrize("other", [1.5, 3.0, -1.75])
def test_gradients_of_narrow_batch_norm_are_rounded_once(other: float) -> None:
    x, w = torch.tensor([[3.25], [other]], dtype=F16), torch.tensor([-2.5], dtype=F16)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.native_batch_norm(x, w, None, None, None, True, 0.1, 1e-5)[0]
        return (y * torch.tensor([[1.0], [0.5]], dtype=F16, device=x.device)).sum()

    same(xf.grad(loss)(x, w), torch.func.grad(loss)(x, w), rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize(
    "f",
    [lambda x: torch.complex(x, x), lambda x: torch.view_as_complex(torch.stack([x, x], -1))],
    ids=["complex", "view_as_complex"],
)
def test_complex_numbers_of_float16_are_refused_by_name(f: Callable[..., Any]) -> None:
    with pytest.raises(xf.errors.UnsupportedOpError, match=r"complex numbers of float16"):
        xf.jit(f)(torch.ones(2, dtype=F16))


def test_a_second_derivative_that_torch_has_wrong_is_refused_by_name() -> None:
    """Eager torch raises an internal error; once it does not, the refusal goes."""
    scale = torch.arange(9.0).reshape(3, 3)

    def loss(x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x, x.flip(0))
        values, vectors = torch.linalg.eigh(z + z.mH)
        return (vectors.abs().square() * scale.to(x.device)).sum() + values.pow(3).sum()

    x = torch.eye(3) + scale / 7
    with pytest.raises(RuntimeError, match="input_is_complex == grad_is_complex"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x).square().sum())(x)
    with pytest.raises(xf.errors.UnsupportedOpError, match="complex one of what is real"):
        xf.grad(lambda x: xf.grad(loss)(x).square().sum())(x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, F32], ids=str)
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_what_is_sorted_keeps_its_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.tensor([3, 0, 1])[: 1 if not shape else 3].reshape(shape).to(dtype)

    def sorted_(x: torch.Tensor) -> Any:
        return x.sort().values, x.sort(stable=True).values, x.kthvalue(1).values, x.topk(1).values

    if dtype is torch.bool:  # torch has no kthvalue of them.
        same(xf.jit(lambda x: x.sort().values)(x), x.sort().values)
    else:
        for found, expected in zip(xf.jit(sorted_)(x), sorted_(x), strict=True):
            same(found, expected)
