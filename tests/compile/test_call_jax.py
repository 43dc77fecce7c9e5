"""`call_jax`: functions of JAX in the programs of xfunc."""

import os
import sys
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.core.avals import Aval
from xfunc.errors import CompileError, UnsupportedOpError
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import verify
from xfunc.program import foreign
from xfunc.program.bind import bind
from xfunc.program.foreign import call_jax
from xfunc.trace.lowering import Lowering

X = torch.tensor([[3.0, -1.0, 0.5], [0.0, 2.0, -4.0]])
Y = torch.tensor([[4.0, 1.0, -0.5], [1.0, -2.0, 0.25]])


def call(name: str, *args: Any, **static: Any) -> tuple[torch.Tensor, ...]:
    return call_jax(f"tests.support.foreign_functions:{name}", *args, platform="cpu", **static)


def square(x: torch.Tensor) -> torch.Tensor:
    return call("square", x)[0]


squared = xf.custom_vjp(square)
squared.defvjp(lambda x: (square(x), x), lambda x, ct: call("double", x, ct))


@pytest.mark.parametrize("shift", [None, torch.tensor(1.5)])
def test_values(shift):
    polar = xf.jit(lambda x, y, shift: call("polar", x, y, shift, scale=2.0))
    radius, angle = xf.device_get(polar(X, Y, shift))
    torch.testing.assert_close(radius, 2 * torch.hypot(X, Y))
    torch.testing.assert_close(angle, torch.atan2(Y, X) + (0.0 if shift is None else 1.5))


def test_is_lowered_once_for_each_kind_of_arguments():
    def twice(x, y):
        return square(square(x)), square(y)

    foreign._lowered.cache_clear()
    got = xf.jit(twice)(X, X[:, :2])
    torch.testing.assert_close(xf.device_get(got), (X**4, X[:, :2] ** 2))
    assert foreign._lowered.cache_info().misses == 2
    xf.jit(lambda x: square(x) + 1)(X)
    assert foreign._lowered.cache_info().misses == 2


def test_gradient_by_a_rule():
    value, grad = xf.value_and_grad(lambda x: squared(x).sum())(X)
    torch.testing.assert_close(xf.device_get((value, grad)), ((X**2).sum(), 2 * X))


def test_in_loops_and_branches():
    def program(x):
        def step(c, row):
            return xf.cond(row.sum() > 0, squared, lambda r: r, row) + c, None

        return xf.scan(step, torch.zeros_like(x[0]), x)[0].sum()

    got = xf.device_get(xf.jit(xf.value_and_grad(program))(X))
    positive = X.sum(1, keepdim=True) > 0
    want = torch.where(positive, X**2, X).sum(), torch.where(positive, 2 * X, 1.0)
    torch.testing.assert_close(got, want)


def test_jax_finds_no_libtpu():
    got = xf.jit(lambda x: call("finds_libtpu", x)[0])(X)
    torch.testing.assert_close(xf.device_get(got), X)


@pytest.mark.parametrize(
    "backend", [pytest.param("torch_xla", marks=pytest.mark.torch_xla), "pjrt"]
)
def test_a_pallas_kernel(backend, request):
    if backend == "pjrt":
        request.getfixturevalue("pjrt")
    x = torch.randn(5, 3)
    got = xf.jit(lambda x: call("running_sums", x, scale=2.0)[0].tanh())(x)
    torch.testing.assert_close(got.cpu(), (2 * x.cumsum(0)).tanh())


