"""Every dtype: transfers, conversions, reductions, complex derivatives."""

from typing import Any

import pytest
import torch
from torch.signal import windows

import xfunc as xf

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COMPLEX = (torch.complex64, torch.complex128)
ALL = (torch.bool, *INTEGERS, *FLOATS, *COMPLEX)
INF, NAN = float("inf"), float("nan")


def values(dtype: torch.dtype) -> torch.Tensor:
    """Numbers at the edges of a dtype, and some between."""
    if dtype is torch.bool:
        return torch.tensor([False, True, True, False, True, False])
    if dtype.is_complex:
        return torch.tensor([0, 1, 1j, -1, 1 - 1j, -2.5 + 0.5j, 3 + 4j, -0.25 - 7j], dtype=dtype)
    if dtype.is_floating_point:
        return torch.tensor(
            [0.0, -0.0, 1, -1, 0.5, -0.5, 2.5, -3, 7, INF, -INF, NAN, 100.25, 300, -200, 65000],
            dtype=dtype,
        )
    ends = torch.iinfo(dtype)
    few = {0, 1, 2, 3, 7, ends.max, ends.max - 1, ends.min, ends.min + 1}
    return torch.tensor(sorted(few | ({-1, -2, -3, -7} if ends.min else set())), dtype=dtype)


def same(found: Any, expected: torch.Tensor, what: str = "", digits: float = 0.0) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), what
    torch.testing.assert_close(
        found, expected, rtol=digits, atol=digits, equal_nan=True, check_stride=False,
        msg=lambda m: f"{what}: {m}",
    )  # fmt: skip


def views(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    x = values(dtype)[:6]
    found = {
        "whole": x, "scalar": x[2], "empty": x[:0], "empty in two dimensions": x[:0].expand(2, 0),
        "strided": x[::2], "turned": x.reshape(2, 3).T, "repeated": x[1].expand(3),
    }  # fmt: skip
    if dtype.is_complex:
        found |= {
            "conjugate": x.conj(), "conjugate scalar": x[2].conj(), "adjoint": x.reshape(2, 3).mH,
            "negative": x.conj().imag, "negative scalar": x[2].conj().imag, "imaginary": x.imag,
        }  # fmt: skip
    return found


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_device_transfer_keeps_values_of_every_dtype(dtype: torch.dtype) -> None:
    given = views(dtype)
    expected = {k: v.resolve_conj().resolve_neg() for k, v in given.items()}
    placed = {k: xf.device_put(v) for k, v in given.items()}
    listed = {k: (v.tolist(), v.shape, v.dtype) for k, v in expected.items()}
    ways = {
        "put and got": placed,
        "through a program": xf.jit(lambda x: x)(given),
        "captured": xf.jit(lambda: {k: v.clone() for k, v in given.items()})(),
        "literal": xf.jit(
            lambda: {k: torch.tensor(v, dtype=d).reshape(s) for k, (v, s, d) in listed.items()}
        )(),
    }
    for way, found in ways.items():
        for name, x in xf.device_get(found).items():
            same(x, expected[name], f"{way}: {name}")
    for name, x in placed.items():
        same(torch.empty(x.shape, dtype=x.dtype).copy_(x), expected[name], f"copied: {name}")
        if not expected[name].isnan().any():
            assert x.tolist() == expected[name].tolist()


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_dtype_conversion_matches_eager_torch(dtype: torch.dtype) -> None:
    x = values(dtype)

    def to_all(x: torch.Tensor) -> dict[str, torch.Tensor]:
        into = {str(d): x.to(d) for d in ALL}
        copied = {f"copy_ {d}": torch.zeros_like(x, dtype=d).copy_(x) for d in ALL}
        return into | copied

    found = xf.device_get(xf.jit(to_all)(x))
    for name, expected in to_all(x).items():
        same(found[name], expected, name)


def test_float_to_integer_conversion_out_of_range_as_on_x86() -> None:
    x = torch.tensor([-1.0, 256.5, 1e10, -1e10, INF, NAN, -129.0], dtype=torch.float64)
    least = {d: torch.iinfo(d).min for d in INTEGERS}
    expected = {
        torch.uint8: [255, 0, 0, 0, 0, 0, 127],
        torch.int8: [-1, 0, 0, 0, 0, 0, 127],
        torch.int32: [-1, 256, *[least[torch.int32]] * 4, -129],
        torch.int64: [-1, 256, 10**10, -(10**10), *[least[torch.int64]] * 2, -129],
    }
    found = xf.jit(lambda x: [x.to(d) for d in expected])(x)
    assert [f.tolist() for f in found] == [*expected.values()]


REDUCTIONS = {
    "sum": lambda x: x.sum(),
    "sum of a dimension": lambda x: x.sum(0),
    "prod": lambda x: x[:3].prod(),
    "cumprod": lambda x: x.cumprod(0),
    "mean": lambda x: x.mean(dtype=None if x.is_complex() else torch.float64),
    "var": lambda x: torch.var_mean(x if x.is_complex() else x.double(), 0),
    "std": lambda x: (x if x.is_complex() else x.double()).std(),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "matmul": lambda x: (x @ x, x[:, None] @ x[None], torch.tensordot(x, x, 1)),
    "addmm": lambda x: torch.addmm(x[0], x[:, None], x[None], beta=2, alpha=3),
    "addmv": lambda x: torch.addmv(x[:2], x[:4].reshape(2, 2), x[:2]),
    "trace": lambda x: x[:4].reshape(2, 2).trace(),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2), value=3),
    "trapezoid": lambda x: torch.trapezoid(x if x.is_complex() else x.double()),
}


