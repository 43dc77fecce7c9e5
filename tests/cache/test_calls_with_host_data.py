"""Numbers, arrays of NumPy and tensors of the CPU as arguments, call after call."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from xfunc.errors import UnsupportedOpError

pytestmark = pytest.mark.quick

BASE = torch.tensor([[1.5, -2.0, 0.0], [4.0, 0.25, -1.0]])
GIVEN: dict[str, Any] = {
    "tensor": BASE,
    "transposed": BASE.T.contiguous().T,
    "strided": BASE.repeat(2, 2)[::2, ::2],
    "expanded": BASE[:1].expand(2, 3),
    "of one element": torch.tensor(3.0),
    "empty": torch.ones(0, 3),
    "float64": BASE.double(),
    "bfloat16": BASE.bfloat16(),
    "float16": BASE.half(),
    "bool": BASE > 0,
    "int8": BASE.to(torch.int8),
    "int64": BASE.long(),
    "complex": BASE + 1j * BASE,
    "conjugate": (BASE + 1j * BASE).conj(),
    "negative": (BASE + 1j * BASE).conj().imag,
    "watched": BASE.clone().requires_grad_(),
    "parameter": torch.nn.Parameter(BASE.clone()),
    "made in inference": None,
    "float": 0.5,
    "large float": 1e300,
    "nan": float("nan"),
    "int": 3,
    "truth": True,
    "complex number": 1 + 2j,
    "array": BASE.numpy(),
    "array transposed": BASE.numpy().T,
    "array of one element": np.array(2.0),
    "array backwards": BASE.numpy()[::-1],
    "array of other bytes": BASE.numpy().astype(">f4"),
    "array of int32": np.arange(6, dtype="int32").reshape(2, 3),
    "float32 of NumPy": np.float32(2.5),
    "float64 of NumPy": np.float64(2.5),
    "int64 of NumPy": np.int64(-3),
    "truth of NumPy": np.bool_(True),
    "masked": np.ma.MaskedArray([1.0, 2.0]),
}
with torch.inference_mode():
    GIVEN["made in inference"] = BASE + 1


def plain(x: Any) -> torch.Tensor:
    """What the argument is, as torch has it."""
    if isinstance(x, np.ndarray | np.generic):
        x = torch.from_numpy(np.array(x, np.asarray(x).dtype.newbyteorder("=")))
    return x.detach().clone() if isinstance(x, torch.Tensor) else torch.tensor(x)


def check(got: torch.Tensor, x: Any) -> None:
    torch.testing.assert_close(
        xf.device_get(got).detach().resolve_conj().resolve_neg(),
        (plain(x) + plain(x)).resolve_conj().resolve_neg(),
        equal_nan=True,
    )


@pytest.mark.parametrize("name", GIVEN)
def test_argument_of_repeated_calls(name: str) -> None:
    xf.clear_caches()
    f = xf.jit(lambda x: x + x)
    for _ in range(4):
        check(f(GIVEN[name]), GIVEN[name])
    assert xf.trace_count(f) == 1


def test_each_kind_after_each() -> None:
    """What the last call was given says nothing about this one."""
    f = xf.jit(lambda x: x + x)
    for a, b in itertools.permutations(GIVEN, 2):
        for name in (a, a, b):
            check(f(GIVEN[name]), GIVEN[name])


def test_argument_changed_after_the_call() -> None:
    """A program may run when its caller goes on: it has what it was given."""
    f = xf.jit(lambda x, y: (x @ x @ x).sum() + y.sum())
    x, y = torch.ones(300, 300), np.ones((300, 300), "float32")
    for _ in range(20):
        x.fill_(1)
        y.fill(1)
        got = f(x, y)
        x.fill_(5)
        y.fill(7)
        assert got.item() == pytest.approx(300**4 + 300**2, rel=1e-6)


def test_default_dtype_of_numbers() -> None:
    f = xf.jit(lambda x: x * 2)
    assert [f(0.5).dtype for _ in range(3)] == [torch.float32] * 3
    torch.set_default_dtype(torch.float64)
    try:
        assert [f(0.5).dtype for _ in range(3)] == [torch.float64] * 3
    finally:
        torch.set_default_dtype(torch.float32)
    assert f(0.5).dtype == torch.float32


def test_number_too_large() -> None:
    f = xf.jit(lambda x: x * 2)
    assert [f(3).item() for _ in range(3)] == [6, 6, 6]
    for _ in range(2):
        with pytest.raises(OverflowError, match=r"too large for an\s+int64"):
            f(2**63)
    assert f(3).item() == 6


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (torch.ones(2).to_sparse(), "its layout torch.sparse_coo is not supported"),
        (torch.ones(2, device="meta"), "it is on the meta device and has no data"),
        (torch.ones(2).to(torch.uint16), "its dtype torch.uint16 is not supported"),
    ],
)
def test_tensor_that_is_no_array_after_one_that_is(x: torch.Tensor, match: str) -> None:
    f = xf.jit(lambda x: x * 2)
    assert [f(torch.ones(2)).tolist() for _ in range(3)] == [[2, 2]] * 3
    with pytest.raises(UnsupportedOpError, match=match):
        f(x)
    assert f(torch.ones(2)).tolist() == [2, 2]


def test_released_storage() -> None:
    f, x = xf.jit(lambda x: x * 2), torch.ones(2)
    assert [f(x).tolist() for _ in range(3)] == [[2, 2]] * 3
    x.untyped_storage().resize_(0)
    with pytest.raises(UnsupportedOpError, match="its storage has been released"):
        f(x)


def test_gradient_of_argument_on_cpu() -> None:
    f, x = xf.jit(lambda x: (x * x).sum()), torch.tensor([1.0, 2.0])
    assert [f(x).item() for _ in range(3)] == [5, 5, 5]
    x.requires_grad_()
    f(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4]
    with torch.no_grad():
        assert not f(x).requires_grad


def test_plain_tensor_in_nested_transforms_after_plain_calls() -> None:
    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x @ w) * x).sum()

    def second(f: Any) -> torch.Tensor:
        grad = torch.func.grad
        return grad(lambda x: grad(lambda y: f(y, w))(x).sum())(x)

    x, w = BASE[0].double(), torch.eye(3, dtype=torch.float64) + 0.5
    f = xf.jit(plain)
    for _ in range(2):
        f(x, w)
    torch.testing.assert_close(xf.device_get(second(f)), second(plain))
    torch.testing.assert_close(
        xf.device_get(torch.func.vmap(lambda x: f(x, w))(x[None])), plain(x, w)[None]
    )


def test_numbers_of_fewer_and_more_arguments() -> None:
    def added(*xs: Any) -> Any:
        return sum(xs)

    f = xf.jit(added)
    for n in (3, 2, 3, 1, 4):
        for _ in range(3):
            assert f(*range(1, n + 1)).item() == n * (n + 1) // 2


def test_donated_argument_on_cpu_stays() -> None:
    f = xf.jit(lambda x, y: x + y, donate_argnums=0)
    x, y = torch.ones(64), xf.device_put(torch.ones(64))
    for _ in range(4):
        assert f(x, y).sum().item() == 128
    assert x.tolist() == [1] * 64


def test_step_with_a_number_and_an_array() -> None:
    """The common loop: state on the device, a batch of NumPy, a learning rate."""

    def step(w: torch.Tensor, batch: Any, rate: Any) -> torch.Tensor:
        return w - rate * xf.grad(lambda w: ((batch @ w) ** 2).mean())(w)

    batch = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    jitted, w, want = xf.jit(step), xf.device_put(torch.ones(3)), torch.ones(3)
    for k in range(5):
        rate = 0.1 / (k + 1)
        w = jitted(w, batch, rate)
        want = want - rate * 2 / 5 * torch.from_numpy(batch).T @ (torch.from_numpy(batch) @ want)
        torch.testing.assert_close(xf.device_get(w), want)
    assert xf.trace_count(jitted) == 1


FIRST = """
import torch
import xfunc as xf

f = xf.jit(lambda x, s: (x * s).sin().sum())
x = torch.ones(3)
for _ in range(3):
    {call}
assert torch.allclose(torch.as_tensor(r).cpu(), torch.tensor({expected})), r
assert f(torch.ones(2), 0.0).item() == 0
"""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("r = torch.func.grad(f)(x, 2.0)", 2 * math.cos(2)),
        ("r = torch.func.vmap(f, (0, None))(x[None], 2.0)", 3 * math.sin(2)),
        ("with torch.device('meta'): r = f(x, 2.0)", 3 * math.sin(2)),
        ("with torch.inference_mode(): r = f(x, 2.0)", 3 * math.sin(2)),
    ],
)
def test_first_call_of_a_process_in_a_context(fresh: Server, call: str, expected: float) -> None:
    found = fresh.run(FIRST.format(call=call, expected=expected))
    assert found.returncode == 0, found.stderr
