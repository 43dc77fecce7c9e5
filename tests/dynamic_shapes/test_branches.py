"""Functions whose Python compares sizes: each size gets the result of its own branch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.errors import ShapeError

S = xf.Dim("S", max=64)
LARGER = xf.Dim("S", max=128)
Function = Callable[[torch.Tensor], torch.Tensor]


def _halvings(n: int) -> int:
    steps = 0
    while n > 1:
        n, steps = n // 2, steps + 1
    return steps


@xf.jit
def _inner(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] % 5 == 1 else x


BRANCHES: dict[str, Function] = {
    "remainder": lambda x: x * 2 if x.shape[0] % 3 == 0 else x,
    "remainder as a condition": lambda x: x if x.size(0) % 7 else -x,
    "one size": lambda x: x * 2 if x.shape[0] == 37 else x,
    "another than one size": lambda x: x * 2 if x.numel() != 51 else x,
    "a range": lambda x: x * 2 if 40 < x.shape[0] < 50 else x,
    "quotient": lambda x: x * 2 if x.shape[0] // 10 == 4 else x,
    "true quotient": lambda x: x * 2 if (x.shape[0] / 6).is_integer() else x,
    "fraction": lambda x: x * 2 if x.shape[0] / 8 == 4.5 else x,
    "digits": lambda x: x * 2 if x.shape[0].bit_count() == 3 else x,
    "shapes in a set": lambda x: x * 2 if x.shape in {(44,), (55,)} else x,
    "rounded quotient": lambda x: x * 2 if math.ceil(x.shape[0] / 10) == 5 else x,
    "nearest": lambda x: x * 2 if round(x.shape[0] * 0.1) == 6 else x,
    "divmod": lambda x: x * 2 if divmod(x.shape[0], 9)[1] == 4 else x,
    "bits": lambda x: x * 2 if x.shape[0] & 6 == 6 else x,
    "power of two": lambda x: x * 2 if not x.shape[0] & (x.shape[0] - 1) else x,
    "shape of a result": lambda x: x * 2 if torch.cat([x, x[1:]]).shape[0] == 75 else x,
    "product of sizes": lambda x: x * 2 if (x[:, None] * x).numel() == 43**2 else x,
    "length": lambda x: x * 2 if len(x) % 3 == 0 else x,
    "length of a result": lambda x: x * 2 if len(torch.cat([x, x])) == 74 else x,
    "plain number": lambda x: x * 2 if int(x.shape[0]) == 41 else x,
    "plain quotient": lambda x: x * 2 if int(x.shape[0] / 6) == 7 else x,
    "root": lambda x: x * 2 if math.sqrt(x.shape[0]).is_integer() else x,
    "plain fraction": lambda x: x * 2 if float(x.shape[0]) in (40.0, 57.0) else x,
    "strides": lambda x: x * 2 if x.reshape(1, -1).stride(0) == 44 else x,
    "bytes": lambda x: x * 2 if x.nbytes == 212 else x,
    "paths of 20 sizes": lambda x: x * {20 + 2 * k: k for k in range(20)}.get(x.shape[0], 30),
    "maximum": lambda x: x * 2 if max(x.shape[0] % 11, 9) > 9 else x,
    "a table": lambda x: x * {41: 2, 61: 3}.get(x.shape[0], 1),
    "tuples": lambda x: x * 2 if x.shape in ((45,), (55,)) else x,
    "nested": lambda x: (-x if x.shape[0] % 2 else x * 3) if x.shape[0] % 3 == 1 else x,
    "loop": lambda x: x * _halvings(x.shape[0]),
    "inside jit": lambda x: _inner(x) * 2,
    "inside scan": lambda x: xf.scan(
        lambda c, _: (c + (x[:1] if x.shape[0] % 5 == 2 else 1), c), x[:1], None, length=2
    )[0],
    "inside vmap": lambda x: xf.vmap(lambda _: x * 2 if x.shape[0] % 4 == 3 else x)(x[:2]).sum(0),
    "gradient": lambda x: xf.grad(lambda y: (y**3 if y.shape[0] % 6 == 5 else y).sum())(x),
}  # fmt: skip


@pytest.mark.sample(6, seed=1)
@pytest.mark.parametrize("name", BRANCHES)
def test_dynamic_shapes_branch_by_size(name: str) -> None:
    f = BRANCHES[name]
    jitted = xf.jit(f, dynamic_shapes=((S,),))
    for n in range(1, 65):
        x = torch.linspace(1, 2, n)
        torch.testing.assert_close(jitted(x).cpu(), torch.as_tensor(f(x)).cpu(), msg=f"at {n}")


def test_dynamic_shapes_branch_that_all_sizes_take_shares_a_program() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        if n < 1 or n > 4096 or n * 2 == 7 or (n + 63) // 64 > 100:
            return x
        return x * 2 if n == min(n, 500) else x

    jitted = xf.jit(f, dynamic_shapes=((LARGER,),), buckets=[128])
    for n in (1, 5, 77, 128):
        assert jitted(torch.ones(n)).tolist() == [2] * n
    assert "bucket S<=128: 4 calls, one program" in jitted.explain()


def test_dynamic_shapes_branch_with_the_same_program_on_both_sides() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] % 3 else x * 2.0

    jitted = xf.jit(f, dynamic_shapes=((LARGER,),), buckets=[128])
    for n in (1, 5, 6, 128):
        assert jitted(torch.ones(n)).tolist() == [2] * n
    assert "bucket S<=128: 4 calls, one program" in jitted.explain()


def test_dynamic_shapes_branch_is_named() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 37 else x

    jitted = xf.jit(f, dynamic_shapes=((LARGER,),), buckets=[64, 128])
    for n in (36, 37, 38, 100, 101):
        torch.testing.assert_close(jitted(torch.ones(n)).cpu(), f(torch.ones(n)))
    of_37, of_64, of_128 = jitted.explain().splitlines()[-3:]
    assert "bucket S<=37: 1 calls, a program for each exact shape: at S=37, " in of_37
    assert f"as compared at {__file__}:{f.__code__.co_firstlineno + 1}" in of_37
    assert "bucket S<=64: 2 calls, one program" in of_64
    assert "bucket S<=128: 2 calls, one program" in of_128
    struct: Any = xf.ShapeDtypeStruct((LARGER,), torch.float32)
    with pytest.raises(ShapeError, match=r"no program for a range of sizes: .*at S=37, another"):
        jitted.lower(struct)


def test_dynamic_shapes_length_of_a_tensor_in_a_number_shares_a_program() -> None:
    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.sum() / len(x)

    jitted = xf.jit(mean, dynamic_shapes=((LARGER,),), buckets=[128])
    for n in (1, 5, 6, 77, 128):
        assert jitted(torch.arange(1.0, n + 1)).item() == (n + 1) / 2
    read = f"each size traced: it calls len of a size, at {__file__}"
    line = mean.__code__.co_firstlineno + 1
    assert f"bucket S<=128: 5 calls, one program, 1 masks, 66% padding, {read}:{line}" in (
        jitted.explain()
    )


def test_dynamic_shapes_branch_by_length_is_named() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if len(x) == 37 else x

    jitted = xf.jit(f, dynamic_shapes=((LARGER,),), buckets=[128])
    for n in (36, 37, 38, 37, 128):
        torch.testing.assert_close(jitted(torch.ones(n)).cpu(), f(torch.ones(n)))
    of_37, of_128 = jitted.explain().splitlines()[-2:]
    assert "bucket S<=37: 2 calls, a program for each exact shape: at S=37, " in of_37
    assert f"calls len of a size, at {__file__}:{f.__code__.co_firstlineno + 1}" in of_37
    assert "bucket S<=128: 3 calls, one program" in of_128


def test_sizes_in_dynamic_shapes_are_numbers() -> None:
    found: list[object] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        b, n = x.shape
        found.append((isinstance(n, int), f"{n}", [*range(b)][-1] + 1 == b))
        y = torch.zeros(n) + x.new_ones((b, n)) + torch.arange(n) / n + n % 1 + b**1 - b // 1
        return y.reshape(b * n).view(b, -1)[:, : n - 1 + (n > 0)] * torch.full((), n) + x

    t = xf.Dim("T", max=8)
    jitted = xf.jit(f, dynamic_shapes=((t, S),), buckets={"T": [8], "S": [16]})
    for b, n in ((3, 5), (8, 16), (2, 9)):
        x = torch.ones(b, n)
        torch.testing.assert_close(jitted(x).cpu(), f(x))
    assert all(a and r for a, _, r in found)  # type: ignore[misc, attr-defined]
    assert "one program" in jitted.explain()


@functools.partial(xf.jit, static_argnums=1)
def _all_but_one(x: torch.Tensor, n: int) -> torch.Tensor:
    return x[: n - 1].sum() + n


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "length of scan": lambda x: xf.scan(lambda c, _: (c + 1, c), x[0], None, length=len(x) * 1)[1],
    "length of scan, as read": lambda x: xf.scan(
        lambda c, _: (c + 1, c), x[0], None, length=x.shape[0]
    )[1],
    "bound of fori_loop": lambda x: xf.fori_loop(0, x.shape[0], lambda i, c: c + x[i], x[0] * 0),
    "bound of while_loop": lambda x: xf.while_loop(
        lambda c: c[0] < x.shape[0], lambda c: (c[0] + 1, c[1] * 1.01), (0, x)
    )[1],
    "static argument": lambda x: _all_but_one(x, x.shape[0]),
    "argument of a number": lambda x: xf.jit(lambda x, n: x * n)(x, x.shape[0]),
    "index of at": lambda x: xf.at(x)[x.shape[0] - 1].set(5.0),
    "shape of random numbers": lambda x: xf.random.uniform(xf.random.key(0), (x.shape[0], 2)).T * x,
    "permutation": lambda x: xf.random.permutation(xf.random.key(0), x.shape[0]) * 1.0,
    "axis_size of vmap": lambda x: xf.vmap(lambda i: x[i], axis_size=x.shape[0])(
        torch.arange(x.shape[0])
    ),
    "number of segments": lambda x: xf.segment_sum(x, torch.arange(x.shape[0]), x.shape[0]),
    "sizes of dynamic_slice": lambda x: xf.dynamic_slice(x, (0,), (x.shape[0] - 1,)),
    "branch of cond": lambda x: xf.cond(x.sum() > x.shape[0], lambda x: x * 2, lambda x: x, x),
    "result": lambda x: (x, x.shape[0], x.shape[0] / 2),
    "keyword": lambda x: x.new_full(size=(x.shape[0],), fill_value=x.shape[0]),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_dynamic_shapes_size_as_a_number(name: str) -> None:
    f = USES[name]
    jitted = xf.jit(f, dynamic_shapes=((S,),), buckets=[32])
    for n in (5, 9, 32, 2):
        x = torch.linspace(0.5, 1.5, n)
        torch.testing.assert_close(xf.device_get(jitted(x)), xf.device_get(xf.jit(f)(x)))
    assert "bucket S<=32: 4 calls, one program" in jitted.explain(), jitted.explain()


@pytest.mark.parametrize("k", [2, 3, 4])
def test_dynamic_shapes_rows_read_as_columns(k: int) -> None:
    """The elements of ``[k, S]`` in rows of k: where k does not divide S, rows go over the ends."""

    def f(x: torch.Tensor) -> Any:
        rows = torch.stack([x * (j + 1) for j in range(k)])
        wide = torch.stack([x, -x], 1).repeat(k, 1)
        return rows.reshape(-1, k), rows.reshape(-1).view(-1, k).cumsum(0), wide.reshape(-1, k * 2)

    jitted = xf.jit(f, dynamic_shapes=((S,),), buckets=[24])
    for n in range(1, 25):
        x = torch.linspace(1, 2, n)
        torch.testing.assert_close(xf.device_get(jitted(x)), f(x))
    assert "one program" in jitted.explain()