@pytest.mark.parametrize("dtype", [*INTEGERS, *COMPLEX], ids=str)
def test_reductions_and_products_keep_dtypes(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2, 3, 1, 0, 2]).to(dtype)
    x = x * (1 - 2j) + 1j if dtype.is_complex else x
    found = xf.device_get(xf.jit(lambda x: {k: f(x) for k, f in REDUCTIONS.items()})(x))
    for name, f in REDUCTIONS.items():
        for a, b in zip(xf.tree.leaves(found[name]), xf.tree.leaves(f(x)), strict=True):
            same(a, b, name, 1e-5 if b.dtype in (torch.float32, torch.complex64) else 1e-12)


DOUBLE = {
    "linspace": lambda x: torch.linspace(-1.1, 3.7, 6, dtype=x.dtype),
    "arange": lambda x: torch.arange(0.1, 3.7, 0.3, dtype=x.dtype),
    "hamming": lambda x: windows.hamming(5, dtype=x.dtype),
    "bartlett": lambda x: windows.bartlett(5, dtype=x.dtype),
    "gelu": torch.nn.functional.gelu,
    "gelu, tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "logit": lambda x: torch.logit(x.abs() / 10, 0.1),
    "log2": lambda x: torch.log2(x.abs()),
    "log10": lambda x: torch.log10(x.abs()),
    "angle": torch.angle,
    "threshold": lambda x: torch.nn.functional.threshold(x, 0.1, 0.1),
    "cov": lambda x: torch.cov(x.reshape(2, 4)),
    "pinv": lambda x: torch.linalg.pinv(x.reshape(2, 4)),
}


def test_float64_is_not_rounded_to_float32() -> None:
    x = torch.linspace(-2.3, 3.1, 8, dtype=torch.float64).sin() * 3

    def both(x: torch.Tensor, grad: Any) -> dict[str, Any]:
        slopes = {k: grad(lambda x, k=k: DOUBLE[k](x).square().sum())(x) for k in list(DOUBLE)[4:]}
        return {k: f(x) for k, f in DOUBLE.items()} | {
            f"gradient of {k}": v for k, v in slopes.items()
        }

    found = xf.device_get(xf.jit(lambda x: both(x, xf.grad))(x))
    for name, expected in both(x, torch.func.grad).items():
        same(found[name], expected, name, 1e-12)


def test_avg_pool_of_integers_is_refused() -> None:
    x = torch.ones(1, 1, 4, 4, dtype=torch.int64)
    with pytest.raises(xf.errors.UnsupportedOpError, match="average pooling is not lowered for"):
        xf.jit(lambda x: torch.nn.functional.avg_pool2d(x, 2))(x)


