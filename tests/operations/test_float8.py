"""Numbers of 8 bits: converted, moved, compared and multiplied as torch does on the CPU."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.errors import UnsupportedOpError

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
BOTH = pytest.mark.parametrize("dtype", [E4, E5], ids=["e4m3fn", "e5m2"])
Tensor = torch.Tensor


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def every(dtype: torch.dtype) -> Tensor:
    """All numbers of a dtype."""
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def assert_same(found: Any, expected: Tensor) -> None:
    """To the bit, but for those of NaN."""
    found = xf.device_get(found)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.float().signbit(), expected.float().signbit()) or found.isnan().any()


def numbers(dtype: torch.dtype) -> Tensor:
    """Numbers between which rounding decides: ties, their neighbours, and what is beyond both
    ends.
    """
    held = every(dtype).float()
    held = held[held.isfinite()].sort().values
    ties = (held[1:] + held[:-1]) / 2
    near = [torch.nextafter(ties, ties * k) for k in (0.0, 2.0)]
    just = [ties * (1 + s * 2.0**-k) for k in (9, 12, 14) for s in (1, -1)]
    ends = torch.tensor([464.0, 465.0, 61439.0, 61440.0, 1e9, 1e-30, torch.inf, torch.nan])
    return torch.cat([held, ties, *near, *just, ends, -ends, drawn(20000)])


@BOTH
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_float8_conversion_rounds_once(dtype: torch.dtype, source: torch.dtype) -> None:
    x = numbers(dtype).to(source)
    assert_same(xf.jit(lambda x: x.to(dtype))(x), x.to(dtype))
    # Within a program, where XLA's converter is another.
    assert_same(xf.jit(lambda x: x.to(dtype).float() * 2)(x), x.to(dtype).float() * 2)


@BOTH
def test_float8_conversion_of_integers_and_back(dtype: torch.dtype) -> None:
    whole = torch.arange(-600, 600)
    held = every(dtype).float()
    held = held[held.abs() < 3e4].to(dtype)
    for other in (torch.int64, torch.int32, torch.int16, torch.bool):
        assert_same(xf.jit(lambda x: x.to(dtype))(whole.to(other)), whole.to(other).to(dtype))
        assert torch.equal(xf.device_get(xf.jit(lambda x, d=other: x.to(d))(held)), held.to(other))
    for other in (E4, E5):
        assert_same(xf.jit(lambda x, d=other: x.to(d))(every(dtype)), every(dtype).to(other))


EXACT: dict[str, Callable[[Tensor], Any]] = {
    "same": lambda x: x,
    "view": lambda x: x.view(torch.uint8),
    "shape": lambda x: x.reshape(2, -1).t().contiguous().flatten().unsqueeze(0).T,
    "slice": lambda x: x[1:, ::2],
    "join": lambda x: torch.cat([x, x.flip(0), torch.stack([x[0], x[1]])]),
    "where": lambda x: torch.where(x == x.roll(1, 0), x, torch.zeros_like(x)),
    "fill": lambda x: x.clone().fill_(25.001),
    "set": lambda x: _with_row(x),
    "make": lambda x: torch.cat([torch.full((2,), 27.0, dtype=x.dtype), x[0]]),
    "literal": lambda x: torch.tensor([1.0, 300.0, 500.0], dtype=x.dtype),
    "where number": lambda x: torch.where(x == x.roll(1, 0), x, 0.5),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2), value=1.5),
    "pad rows": lambda x: torch.constant_pad_nd(x, (0, 1, 1, 0), -2.0),
    "repeat": lambda x: x.repeat_interleave(2, 1),
    "windows": lambda x: x.unfold(1, 2, 1),
    "rows": lambda x: torch.nn.functional.embedding(torch.tensor([2, 0, 2]), x),
    "put": lambda x: x.index_put((torch.tensor([0, 2]),), x[1]),
    "put_": lambda x: x.clone().index_put_((torch.tensor([3]), torch.tensor([1])), x[0, 0]),
    "abs": lambda x: x.abs(),
    "any": lambda x: x.any(0),
    "all": lambda x: x.roll(1, 0).all(),
    "isnan": lambda x: x.isnan(),
    "ne": lambda x: x != x.flip(0),
}


def _with_row(x: Tensor) -> Tensor:
    x = x.clone()
    x[0] = torch.ones(4, dtype=x.dtype)
    return x


@BOTH
@pytest.mark.parametrize("name", EXACT)
def test_float8_moves_and_comparisons_are_exact(name: str, dtype: torch.dtype) -> None:
    x = drawn(4, 4).to(dtype)
    assert_same(xf.jit(EXACT[name])(x), EXACT[name](x))


@pytest.mark.parametrize(
    ("name", "compute"),
    {
        "Tensor.add": lambda x: x + x,
        "Tensor.mul": lambda x: 2 * x,
        "Tensor.neg": lambda x: -x,
        "Tensor.sum": lambda x: x.sum(),
        "Tensor.matmul": lambda x: x @ x,
        "torch.einsum": lambda x: torch.einsum("ij,jk", x, x),
        "torch.nn.functional.linear": lambda x: torch.nn.functional.linear(x, x),
        "Tensor.sort": lambda x: x.sort().values,
        "Tensor.lt": lambda x: x < x,
        "Tensor.softmax": lambda x: x.float().softmax(0, dtype=E4),
        "torch.arange": lambda x: torch.arange(3, dtype=E4),
        "Tensor.add_": lambda x: x.clone().add_(1),
    }.items(),
)
def test_float8_arithmetic_is_refused(name: str, compute: Callable[[Tensor], Tensor]) -> None:
    for x in (drawn(3, 3), drawn(3, 3).to(E4)):  # converted in the trace, or an argument
        with pytest.raises(UnsupportedOpError, match=rf"{name}_? .*float8_e4m3fn.*not supported"):
            xf.jit(lambda x: compute(x.to(E4)))(x)


def test_float8_fill_with_overflowing_number_raises() -> None:
    for fill in (lambda x: torch.full_like(x, 1e9), lambda x: x.clone().fill_(1e9)):
        with pytest.raises(RuntimeError, match="without overflow"):
            fill(drawn(2).to(E4))
        with pytest.raises(
            UnsupportedOpError, match=r"1000000000\.0, which float8_e4m3fn does not"
        ):
            xf.jit(fill)(drawn(2).to(E4))


def test_float8_in_vmap_grad_scan_and_cond() -> None:
    def compute(x: Tensor) -> Tensor:
        return (x.to(E4).float() ** 2).sum()

    x = drawn(3, 4)
    assert_same(xf.vmap(xf.grad(compute))(x), torch.func.vmap(torch.func.grad(compute))(x))
    rows = xf.scan(lambda c, row: (row, c.float()), x[0].to(E4), x.to(E4))
    assert_same(rows[0], x[2].to(E4))
    assert_same(rows[1], x[[0, 0, 1]].to(E4).float())
    assert_same(
        xf.jit(lambda x: xf.cond(x.sum() > 0, lambda y: y.to(E5), lambda y: (-y).to(E5), x))(x),
        (x.sum().sign() * x).to(E5),
    )


# -- products ---------------------------------------------------------------------------------

A, B = drawn(5, 16), drawn(7, 16, seed=1)


@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16, E4, None])
@pytest.mark.parametrize("left", [E4, E5])
def test_scaled_mm_matches_torch(left: torch.dtype, out: torch.dtype | None) -> None:
    a, b, bias = A.to(left), B.to(E4), drawn(7)

    def product(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        scales = torch.tensor(0.5), torch.tensor([0.25])
        return torch._scaled_mm(a, b.t(), *scales, bias=bias, out_dtype=out)

    found = xf.jit(product)(a, b, bias)
    assert_same(found, product(a, b, bias))
    text = xf.jit(product).lower(a, b, bias).as_text()
    [dot] = [line for line in text.splitlines() if " dot(" in line]
    result, _, operands = dot.partition(" dot(")
    assert "f32[5,7]" in result
    first = re.findall(r"%[\w.-]+", operands)[0]
    assert f"{first} = { ({E4: 'f8e4m3fn', E5: 'f8e5m2'}[left]) }[5,16]" in text


def test_scaled_mm_with_row_and_column_scales() -> None:
    a, b, rows, columns = A.to(E4), B.to(E4), drawn(5, 1).abs(), drawn(1, 7).abs()

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch._scaled_mm(a, b.t(), rows, columns, out_dtype=torch.float32)

    wide = (a.double() * rows.double()) @ (b.double().t() * columns.double())
    torch.testing.assert_close(xf.device_get(xf.jit(product)(a, b)), wide.float())


def test_scaled_mm_under_vmap() -> None:
    many = drawn(3, 5, 16).to(E4)
    one, half = torch.tensor(1.0), torch.tensor(0.5)

    def product(a: Tensor) -> Tensor:
        return torch._scaled_mm(a, B.to(E4).t(), one, half, out_dtype=torch.float32)

    assert_same(xf.vmap(product)(many), torch.stack([product(a) for a in many]))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((A, B.to(E4).t()), "float8"),
        ((A.to(E4), B.to(E4)), r"shapes.*5.*16.*7.*16"),
        ((A.to(E4)[0], B.to(E4).t()), "must be a matrix|shapes"),
    ],
)
def test_scaled_mm_of_wrong_operands_raises(arguments: tuple[Tensor, Tensor], says: str) -> None:
    one = torch.tensor(1.0)
    with pytest.raises((RuntimeError, ValueError), match=says):
        xf.jit(lambda a, b: torch._scaled_mm(a, b, one, one))(*arguments)


def test_scaled_mm_wrong_options_and_grad_raise() -> None:
    def product(a: Tensor, b: Tensor, **options: Any) -> Tensor:
        one = torch.tensor(1.0)
        return torch._scaled_mm(a, b.t(), options.pop("scale", one), one, **options)

    a, b = A.to(E4), B.to(E4)
    for options, says in (
        ({"scale": torch.ones(3)}, r"scale.*\(5, 1\)"),
        ({"bias": torch.ones(3)}, "bias"),
        ({"scale_result": torch.ones(())}, "scale_result is not supported"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=says):
            xf.jit(lambda a, b, o=options: product(a, b, **o))(a, b)
    with pytest.raises(UnsupportedOpError, match="_scaled_mm has no derivative"):
        xf.grad(lambda a: product(a.to(E4), b).float().sum())(A)
