"""Functions called in a trace are in its module once, whatever their shapes and dtypes."""

from collections import Counter

import pytest
import torch

import xfunc as xf
from tests.internals.hlo.builder import Builder
from xfunc.core.avals import Aval
from xfunc.hlo import Module, Shape, verify
from xfunc.hlo.write import write
from xfunc.torchlib.values import FLOAT8, SUPPORTED
from xfunc.trace import recorder

pytestmark = pytest.mark.quick

F32 = Shape(torch.float32, (2,))


def names(module: Module) -> Counter[str]:
    """The computations of a module, by name without number."""
    return Counter(c.name.rpartition(".")[0] for c in module.computations)


def test_jit_called_repeatedly_is_in_module_once() -> None:
    block = xf.jit(lambda x, w: torch.tanh(x @ w) + x)
    x, w = (torch.randn(4, 4, dtype=torch.float64) for _ in range(2))

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = block(x, w)
        return x.sum()

    module = xf.jit(model).lower(x, w).module
    assert len(module.computations) == 3  # one adds the terms of the sum
    assert sum(i.opcode == "call" for i in module.entry.instructions) == 5
    assert block.cache_info().traces == 1

    found, (dx, dw) = xf.value_and_grad(model, argnums=(0, 1))(x, w)
    x.requires_grad_()
    w.requires_grad_()
    expected = x
    for _ in range(5):
        expected = torch.tanh(expected @ w) + expected
    wanted = torch.autograd.grad(expected.sum(), (x, w))
    torch.testing.assert_close(found.cpu(), expected.sum())
    torch.testing.assert_close((dx.cpu(), dw.cpu()), wanted)
    gradient = xf.jit(xf.grad(model)).lower(x.detach(), w.detach()).module
    assert max(names(gradient).values()) == 1


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("dtype", sorted(SUPPORTED, key=str), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 1)], ids=str)
def test_jit_nested_results_of_every_dtype(
    shape: tuple[int, ...], dtype: torch.dtype, many: bool
) -> None:
    inner = xf.jit(lambda x: [x, x.reshape(-1)][: 1 + many])
    x = torch.ones(shape).to(dtype)

    def outer(x: torch.Tensor) -> list[torch.Tensor]:
        whole = inner(x)
        assert [w.dtype for w in whole] == [dtype] * len(whole)
        return [*whole, *(whole if dtype in FLOAT8 else (w.clone() for w in whole))]

    found = [t.cpu() for t in xf.jit(outer)(x)]
    expected = [x, x.reshape(-1)][: 1 + many] * 2
    assert [(t.dtype, t.shape) for t in found] == [(t.dtype, t.shape) for t in expected]
    pairs = zip(found, expected, strict=True)
    assert all(torch.equal(a.to(torch.complex64), b.to(torch.complex64)) for a, b in pairs)


def test_jit_nested_same_operands_different_shapes() -> None:
    """torch_xla gives custom calls of one target and the same operands the same shape."""
    narrow, wide = xf.jit(lambda x: x[:1]), xf.jit(lambda x: torch.cat([x, x]))
    x = torch.arange(3.0)
    for f, expected in ((narrow, x[:1]), (wide, torch.cat([x, x])), (narrow, x[:1])):
        found = xf.jit(lambda x, f=f: f(x) * 2)(x)
        assert torch.equal(found.cpu(), expected * 2)
    a, b = xf.jit(lambda x: (narrow(x), wide(x)))(x)
    assert (a.tolist(), b.tolist()) == ([0.0], [0.0, 1.0, 2.0, 0.0, 1.0, 2.0])


def test_jit_nested_effects_run_in_each_call(capfd: pytest.CaptureFixture[str]) -> None:
    @xf.jit
    def shown(x: torch.Tensor) -> torch.Tensor:
        xf.debug.print("saw {}", x)
        return x + 1

    found = xf.jit(lambda x: shown(shown(shown(x))))(torch.tensor(1))
    assert found.item() == 4  # The effects of a call come before its result.
    assert [line for line in capfd.readouterr().out.splitlines() if "saw" in line] == [
        "saw 1",
        "saw 2",
        "saw 3",
    ]


def test_jit_nested_operations_are_named_after_function() -> None:
    @xf.jit
    def decorated(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x * 2

    module = xf.jit(lambda x: sum(decorated(x))).lower(torch.ones(2)).module
    said = {
        i.proto.metadata.op_type
        for i in module.entry.instructions
        if i.opcode in ("call", "get-tuple-element")
    }
    (name,) = said
    assert name.removeprefix("xfunc__").rpartition(".")[2] == "decorated"


def test_apply_keeps_control_dependencies() -> None:
    def made(name: str) -> Module:
        b = Builder(name)
        body = b.computation(name)
        x = body.parameter(F32)
        first, second = body.add(x, x), body.multiply(x, x)
        module = b.build(body.build(body.tuple([body.add(first, second)])))
        module.proto.computations[0].instructions[2].control_predecessor_ids.append(first.id)
        return module

    first, second = made("first"), made("second")
    x = y = recorder.placeholder(Aval((2,), torch.float32))
    for module in (first, first, second):
        (y,) = recorder.apply("ordered", [y], module)
    graph, inputs = recorder.lower("recorded", [x], [y])
    assert inputs == (0,)
    found = Module.from_bytes(write(graph))
    verify(found)
    computations = found.proto.computations
    assert [c.name.rpartition(".")[0] for c in computations] == ["first", "second", "recorded"]
    for c in computations[:2]:
        _, added, multiplied, *_ = c.instructions
        assert multiplied.control_predecessor_ids == [added.id]
    calls = [i for i in computations[-1].instructions if i.opcode == "call"]
    called = [i.called_computation_ids[0] for i in calls]
    assert called[0] == called[1] != called[2]
