"""xfunc as a tracer: operations become nodes, in Python, without a device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from xfunc.backends.lock import lock
from xfunc.backends.tracer import Computation, Leftovers, Tracer
from xfunc.core.types import Shaped
from xfunc.graph import build
from xfunc.graph.node import Node, array_type
from xfunc.hlo import Module, write
from xfunc.hlo.shape import Shape
from xfunc.torchlib import functorch
from xfunc.tracer import placeholders
from xfunc.tracer.placeholders import node_of, placeholder, unwrapped, wrap


class Nodes:
    """See `xfunc.backends.tracer.Tracer`."""

    def __init__(self) -> None:
        self._has_rules = self._is_starting = False
        self._at_start: list[Callable[[], None]] = []

    def _start(self) -> None:
        if not self._has_rules:
            with lock.unless_refused():  # Other threads wait for the first.
                if not self._is_starting:
                    self._is_starting = True
                    for do in self._at_start:
                        do()
                    self._has_rules = True

    # -- the device ---------------------------------------------------------------------------

    def has_started(self) -> bool:
        """There is no device to start."""
        return False

    def environment(self) -> dict[str, str]:
        """The environment variables."""
        return dict(os.environ)

    def at_start(self, do: Callable[[], None]) -> None:
        """Call a function once the rules are loaded."""
        self._at_start.append(do)

    def device(self) -> torch.device:
        """The device of placeholders."""
        self._start()
        return placeholders.DEVICE

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a CPU tensor, as a constant; differentiable."""
        self._start()
        return tensor.to(placeholders.DEVICE)

    def upload(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Only the dispatcher moves tensors."""
        return None

    # -- recording ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self) -> Iterator[Leftovers]:
        """Nothing to prepare: nodes are recorded wherever placeholders are used."""
        self._start()
        placeholders.forget_unstamped()
        yield Leftovers()

    def numbers_as_constants(self) -> contextlib.AbstractContextManager[None]:
        """Numbers always are."""
        return contextlib.nullcontext()

    def placeholder(self, aval: Shaped) -> torch.Tensor:
        """A tensor without data."""
        self._start()
        return placeholders.new_input(aval.shape, aval.dtype)

    def computation(self, name: str, hlo: bytes) -> Computation:
        """A module to be applied."""
        return Computation(Module.from_bytes(hlo))

    def apply(
        self, name: str, inputs: Sequence[torch.Tensor], computation: Any
    ) -> list[torch.Tensor]:
        """Record a call of a module whose result is a tuple."""
        proto = computation.proto
        result = Shape.from_proto(proto.host_program_shape.result)
        types = [array_type(s.dtype, s.dims) for s in result.elements]
        placeholders.begin(f"xfunc__{name}")
        nodes = build.several("call", types, tuple(map(node_of, inputs)), None, (computation,))
        return _like(inputs, nodes)

    def custom_call(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[Shaped],
        target: str,
        config: str = "",
        attributes: Mapping[str, str] = MappingProxyType({}),
    ) -> list[torch.Tensor]:
        """Record a custom call."""
        placeholders.begin("xla__custom_call")
        types = [array_type(o.dtype, tuple(o.shape)) for o in outputs]
        operands = tuple(map(node_of, inputs))
        params = write.custom_call(target, config, attributes)
        if len(types) == 1:
            nodes = [Node("custom-call", types[0], operands, params)]
        else:
            nodes = build.several("custom-call", types, operands, params)
        return _like(inputs, nodes)

    def recorded(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        names: bool = False,
    ) -> tuple[bytes, list[int | torch.Tensor]]:
        """The operations between placeholders and outputs, and the inputs they use."""
        hlo, taken = write.write(name, [*map(node_of, inputs)], [*map(node_of, outputs)])
        return hlo, [*taken]

    # -- values -------------------------------------------------------------------------------

    def number_of(self, tensor: torch.Tensor) -> int:
        """The number of a value, which changes when it is changed in place."""
        # A view whose base has changed is made anew, by operations that must not be transformed.
        with functorch.bottom_level():
            return unwrapped(tensor).number

    def stamper(self) -> Callable[[torch.Tensor, str, int], None]:
        """A function that notes the origin of the operations since the last call."""
        return lambda tensor, origin, _: placeholders.stamp(origin)

    def as_said(self, tensor: torch.Tensor) -> torch.Tensor:
        """A value has the dtype of its node."""
        return tensor

    def is_recorded(self, tensors: Sequence[torch.Tensor]) -> bool:
        """No placeholder has data."""
        return True

    def refill(self, tensor: torch.Tensor) -> None:
        """A placeholder that outlives its trace needs no data."""


def _like(inputs: Sequence[torch.Tensor], nodes: Sequence[Node]) -> list[torch.Tensor]:
    made = [placeholder(n) for n in nodes]
    is_bare = all(type(t) is placeholders.Placeholder for t in inputs)
    return [*made] if is_bare else [wrap(t) for t in made]


TRACER: Tracer = Nodes()