COMPLEX_FUNCTIONS = {
    "square": lambda z: z * z,
    "quotient": lambda z: z / (z + 2),
    "mixed": lambda z: z * z.real + torch.complex(z.imag, z.real),
    "conjugate": lambda z: z.conj() * z.exp(),
    "size": lambda z: z.abs() + z.angle(),
    "einsum": lambda z: torch.einsum("i,j->ij", z, z.conj()),
    "contraction": lambda z: torch.einsum("ij,jk->ik", z.reshape(2, 2), z.reshape(2, 2)),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "acosh": torch.acosh,
    "matrix_exp": lambda z: torch.matrix_exp(z.reshape(2, 2)),
    "number": lambda z: (2 - 1j) * z**3 + z**0.5,
    "inverse": lambda z: torch.linalg.inv(z.reshape(2, 2)),
    "mean": lambda z: z.mean() * z.var(),
    "real matrix": lambda z: torch.arange(4, dtype=torch.float64).reshape(2, 2) @ z.real[:2] + z[2],
}


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", COMPLEX_FUNCTIONS)
def test_grad_through_complex_numbers_matches_torch(name: str) -> None:
    z = torch.tensor([1 + 2j, -0.5 + 1j, 2 - 1j, 0.3 + 0.1j], dtype=torch.complex128)

    def loss(parts: torch.Tensor) -> torch.Tensor:
        out = COMPLEX_FUNCTIONS[name](torch.view_as_complex(parts))
        return (out * out.conj()).real.sum() + out.real.sum()

    def loss_of_pairs(parts: torch.Tensor) -> torch.Tensor:
        out = COMPLEX_FUNCTIONS[name](torch.complex(parts[..., 0], parts[..., 1]))
        return (out * out.conj()).real.sum() + 2 * out.real.sum()

    parts = torch.view_as_real(z).clone()
    tangent = torch.ones_like(parts)
    for f in (loss, loss_of_pairs):
        same(xf.device_get(xf.grad(f)(parts)), torch.func.grad(f)(parts), "grad", 1e-10)
        found = xf.device_get(xf.jvp(f, (parts,), (tangent,)))
        for a, b in zip(found, torch.func.jvp(f, (parts,), (tangent,)), strict=True):
            same(a, b, "jvp", 1e-10)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool])
def test_view_dtype_from_and_to_bool(dtype: torch.dtype) -> None:
    """They have one bit in XLA."""
    for x in (torch.tensor([True, False]), torch.tensor([0, 1, 255], dtype=torch.uint8)):
        want = x.view(dtype)
        got = xf.cond(x[0] >= 0, lambda x: x.view(dtype), lambda x: x.to(dtype), x)
        assert xf.device_get(got).tolist() == want.tolist()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float16], ids=str)
def test_search_in_more_elements_than_the_dtype_can_count(dtype: torch.dtype) -> None:
    """Their number is no number of the dtype."""
    n = 70_000 if dtype is torch.float16 else 300
    edges = (torch.arange(n) * 100 // n).to(dtype)
    values = torch.tensor([0, 3, 99]).to(dtype)
    found = xf.device_get(xf.jit(torch.searchsorted)(edges, values))
    assert found.equal(torch.searchsorted(edges, values))
    assert xf.device_get(xf.jit(torch.mode)(edges)[0]).equal(edges.mode()[0])


def test_mode_of_booleans() -> None:
    x = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 0], [0, 1, 0, 1]]).bool()
    found = xf.device_get(xf.jit(lambda x: tuple(x.mode(1)))(x))
    for ours, theirs in zip(found, x.mode(1), strict=True):
        assert ours.equal(theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_types_by_name(dtype: torch.dtype) -> None:
    def fun(x: torch.Tensor) -> list[torch.Tensor]:
        assert x.type() == torch.ones((), dtype=dtype).type()
        ones = torch.ones(2, dtype=torch.int32)
        return [
            ones.type(x.type()),
            x.type(x.type()) + 1,
            x.type("torch.DoubleTensor"),
            x.type(torch.BoolTensor),  # pyright: ignore[reportArgumentType, reportCallIssue]
        ]

    x = torch.tensor([0, 2], dtype=dtype)
    got = xf.device_get(xf.jit(fun)(x))
    assert [(t.dtype, t.tolist()) for t in got] == [(t.dtype, t.tolist()) for t in fun(x)]
    if dtype.is_floating_point:
        slope = xf.grad(lambda x: (x.type("torch.DoubleTensor") * 3).sum())(x)
        assert (slope.dtype, slope.tolist()) == (dtype, [3.0, 3.0])
    with pytest.raises(ValueError, match=r"invalid type: 'torch\.OddTensor'"):
        xf.jit(lambda x: x.type("torch.OddTensor"))(x)
