"""What a trace records: placeholders, the operations on them, and the program they make.

The operations of torch come by its dispatcher (`xfunc.tracer.placeholders`). Calls of whole modules
and constraints of the partitioner are recorded here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from xfunc.backends import forks
from xfunc.backends.lock import lock
from xfunc.core.types import Shaped
from xfunc.graph import build
from xfunc.graph.node import Node, array_type
from xfunc.hlo import Module, write
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.shape import Shape
from xfunc.hlo.spmd import annotations
from xfunc.hlo.write import CustomCall
from xfunc.torchlib import functorch
from xfunc.tracer import placeholders
from xfunc.tracer.placeholders import node_of, unwrapped, wrap


class _Start:
    """Loads the rules of operations at the first trace, once.

    Attributes:
        load: loads them; `xfunc.ops` sets it.
    """

    load: Callable[[], None]
    _has_begun = _is_done = False

    def __call__(self) -> None:
        if not self._is_done:
            with lock.unless_refused():  # Other threads wait for the first.
                if not self._has_begun:
                    self._has_begun = True
                    self.load()
                    self._is_done = True


start = _Start()


def device() -> torch.device:
    """The device of placeholders."""
    start()
    return placeholders.DEVICE


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a CPU tensor, as a constant; differentiable."""
    return tensor.to(device())


def placeholder(aval: Shaped) -> torch.Tensor:
    """A tensor without data."""
    start()
    return placeholders.new_input(aval.shape, aval.dtype)


def literal(value: torch.Tensor) -> torch.Tensor:
    """The values of a CPU tensor, as a constant."""
    start()
    placeholders.begin("xfunc__literal")
    with torch._C.DisableTorchFunction():  # It is not a traced value: it may be read.
        return wrap(placeholders.placeholder(node_of(value)))


def apply(name: str, inputs: Sequence[torch.Tensor], module: Module) -> list[torch.Tensor]:
    """Record a call of a module."""
    forks.check()
    placeholders.begin(f"xfunc__{name}")
    result = Shape.from_proto(module.proto.host_program_shape.result)
    types = [array_type(s.dtype, s.dims) for s in result.elements or (result,)]
    operands = tuple(map(node_of, inputs))
    if result.is_tuple:
        nodes = build.several("call", types, operands, None, (module,))
    else:
        nodes = [Node("call", types[0], operands, None, (module,))]
    return _like(inputs, nodes)


def constrain(x: torch.Tensor, sharding: pb.OpSharding, free: Sequence[int] = ()) -> torch.Tensor:
    """Record the sharding of a value; XLA chooses that of the dimensions in `free`."""
    placeholders.begin("xfunc__constraint")
    n = node_of(x)
    written = sharding.SerializeToString(deterministic=True)
    how = CustomCall(annotations.SHARDING, annotations.unspecified(free), written)
    return _like([x], [Node("custom-call", n.type, (n,), how)])[0]


def recorded(
    name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> tuple[bytes, list[int]]:
    """The operations between placeholders and outputs, as HLO.

    Args:
        name: of the module.
        inputs: placeholders.
        outputs: the tensors computed from them.

    Returns:
        The serialised module; and for each of its parameters, the index of an input.
    """
    return write.write(name, [*map(node_of, inputs)], [*map(node_of, outputs)])


def number_of(tensor: torch.Tensor) -> int:
    """The number of a value, which a change in place changes; later ones have larger numbers."""
    # A view whose base has changed is made anew, by operations that must not be transformed.
    with functorch.bottom_level():
        return unwrapped(tensor).number


def _like(inputs: Sequence[torch.Tensor], nodes: Sequence[Node]) -> list[torch.Tensor]:
    made = [placeholders.placeholder(n) for n in nodes]
    is_bare = inputs and all(type(t) is placeholders.Placeholder for t in inputs)
    return [*made] if is_bare else [wrap(t) for t in made]
