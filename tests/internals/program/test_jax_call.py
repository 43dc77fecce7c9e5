"""How functions of JAX are lowered."""

from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.core.avals import Aval
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import verify
from xfunc.program import jax_call
from xfunc.program.bind import bind
from xfunc.trace.lowering import HloProgram

X = torch.tensor([[3.0, -1.0, 0.5], [0.0, 2.0, -4.0]])


def call(name: str, *args: Any, **static: Any) -> tuple[torch.Tensor, ...]:
    return xf.call_jax(f"tests.compile.foreign_functions:{name}", *args, platform="cpu", **static)


def square(x: torch.Tensor) -> torch.Tensor:
    return call("square", x)[0]


def test_call_jax_lowers_once_per_kind_of_arguments():
    def twice(x, y):
        return square(square(x)), square(y)

    jax_call._lowered.cache_clear()
    got = xf.jit(twice)(X, X[:, :2])
    torch.testing.assert_close(xf.device_get(got), (X**4, X[:, :2] ** 2))
    assert jax_call._lowered.cache_info().misses == 2
    xf.jit(lambda x: square(x) + 1)(X)
    assert jax_call._lowered.cache_info().misses == 2


@pytest.mark.parametrize(
    "backend", [pytest.param("torch_xla", marks=pytest.mark.torch_xla), "pjrt"]
)
def test_foreign_module_with_64_bit_ids(backend, request):
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
    module = jax_call._as_ours(of_jax.SerializeToString())
    verify(module)
    every = [x.id for c in module.proto.computations for x in (c, *c.instructions)]
    assert sorted(every) == [*range(1, 1 + len(every))]
    aval = Aval((2, 3), torch.float32)
    primitive = jax_call.JaxCall(HloProgram.of("wide", module, [aval], [aval]))
    got = xf.jit(lambda x: bind(primitive, [x])[0] + bind(primitive, [-x])[0])(X)

    def want(x):
        x = torch.where(x > 0, x, 3 * x).cumsum(0)
        return torch.where(x > 0, x, 3 * x)

    torch.testing.assert_close(got.cpu(), want(X) + want(-X))
