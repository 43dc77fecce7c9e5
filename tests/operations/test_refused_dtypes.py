"""Dtypes that eager torch refuses, and on which XLA would end the process, are refused by name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

F = torch.nn.functional
F16 = torch.float16
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
    "less": lambda z: z < z,
    "less than a number": lambda z: z < 2,
    "at least": lambda z: z >= z,
    "remainder": lambda z: z % 2,
    "remainder of a number": lambda z: 2 % z,
    "fmod": lambda z: torch.fmod(z, z),
    "floor_divide": lambda z: z // 2,
    "argmax": lambda z: z.argmax(),
    "max": lambda z: z.max(),
    "max of rows": lambda z: z.max(0)[0],
    "median": lambda z: z.median(),
    "mode": lambda z: z.mode()[0],
    "fmin": lambda z: torch.fmin(z, z),
    "clamp": lambda z: z.clamp(0, 1),
    "atan2": lambda z: torch.atan2(z, z),
    "round": lambda z: z.round(),
    "sign": lambda z: z.sign(),
    "elu": F.elu,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "erf": lambda z: z.erf(),
    "lgamma": lambda z: z.lgamma(),
    "nansum": lambda z: z.nansum(),
    "histc": lambda z: z.histc(),
    "searchsorted": lambda z: torch.searchsorted(z[0], z[0]),
    "smooth_l1_loss": lambda z: F.smooth_l1_loss(z, z),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_argument_is_refused(name: str) -> None:
    refusals = RuntimeError, NotImplementedError, TypeError  # the last one from torch 2.15 on
    with pytest.raises(refusals, match=r"omplex|not implemented"):
        COMPLEX[name](Z)
    with pytest.raises(xf.errors.UnsupportedOpError, match="was given complex64"):
        xf.jit(COMPLEX[name])(Z)


INTEGERS: dict[str, Callable[..., Any]] = {
    "logcumsumexp": lambda i: i.logcumsumexp(0),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "logsigmoid": F.logsigmoid,
    "leaky_relu": F.leaky_relu,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "nextafter": lambda i: torch.nextafter(i, i),
    "hypot": lambda i: torch.hypot(i, i),
    "logaddexp": lambda i: torch.logaddexp(i, i),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("name", INTEGERS)
def test_integer_argument_is_refused(name: str, dtype: torch.dtype) -> None:
    """XLA rounds the slopes and the logarithms."""
    with pytest.raises((RuntimeError, NotImplementedError), match="not implemented"):
        INTEGERS[name](I.to(dtype))
    with pytest.raises(xf.errors.UnsupportedOpError, match=r"was given u?int(.|\n)*x.float\(\)"):
        xf.jit(INTEGERS[name])(I.to(dtype))


@pytest.mark.parametrize("of", [torch.gcd, torch.lcm])
def test_gcd_and_lcm_of_floats_are_refused(of: Callable[..., Any]) -> None:
    with pytest.raises(NotImplementedError, match="not implemented"):
        of(torch.ones(3), torch.ones(3))
    with pytest.raises(xf.errors.UnsupportedOpError, match=r"given float32(.|\n)*x.long\(\)"):
        xf.jit(of)(torch.ones(3), torch.ones(3))


BITS: dict[str, Callable[..., Any]] = {
    "and": lambda x: x & x,
    "or of a number": lambda x: x | 1,
    "xor of a number before": lambda x: 1 ^ x,
    "not": torch.bitwise_not,
    "and in place": lambda x: x.clone().bitwise_and_(x),
    "bits of a floating number": lambda x: x.int() & 1.5,
}


@pytest.mark.parametrize("name", BITS)
def test_bits_of_floating_numbers_are_refused(name: str) -> None:
    x = torch.ones(3)
    with pytest.raises(NotImplementedError, match="not implemented"):
        BITS[name](x)
    with pytest.raises(xf.errors.UnsupportedOpError, match=r"given float32: it is of integers"):
        xf.jit(BITS[name])(x)


QUOTIENTS: dict[str, Callable[..., Any]] = {
    "remainder": lambda b: b % b,
    "fmod of a number": lambda b: torch.fmod(b, True),
    "floor_divide": lambda b: b // b,
    "div": lambda b: torch.div(b, b, rounding_mode="trunc"),
    "pow": lambda b: b**b,
    "gcd": lambda b: torch.gcd(b, b),
    "lcm": lambda b: torch.lcm(b, b),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients_of_booleans_are_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match="not implemented"):
        QUOTIENTS[name](B)
    with pytest.raises(xf.errors.UnsupportedOpError, match=r"was given bool: it is of numbers"):
        xf.jit(QUOTIENTS[name])(B)


OF_A_COMPLEX_NUMBER: dict[str, Callable[..., Any]] = {
    "remainder": lambda x: x % 2j,
    "fmod": lambda x: torch.fmod(x, 2j),
    "floor_divide": lambda x: x // 2j,
    "xlogy": lambda x: torch.xlogy(x, 2j),
    "less": lambda x: x < 2j,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OF_A_COMPLEX_NUMBER)
def test_complex_number_beside_real_tensor_is_refused(name: str, dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"not implemented|omplex"):
        OF_A_COMPLEX_NUMBER[name](x)
    with pytest.raises(xf.errors.UnsupportedOpError, match="was given complex64"):
        xf.jit(OF_A_COMPLEX_NUMBER[name])(x)


PAIRS: dict[str, Callable[..., Any]] = {
    "bool - bool": lambda x: x.bool() - x.bool(),
    "bool - 1": lambda x: x.bool() - 1,
    "1 - bool": lambda x: 1 - x.bool(),
    "float - True": lambda x: x - True,
    "sub_": lambda x: x.bool().sub_(x.bool()),
    "heaviside": lambda x: torch.heaviside(x, x.double()),
    "polar": lambda x: torch.polar(x, x.double()),
    "polar of integers": lambda x: torch.polar(x.int(), x.int()),
    "complex of integers": lambda x: torch.complex(x.int(), x),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pair_that_torch_refuses_is_refused_in_its_words(name: str) -> None:
    with pytest.raises(RuntimeError, match=r".+") as eager:
        PAIRS[name](torch.ones(3))
    words = re.escape(str(eager.value).split("\n")[0])
    with pytest.raises(RuntimeError, match=words):
        xf.jit(PAIRS[name])(torch.ones(3))


def test_scatter_reduce_mean_of_complex_is_refused() -> None:
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
def test_matrix_products_of_booleans_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"not implemented|must have the same dtype"):
        PRODUCTS[name](B)
    with pytest.raises(xf.errors.UnsupportedOpError, match="was given bool"):
        xf.jit(PRODUCTS[name])(B)


FOREIGN = {
    "to": lambda x, d: x.to(d).float(),
    "type": lambda x, d: x.type(d).float(),
    "zeros": lambda x, d: torch.zeros(2, dtype=d),
    "literal": lambda x, d: torch.tensor([1, 2], dtype=d),
    "like": lambda x, d: torch.ones_like(x, dtype=d),
    "new": lambda x, d: x.new_zeros(2, dtype=d),
    "view": lambda x, d: x.view(d),
    "sum": lambda x, d: x.sum(dtype=d).float(),
    "softmax": lambda x, d: x.softmax(0, d),
}


OWN = "uint16 uint32 uint64 float8_e4m3fnuz float8_e8m0fnu".split()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((n, d) for n in FOREIGN for d in OWN),
        *((n, d) for n in FOREIGN if n != "literal" for d in ("quint8", "bits8", "uint1")),
    ],
)
def test_dtype_unknown_to_xla_is_refused(name: str, dtype: str) -> None:
    compute, d = FOREIGN[name], getattr(torch, dtype)
    with pytest.raises(xf.errors.UnsupportedOpError, match=f"{dtype}.* not supported"):
        xf.jit(lambda x: compute(x, d))(torch.ones(4))


def test_dtype_unknown_to_xla_on_host_is_allowed() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        table = torch.ones(3, dtype=torch.uint16, device="cpu")
        return x + torch.ones_like(table, dtype=torch.uint16).to(torch.float32)

    assert xf.jit(f)(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_nested_tensor_argument_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a prototype
        nested = torch.nested.nested_tensor([torch.ones(2)])
    with pytest.raises(xf.errors.UnsupportedOpError, match="x cannot be used: it is a nested"):
        xf.jit(lambda x: x)(nested)


@pytest.mark.parametrize(
    "f",
    [lambda x: torch.complex(x, x), lambda x: torch.view_as_complex(torch.stack([x, x], -1))],
    ids=["complex", "view_as_complex"],
)
def test_complex_of_float16_is_refused(f: Callable[..., Any]) -> None:
    with pytest.raises(xf.errors.UnsupportedOpError, match=r"complex numbers of float16"):
        xf.jit(f)(torch.ones(2, dtype=F16))
