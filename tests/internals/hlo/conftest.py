"""`lower` and `run`: torch_xla makes modules for these tests, and runs those that they make."""

from collections.abc import Callable, Sequence

import pytest
import torch

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
def lower(device: torch.device) -> Lower:
    """A function and examples of its arguments to a module that torch_xla lowered.

    Parameter k is argument k, used or not.
    """
    del device
    import torch_xla  # pyright: ignore[reportMissingImports]
    from torch_xla.core import xla_builder  # pyright: ignore[reportMissingImports]

    def lower(fun: Callable[..., Sequence[torch.Tensor]], args: Sequence[torch.Tensor]) -> Module:
        inputs = [xla_builder.create_placeholder_tensor(a.shape, a.dtype) for a in args]
        context = torch_xla._XLAC.lowering.LoweringContext("lowered")
        context.build(list(fun(*inputs)))
        found = Module.from_bytes(context.hlo())
        numbers = [context.tensor_parameter_id(i) for i in inputs]
        assert sorted(numbers) == list(range(len(found.entry.parameters))), "an input is unused"
        # torch_xla numbers parameters by first use.
        for i in found.proto.computations[-1].instructions:
            if i.opcode == "parameter":
                i.parameter_number = numbers.index(i.parameter_number)
        for shape in (found.proto.computations[-1].program_shape, found.proto.host_program_shape):
            old = list(shape.parameters)
            del shape.parameters[:]
            shape.parameters.extend(old[n] for n in numbers)
        return Module(found.proto)  # without the views made above

    return lower


@pytest.fixture
def run(device: torch.device) -> Run:
    """Run a module whose entry returns a tuple on CPU tensors."""
    import torch_xla  # pyright: ignore[reportMissingImports]
    from torch_xla.core import xla_builder  # pyright: ignore[reportMissingImports]

    def run(module: Module, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        handle = xla_builder.computation_from_module_proto(module.name, module.to_bytes())
        inputs = [a.to(device) for a in args]
        outputs = torch_xla._XLAC._xla_user_computation("xfunc::test", inputs, handle)
        return [_on_cpu(o) for o in outputs]

    return run


def _on_cpu(x: torch.Tensor) -> torch.Tensor:
    # torch_xla 2.9 reads complex128 wrongly: only kernels of xfunc for its tracer repair that.
    if x.dtype is torch.complex128:
        return torch.complex(x.real.cpu(), x.imag.cpu())
    return x.cpu()
