"""Values of every dtype: where they go, what they become, and what arithmetic makes of them."""

from typing import Any

import pytest
import torch

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
def test_values_survive_every_way_to_the_device_and_back(dtype: torch.dtype) -> None:
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
def test_conversions_are_those_of_eager_torch(dtype: torch.dtype) -> None:
    x = values(dtype)

    def to_all(x: torch.Tensor) -> dict[str, torch.Tensor]:
        into = {str(d): x.to(d) for d in ALL}
        copied = {f"copy_ {d}": torch.zeros_like(x, dtype=d).copy_(x) for d in ALL}
        return into | copied

    found = xf.device_get(xf.jit(to_all)(x))
    for name, expected in to_all(x).items():
        same(found[name], expected, name)


def test_floating_numbers_become_integers_as_on_x86_processors() -> None:
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
