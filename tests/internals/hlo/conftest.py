"""`lower` and `run`: modules for these tests, and what they compute."""

from collections.abc import Callable, Sequence

import pytest
import torch

import xfunc as xf
from xfunc.backends import active
from xfunc.core.avals import Aval
from xfunc.hlo import Module, verify
from xfunc.hlo import hlo_pb2 as pb

Lower = Callable[[Callable[..., Sequence[torch.Tensor]], Sequence[torch.Tensor]], Module]
Run = Callable[[Module, Sequence[torch.Tensor]], list[torch.Tensor]]


def changed(module: Module, change: Callable[..., None], *args: object) -> Module:
    """A copy of a module, changed in place by a pass, and verified."""
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    change(proto, *args)
    verify(found := Module(proto))
    return found


@pytest.fixture
def lower() -> Lower:
    """A function and examples of its arguments to a module, before the passes that end it.

    Parameter k is argument k.
    """

    def lower(fun: Callable[..., Sequence[torch.Tensor]], args: Sequence[torch.Tensor]) -> Module:
        lowering = xf.jit(fun).trace(*args).lower().traced.parts.lowering
        assert lowering.inputs == tuple(range(len(args))), "an input is unused"
        return Module.from_bytes(lowering.hlo)

    return lower


@pytest.fixture
def run() -> Run:
    """Run a module whose entry returns a tuple on CPU tensors."""

    def run(module: Module, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        runtime, n = active.runtime(), range(len(args))
        avals = [Aval(tuple(a.shape), a.dtype) for a in args]
        loaded = runtime.load(
            "test", Module.from_bytes(module.to_bytes()), n, avals, frozenset(), ()
        )
        outputs = loaded([runtime.to_device(args[i]) for i in loaded.inputs])
        return [xf.device_get(o) for o in outputs]

    return run
