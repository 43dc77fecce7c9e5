"""The seam below tracing: what records programs.

A `Trace` (`xfunc.trace.tracing`) runs a function on placeholders. A `Tracer` makes these, records
what is done with them, and hands the record out as HLO. There is one, torch_xla's lazy tensors:
`xfunc.backends.torch_xla.tracer`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NewType, Protocol, runtime_checkable

import torch

from xfunc.core.types import Shaped
from xfunc.hlo import Module

Computation = NewType("Computation", object)
"""A tracer's handle of a module, which `Tracer.apply` takes."""


@runtime_checkable
class Tracer(Protocol):
    """Records operations on the tensors of a device of its own, and computes none of them.

    Torch's dispatcher brings it the operations. Everything happens under `xfunc.backends.lock.lock`
    where more than one thread could be recording.
    """

    # -- its device ---------------------------------------------------------------------------

    def has_started(self) -> bool:
        """Whether its library has started a device in this process, whoever asked for it."""
        ...

    def at_start(self, do: Callable[[], None]) -> None:
        """Call a function when its library has been loaded, which is put off to the first use."""
        ...

    def device(self) -> torch.device:
        """The device of what it records."""
        ...

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's value on that device (differentiable), in its own buffer."""
        ...

    def upload(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """`to_device` of a tensor on which nothing is recorded, without torch's dispatcher.

        None if only the dispatcher can move it.
        """
        ...

    # -- recording ----------------------------------------------------------------------------

    def recording(self) -> contextlib.AbstractContextManager[None]:
        """Only record in a block; the outermost trace opens it.

        What the user's own lazy tensors wait for is computed before, and at the end everything
        recorded is forgotten: see NOTE [defusing what leaks] in `xfunc.trace.tracing`. Inside,
        Python numbers become constants, and reading a value raises a RuntimeError.
        """
        ...

    def numbers_as_constants(self) -> contextlib.AbstractContextManager[None]:
        """Let Python numbers become constants of the HLO, and not transfers to the device."""
        ...

    def placeholder(self, aval: Shaped) -> torch.Tensor:
        """A tensor on the device that has no data."""
        ...

    def computation(self, name: str, hlo: bytes) -> Computation:
        """The handle of a serialised module, whose result is a tuple."""
        ...

    def apply(
        self, name: str, inputs: Sequence[torch.Tensor], computation: Computation
    ) -> list[torch.Tensor]:
        """Record that a computation is applied, as one operation; at least one input."""
        ...

    def recorded(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        names: bool = False,
    ) -> tuple[bytes, list[int | torch.Tensor]]:
        """What was recorded between placeholders and outputs, as HLO.

        Args:
            name: of the module.
            inputs: placeholders.
            outputs: what was made of them.
            names: whether instructions get the names that `stamper` put on them.

        Returns:
            The serialised module; and of each of its parameters, which input it is, or the tensor
            of the device that it stands for.
        """
        ...

    # -- values that were recorded ------------------------------------------------------------

    def number_of(self, tensor: torch.Tensor) -> int:
        """The number of an unwrapped tensor of the device; later ones have larger numbers.

        It changes when the tensor is changed in place.
        """
        ...

    def stamper(self) -> Callable[[torch.Tensor, str, int], None]:
        """What puts a prefix before the name of the operation that made a tensor."""
        ...

    def as_said(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that holds what its dtype says: where no operand told the tracer of it."""
        ...

    def refill(self, tensor: torch.Tensor) -> None:
        """Give a tensor that outlived its trace placeholder data, which is safe to compute."""
        ...


@runtime_checkable
class Printer(Protocol):
    """Shows modules in the forms that only XLA itself writes."""

    def hlo_text(self, module: Module) -> str:
        """A module as XLA prints it, whether or not it passes our own checks."""
        ...

    def stablehlo_text(self, module: Module) -> str:
        """A module as StableHLO text."""
        ...

    def stablehlo_bytecode(self, module: Module) -> bytes:
        """A module as a portable artifact of StableHLO, which other versions and systems read."""
        ...
