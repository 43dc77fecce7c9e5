"""The record of a trace: placeholders, the operations on them, and the resulting program.

The operations of torch come by its dispatcher (`xfunc.tracer.placeholders`). Calls of whole modules
and constraints of the partitioner are recorded here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from xfunc.backends import forks
from xfunc.backends.lock import lock
from xfunc.core.types import Shaped
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node, array_type
from xfunc.graph.symbolic_zeros import propagate_zeros
from xfunc.hlo import Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.shape import Shape
from xfunc.hlo.spmd import annotations
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


def apply(
    name: str, inputs: Sequence[torch.Tensor], function: Graph | Module
) -> list[torch.Tensor]:
    """Record a call of a function."""
    forks.check()
    placeholders.begin(f"xfunc__{name}")
    if isinstance(function, Graph):
        types = [n.type for n in function.outputs]
    else:
        result = Shape.from_proto(function.proto.host_program_shape.result)
        types = [array_type(s.dtype, s.dims) for s in result.elements or (result,)]
    operands = tuple(map(node_of, inputs))
    return _like(inputs, build.several("call", types, operands, None, (function,)))


def record(
    make: Callable[..., Node | Sequence[Node]],
    inputs: Sequence[torch.Tensor],
    options: Mapping[str, object],
) -> torch.Tensor | list[torch.Tensor]:
    """Record the node or nodes that a function builds from the nodes of tensors."""
    placeholders.begin(f"xfunc__{make.__name__}")
    found = make(*map(node_of, inputs), **options)
    if isinstance(found, Node):
        return _like(inputs, [found])[0]
    return _like(inputs, found)


def constrain(x: torch.Tensor, sharding: pb.OpSharding, free: Sequence[int] = ()) -> torch.Tensor:
    """Record the sharding of a value; XLA chooses that of the dimensions in `free`."""
    placeholders.begin("xfunc__constraint")
    return _like([x], [annotations.constrained(node_of(x), sharding, free)])[0]


def lower(
    name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> tuple[Graph, tuple[int, ...]]:
    """The operations between placeholders and outputs.

    Args:
        name: of the graph.
        inputs: placeholders.
        outputs: the tensors computed from them.

    Returns:
        The graph; and for each of its inputs, the index among `inputs`.
    """
    graph, taken = Graph.between(name, [*map(node_of, inputs)], [*map(node_of, outputs)])
    return propagate_zeros(graph), taken


def tensor_id(tensor: torch.Tensor) -> int:
    """The number of a value, which a change in place changes; later ones have larger numbers."""
    # torch regenerates a view after its base changed, by operations that must not be transformed.
    with functorch.bottom_level():
        return unwrapped(tensor).number


def identity(tensor: torch.Tensor) -> int:
    """A number that two traced values share if no operation lies between them."""
    with torch._C.DisableTorchFunction(), functorch.bottom_level():
        return id(node_of(functorch.innermost(tensor)))


def _like(inputs: Sequence[torch.Tensor], nodes: Sequence[Node]) -> list[torch.Tensor]:
    made = [placeholders.placeholder(n) for n in nodes]
    is_bare = inputs and all(type(t) is placeholders.Placeholder for t in inputs)
    return [*made] if is_bare else [wrap(t) for t in made]
