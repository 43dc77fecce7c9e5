"""Functions of Python that programs call while they run: the mechanism, below what users see."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import xfunc as xf
from xfunc.backends import active, host_calls
from xfunc.backends.torch_xla import registry, runtime
from xfunc.errors import UnsupportedOpError
from xfunc.graph.node import array_type
from xfunc.ops.emit import Results, instruction
from xfunc.trace import tracing

Tensor = torch.Tensor
Register = Callable[[host_calls.Function], Callable[..., Any]]


@pytest.fixture
def calling() -> Iterator[Register]:
    """Registers a function; gives what calls it in a trace."""
    names: list[str] = []

    def register(function: host_calls.Function) -> Callable[..., Any]:
        name = f"test {len(names)}"
        host_calls.register(name, function)
        names.append(name)

        def call(*args: Tensor, like: Results | None = None) -> Any:
            trace = tracing.current()
            assert trace is not None
            like = like or array_type(args[0].dtype, tuple(args[0].shape))
            out = instruction(host_calls.host_call, *map(trace.lift, args), name=name, result=like)
            trace.register(out if isinstance(out, tuple) else [out])
            return out

        return call

    yield register
    for name in names:
        del host_calls._functions[name]


def add_one(operands: list[Tensor], results: list[Tensor]) -> None:
    torch.add(operands[0], 1, out=results[0])


@pytest.mark.torch_xla
def test_torch_xla_registers_no_custom_call_on_cpu() -> None:
    # See NOTE [the way into XLA's registry]: when it does, that is not needed any more.
    X = runtime.xla()
    capsule = np.array([1.0]).__array_struct__
    with pytest.raises(RuntimeError, match="RegisterCustomCall not implemented"):
        X._xla_register_custom_call_target("xfunc_none", capsule, "Host")


def test_registry_symbols_of_files_without_any(tmp_path: Any) -> None:
    assert registry._symbols(sys.executable, [b"no_such_symbol"]) == [None]
    (tmp_path / "text").write_text("no library")
    assert registry._symbols(str(tmp_path / "text"), [b"a", b"b"]) == [None, None]


DTYPES = [torch.bool, torch.int8, torch.int32, torch.int64, torch.uint8, torch.float16]
DTYPES += [torch.bfloat16, torch.float32, torch.float64, torch.complex64]


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 2)], ids=str)
def test_host_call_every_dtype_and_shape(
    calling: Register, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    def copy(operands: list[Tensor], results: list[Tensor]) -> None:
        results[0].copy_(operands[0])

    x = torch.testing.make_tensor(shape, dtype=dtype, device="cpu")
    found = xf.jit(calling(copy))(x).cpu()
    assert found.dtype == dtype
    assert_close(found, x, rtol=0, atol=0)


def test_host_call_operands_are_row_major(calling: Register) -> None:
    call = calling(add_one)
    x, y = torch.randn(5, 7), torch.randn(7, 3)
    found = xf.jit(lambda x, y: call((x @ y).mT) @ call(x.mT).mT)(x, y)
    assert_close(found.cpu(), ((x @ y).mT + 1) @ (x + 1))


def test_host_call_several_operands_and_results(calling: Register) -> None:
    def both(operands: list[Tensor], results: list[Tensor]) -> None:
        x, n = operands
        results[0].copy_(x.sum(0))
        results[1].fill_(int(n))

    like = [array_type(torch.float32, (3,)), array_type(torch.int64, ())]
    call = calling(both)
    x, n = torch.randn(2, 3), torch.tensor(7)
    total, same = xf.jit(lambda x, n: call(x, n, like=like))(x, n)
    assert_close(total.cpu(), x.sum(0))
    assert same.item() == 7


def test_host_call_in_loops_and_branches(calling: Register) -> None:
    call = calling(add_one)

    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        c = xf.cond(x > 0, lambda c: call(c), lambda c: c * 2, c)
        return c, call(c)

    xs = torch.tensor([1.0, -1.0, 1.0, 1.0])
    last, ys = xf.jit(lambda c, xs: xf.scan(step, c, xs))(torch.tensor(0.5), xs)
    assert ys.tolist() == [2.5, 4.0, 5.0, 6.0]
    end = xf.jit(lambda c: xf.while_loop(lambda c: c < 100, call, c))(last)
    assert end.item() == 100


def test_host_call_exception_ends_only_its_call(calling: Register) -> None:
    answers = [KeyError("first"), None, SystemExit(3), None]

    def fail(operands: list[Tensor], results: list[Tensor]) -> None:
        error = answers.pop(0)
        if error is not None:
            raise error
        add_one(operands, results)

    call = calling(fail)
    f = xf.jit(lambda x: call(x) * 2)
    x = torch.ones(300, 300)
    with pytest.raises(KeyError, match="first"):
        f(x)
    assert f(x).cpu()[0, 0] == 4
    with pytest.raises(RuntimeError, match=r"a host call ended in SystemExit\(3\)"):
        f(x)
    assert f(x).cpu()[0, 0] == 4


def test_host_call_nested_jit_is_refused(calling: Register) -> None:
    def nested(operands: list[Tensor], results: list[Tensor]) -> None:
        xf.jit(torch.sin)(torch.ones(2))

    with pytest.raises(RuntimeError, match="called from a callback that a running program"):
        xf.jit(calling(nested))(torch.ones(2))
    assert xf.jit(torch.cos)(torch.zeros(2)).tolist() == [1, 1]


def test_host_call_in_successive_and_threaded_launches(calling: Register) -> None:
    call = calling(add_one)
    f, g = xf.jit(lambda x: call(x @ torch.eye(64))), xf.jit(lambda x: (x @ x).sum())
    found: list[float] = []

    def run() -> None:
        x = torch.zeros(64, 64)
        for _ in range(50):
            x = f(x)
            g(x)
        found.append(x.cpu()[0, 0].item())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [50] * 3


@pytest.mark.parametrize(
    "elsewhere",
    [lambda low: low.as_text("stablehlo"), lambda low: low.compile(target="tpu:v6e:2x2")],
    ids=["stablehlo", "tpu"],
)
def test_host_call_in_stablehlo_or_tpu_program_is_refused(
    calling: Register, elsewhere: Any
) -> None:
    lowered = xf.jit(calling(add_one)).lower(torch.ones(2))
    with pytest.raises(UnsupportedOpError, match="calls a function of Python while it runs"):
        elsewhere(lowered)


def test_host_call_on_unsupported_device_is_refused(
    calling: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(active.runtime()), "calls_host", lambda _: False)
    with pytest.raises(UnsupportedOpError, match="not possible on the running device"):
        xf.jit(calling(add_one))(torch.ones(2, 9))


DEVICES = """
import threading, torch, xfunc as xf
from xfunc.backends import host_calls; from xfunc.trace import tracing
from xfunc.ops.emit import instruction
from xfunc.sharding import P, shard_map
seen = []
def f(operands, results):
    seen.append(tuple(operands[0].shape))
    if operands[0].max() > 100:
        raise ValueError("too large")
    results[0].copy_(operands[0] + 1)
