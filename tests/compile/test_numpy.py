"""NumPy arrays and scalars are taken wherever tensors are, also where traced code makes them."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf

A = np.arange(6, dtype=np.float32).reshape(2, 3)
T = torch.arange(6.0).reshape(2, 3)
ONE = np.float32(1)


def add(carry, x):
    return carry + x, carry


# What is called with NumPy's data, and what eager torch says.
CASES = {
    "jit": (lambda: xf.jit(lambda t: t["a"] * t["b"][0])({"a": A, "b": [ONE * 3]}), T * 3),
    "jit, returned": (lambda: xf.jit(lambda x: (x, A, ONE)[1])(T), T),
    "jit, a scalar returned": (lambda: xf.jit(lambda x: np.int32(3))(T), torch.tensor(3).int()),
    "lower": (lambda: xf.jit(lambda x: x + 1).lower(A).compile()(A), T + 1),
    "grad": (lambda: xf.grad(lambda x: (x * x).sum())(A), 2 * T),
    "grad, not differentiated": (lambda: xf.grad(lambda x, y: (x * y).sum())(T, A), T),
    "grad of a scalar": (lambda: xf.grad(lambda x: x * x)(ONE * 3), torch.tensor(6.0)),
    "vjp": (lambda: xf.vjp(lambda x: x * 2, A)[1](A)[0], 2 * T),
    "jvp": (lambda: xf.jvp(lambda x: x * x, (A,), (A,))[1], 2 * T * T),
    "linearize": (lambda: xf.linearize(lambda x: x * x, A)[1](A), 2 * T * T),
    "jacrev": (lambda: xf.jacrev(lambda x: x.sum(1))(A)[0], torch.tensor([[1.0] * 3, [0.0] * 3])),
    "vmap": (lambda: xf.vmap(lambda x, y: x * y, (1, None))(A, ONE * 2), 2 * T.T),
    "scan": (lambda: xf.scan(add, np.zeros(3, np.float32), A)[0], T.sum(0)),
    "scan in a trace": (
        lambda: xf.jit(lambda x: xf.scan(add, np.float32(0), A[:, 0])[0] + x)(T),
        T + 3,
    ),
    "map": (lambda: xf.map(lambda x: x * 2, A), 2 * T),
    "associative_scan": (lambda: xf.associative_scan(torch.add, A), T.cumsum(0)),
    "cond": (lambda: xf.cond(np.bool_(True), lambda x: x, lambda x: -x, A), T),
    "switch": (lambda: xf.switch(np.int32(1), [lambda x: x, lambda x: -x], A), -T),
    "while_loop": (lambda: xf.while_loop(lambda x: x < 3, lambda x: x + 2, ONE), torch.tensor(3.0)),
    "fori_loop": (lambda: xf.fori_loop(np.int64(0), np.int32(3), lambda i, x: x + i, A), T + 3),
    "fori_loop, traced": (
        lambda: xf.jit(lambda n: xf.fori_loop(np.int64(0), n, lambda i, x: x + i, A))(np.int64(3)),
        T + 3,
    ),
    "checkpoint": (lambda: xf.checkpoint(lambda x, y: x + y)(A, A), 2 * T),
    "device_put": (lambda: xf.device_put({"a": A})["a"], T),
    "stop_gradient": (lambda: xf.jit(lambda x: xf.stop_gradient(x))(A), T),
    "export": (
        lambda: xf.export.deserialize(xf.export.serialize(xf.jit(lambda x: x + 1).lower(A)))(A),
        T + 1,
    ),
    "disable_jit": (lambda: eagerly(lambda: xf.grad(lambda x: (x * x).sum())(A)), 2 * T),
}  # fmt: skip


def eagerly(f):
    with xf.disable_jit():
        return f()


@pytest.mark.parametrize("name", CASES)
def test_transforms_take_numpy_arrays(name: str) -> None:
    got, want = CASES[name]
    torch.testing.assert_close(got().cpu(), want)


KINDS = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64",
         "complex64", "complex128")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_jit_numpy_dtypes_are_kept(kind: str) -> None:
    array = np.arange(3).astype(kind)
    got = xf.jit(lambda x: x)(array)
    assert got.dtype is getattr(torch, kind)
    assert got.cpu().numpy().tolist() == array.tolist()
    assert xf.jit(lambda x: x)(array[1]).cpu().numpy().tolist() == array[1].item()


@pytest.mark.parametrize(
    "array",
    [A[::-1, ::-1], A.T, A.astype(">f4"), A[:0], np.broadcast_to(A[0], (4, 3)), np.array(2.0)],
    ids=["negative strides", "transposed", "big-endian", "empty", "read-only", "no axes"],
)
def test_jit_numpy_layouts(array) -> None:
    got = xf.jit(lambda x: x * 2)(array)
    assert got.cpu().numpy().tolist() == (array * 2).tolist()


def test_jit_ml_dtypes_bfloat16_array() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    got = xf.jit(lambda x: x)(A.astype(ml_dtypes.bfloat16))
    assert got.dtype is torch.bfloat16
    assert got.tolist() == A.tolist()


def test_jit_numpy_arguments_are_dynamic_copies() -> None:
    f = xf.jit(lambda x, y: x * y)
    a = np.ones(3, np.float32)
    first = f(a, np.float32(2))
    a[:] = 7  # the first result has been given away
    assert [first.tolist(), f(a, np.float32(5)).tolist()] == [[2.0] * 3, [35.0] * 3]
    assert f.cache_info().traces == 1


@pytest.mark.parametrize(
    ("array", "error", "match"),
    [
        (np.array(["a"]), TypeError, r"was given array\(\['a'\], dtype='<U1'\) \(a ndarray\) as x"),
        (np.array([None]), TypeError, "dtype=object"),
        (np.arange(3, dtype=np.uint32), xf.errors.UnsupportedOpError, r"torch\.uint32 is not"),
    ],
)
def test_jit_numpy_dtypes_refused(array, error, match) -> None:
    with pytest.raises(error, match=match):
        xf.jit(lambda x: x)(array)


# ------------------------------------------------------------------ constants of traced code


Tensor = torch.Tensor
TABLE = np.arange(6, dtype=np.float32).reshape(2, 3)
MAKERS: dict[str, Callable[[], Tensor]] = {
    "from_numpy": lambda: torch.from_numpy(TABLE)[1],
    "a copy": lambda: torch.from_numpy(TABLE.copy())[1],
    "from_dlpack": lambda: torch.from_dlpack(TABLE)[1],
    "frombuffer": lambda: torch.frombuffer(bytearray(12), dtype=torch.float32),
    "as_tensor": lambda: torch.as_tensor(TABLE)[1],
    "not a number": lambda: torch.from_numpy(np.array([1, np.nan, 3], np.float32)),
    "one number": lambda: torch.from_numpy(np.array(3.0, np.float32)),
}


def looped(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: xf.scan(lambda c, _: (f(c), None), x, length=2)[0]


def chosen(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: xf.cond(x.sum() > 0, f, f, x)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("wrap", [xf.jit, xf.checkpoint, looped, chosen])
@pytest.mark.parametrize("name", MAKERS)
def test_numpy_constant_in_derived_programs(name: str, wrap: Any) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.sin(x) * MAKERS[name]()

    def plain(x: Tensor) -> Tensor:
        return f(f(x)) if wrap is looped else f(x)

    x = torch.tensor([0.5, 1.0, 1.5])
    staged = wrap(f)
    found = xf.jvp(staged, (x,), (x,))
    want = torch.func.jvp(plain, (x,), (x,))
    torch.testing.assert_close(xf.device_get(found), want, equal_nan=True)
    found = xf.vmap(xf.grad(lambda x: staged(x).sum()))(x.expand(2, 3))
    want = torch.func.grad(lambda x: plain(x).sum())(x).expand(2, 3)
    torch.testing.assert_close(xf.device_get(found), want, equal_nan=True)


def test_numpy_constant_differing_in_second_run_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        return x * torch.from_numpy(np.full(3, time.perf_counter_ns()))

    x = torch.ones(3)
    with pytest.raises(xf.errors.PurityError, match="that the first run did not"):
        xf.jvp(xf.checkpoint(f), (x,), (x,))


def test_jit_captured_numpy_array_changed() -> None:
    table = np.ones(3, np.float32)
    f = xf.jit(lambda x: x * torch.from_numpy(table))
    assert f(torch.ones(3)).tolist() == [1, 1, 1]
    table[0] = 5
    assert f(torch.ones(3)).tolist() == [5, 1, 1]


ROW, ROWS = np.array([1, 2, 3], np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
MUL: Any = torch.mul  # which takes arrays of NumPy where a transform does
# Functions that give arrays of NumPy to transforms inside, and what they compute.
NESTED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "scan": (
        lambda x: xf.scan(lambda c, r: (c * r * x, None), ROW, ROWS + 1)[0],
        lambda x: torch.tensor(ROW * (ROWS + 1).prod(0)) * x * x,
    ),
    "while_loop": (
        lambda x: xf.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * x), (np.int32(0), ROW)
        )[1],
        lambda x: torch.tensor(ROW) * x * x,
    ),
    "fori_loop": (
        lambda x: xf.fori_loop(0, 2, lambda i, c: c * x, ROW),
        lambda x: torch.tensor(ROW) * x * x,
    ),
    "cond": (
        lambda x: xf.cond(x[0] > 0, lambda y: y * x * x, lambda y: y + x, ROW),
        lambda x: torch.tensor(ROW) * x * x,
    ),
    "switch": (lambda x: xf.switch(0, [lambda y: y * x], ROW), lambda x: torch.tensor(ROW) * x),
    "map": (lambda x: xf.map(lambda r: r * x, ROWS)[1], lambda x: torch.tensor(ROWS[1]) * x),
    "vmap": (
        lambda x: xf.vmap(lambda r: r * x)(ROWS).sum(0),
        lambda x: torch.tensor(ROWS.sum(0)) * x,
    ),
    "jit": (lambda x: xf.jit(MUL)(x, ROW), lambda x: x * torch.tensor(ROW)),
    "checkpoint": (lambda x: xf.checkpoint(MUL)(x, ROW), lambda x: x * torch.tensor(ROW)),
    "at": (lambda x: xf.at(x * x)[1:].add(ROW[:2]), lambda x: x * x + torch.tensor([0.0, 1, 2])),
}


@pytest.mark.parametrize("name", NESTED)
def test_numpy_argument_of_nested_transform_in_forward_mode(name: str) -> None:
    f, plain = NESTED[name]
    x = torch.tensor([0.5, 1.0, 1.5])
    torch.testing.assert_close(xf.jvp(f, (x,), (x,))[1].cpu(), torch.func.jvp(plain, (x,), (x,))[1])
    torch.testing.assert_close(xf.jacfwd(f)(x).cpu(), torch.func.jacfwd(plain)(x))
    twice = xf.jacfwd(xf.jacfwd(f))(x).cpu()
    torch.testing.assert_close(twice, torch.func.jacfwd(torch.func.jacfwd(plain))(x))
    mapped = xf.vmap(lambda x: xf.jvp(f, (x,), (x,))[1])(x.expand(2, 3)).cpu()
    torch.testing.assert_close(mapped[0], torch.func.jvp(plain, (x,), (x,))[1])