@pytest.mark.parametrize(
    "backend", [pytest.param("torch_xla", marks=pytest.mark.torch_xla), "pjrt"]
)
def test_ids_of_64_bits(backend, request):
    """XLA of 2026 writes the computation's id into the upper half of those of its instructions."""
    if backend == "pjrt":
        request.getfixturevalue("pjrt")
    inner = xf.jit(lambda x: torch.where(x > 0, x, 3 * x))
    of_jax = pb.HloModuleProto()
    of_jax.CopyFrom(xf.jit(lambda x: inner(inner(x).cumsum(0))).lower(X).module.proto)
    numbers = {c.id: k for k, c in enumerate(of_jax.computations, 1)}
    of_jax.entry_computation_id = numbers[of_jax.entry_computation_id]
    for c in of_jax.computations:
        c.id = numbers[c.id]
        ids = {i.id: c.id << 32 | k for k, i in enumerate(c.instructions, 1)}
        c.root_id = ids[c.root_id]
        for i in c.instructions:
            i.id = ids[i.id]
            i.operand_ids[:] = map(ids.__getitem__, i.operand_ids)
            i.called_computation_ids[:] = map(numbers.__getitem__, i.called_computation_ids)
    module = foreign._as_ours(of_jax.SerializeToString())
    verify(module)
    every = [x.id for c in module.proto.computations for x in (c, *c.instructions)]
    assert sorted(every) == [*range(1, 1 + len(every))]
    aval = Aval((2, 3), torch.float32)
    primitive = foreign.Foreign(Lowering.of("wide", module, [aval], [aval]))
    got = xf.jit(lambda x: bind(primitive, [x])[0] + bind(primitive, [-x])[0])(X)

    def want(x):
        x = torch.where(x > 0, x, 3 * x).cumsum(0)
        return torch.where(x > 0, x, 3 * x)

    torch.testing.assert_close(got.cpu(), want(X) + want(-X))


@pytest.mark.parametrize("transform", [xf.grad, xf.jacfwd, xf.hessian])
def test_no_derivative(transform):
    with pytest.raises(UnsupportedOpError, match=r"functions:square.* cannot be differentiated"):
        transform(lambda x: square(x).sum())(X)


def test_no_second_derivative():
    with pytest.raises(UnsupportedOpError, match=r"differentiated here(.|\n)*first derivative"):
        xf.grad(lambda x: xf.grad(lambda y: squared(y).sum())(x).sum())(X)


def test_no_vmap():
    with pytest.raises(UnsupportedOpError, match=r"cannot be batched(.|\n)*Hint: use jax\.vmap"):
        xf.vmap(square)(X)


def test_outside_of_a_trace():
    with pytest.raises(UnsupportedOpError, match=r"square is called outside a traced function"):
        square(X)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.complex128])
def test_64_bits(dtype):
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(TypeError, match=rf"of .*:polar is {name}\[2,3\], but JAX does not use"):
        xf.jit(lambda x, y: call("polar", x, y, None, scale=1.0)[0])(X, Y.to(dtype))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "nothing",
            r"AttributeError: module '\S+foreign_functions' has no attribute 'nothing'",
        ),
        ("rows", r"TypeError: .*\(2, 3\).*\(7, -1\)"),
    ],
)
def test_what_jax_refuses(name, said):
    with pytest.raises(CompileError, match=rf"could not lower .*:{name} for .*'cpu'.*said: {said}"):
        xf.jit(lambda x: call(name, x)[0])(X)


def test_a_module_that_is_not_there():
    with pytest.raises(CompileError, match=r"said: ModuleNotFoundError: No module named 'nowhere'"):
        xf.jit(lambda x: call_jax("nowhere:f", x, platform="cpu")[0])(X)


def test_a_function_that_waits_for_ever(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "never")  # Nobody will ever write to it.
    (tmp_path / "waiting.py").write_text(f"f = open({str(tmp_path / 'never')!r})")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(foreign, "_SECONDS", 2.0)
    says = (
        r"JAX did not lower waiting:f for the platform 'cpu' within 2 s, so its process was ended"
    )
    with pytest.raises(CompileError, match=rf"{says}(.|\n)*Hint: lower it with jax\.jit"):
        xf.jit(lambda x: call_jax("waiting:f", x, platform="cpu")[0])(X)


def test_jax_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    foreign._lowered.cache_clear()
    with pytest.raises(ImportError, match=r"not installed(.|\n)*Hint: pip install 'xfunc\[pjrt\]'"):
        xf.jit(square)(X)