host_calls.register("f", f)
def emit(x):
    return host_calls.host_call(x, name="f", result=x.type)
def call(x):
    out = instruction(emit, tracing.current().lift(x))
    tracing.current().register([out])
    return out
mesh = xf.make_mesh((8,), ("x",))
x = torch.arange(16.0)
each = xf.jit(lambda x: xf.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x))
whole = xf.jit(lambda x: call(x * 2))
for _ in range(3):
    assert each(x).cpu().tolist() == (x + 1).tolist()
    assert set(seen) == {(2,)}, seen
    divided = xf.device_put(x, xf.NamedSharding(mesh, P("x")))
    assert whole(divided).cpu().tolist() == (2 * x + 1).tolist()
    seen.clear()
    try:
        each(x * 7)  # fails on the last devices only
    except ValueError as error:
        assert str(error) == "too large"
    else:
        raise AssertionError
    seen.clear()
def forever():
    while True:
        whole(x)
threading.Thread(target=forever, daemon=True).start()
while not seen:
    pass
print("survived")
"""


@pytest.mark.slow
def test_host_call_on_several_devices_until_exit() -> None:
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path, "CPU_NUM_DEVICES": "8"}
    done = subprocess.run(
        [sys.executable, "-c", DEVICES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.returncode) == ("survived\n", 0), done.stderr
