"""The seam below tracing: what records programs.

A `Trace` (`xfunc.trace.tracing`) runs a function on placeholders. A `Tracer` makes these, records
the operations on them, and returns the record as HLO. There is one implementation, torch_xla's lazy
tensors: `xfunc.backends.torch_xla.tracer`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NewType, Protocol, runtime_checkable

import torch

from xfunc.core.types import Shaped
from xfunc.hlo import Module

Computation = NewType("Computation", object)
"""A tracer's handle to a module, for `Tracer.apply`."""


@dataclasses.dataclass
class Leftovers:
    """Whether any value of a trace may be left at its end.

    If not, what is pending then has been computed by other threads, and is theirs to run.
    """

    any: bool = True


@runtime_checkable
class Tracer(Protocol):
    """Records operations on the tensors of a device of its own, without computing them.

    Torch's dispatcher delivers the operations. Everything happens under `xfunc.backends.lock.lock`
    where more than one thread could be recording.
    """

    # -- its device ---------------------------------------------------------------------------

    def has_started(self) -> bool:
        """Whether its library has started a device in this process, for whatever reason."""
        ...

    def environment(self) -> dict[str, str]:
        """The environment variables, without what its library sets when it is loaded."""
        ...

    def at_start(self, do: Callable[[], None]) -> None:
        """Call a function once its library is loaded, which is deferred to its first use."""
        ...

    def device(self) -> torch.device:
        """The device of the tensors it records."""
        ...

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's value on that device, in a buffer of its own; differentiable."""
        ...

    def upload(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """`to_device` without torch's dispatcher, for a tensor on which nothing is recorded.

        None if only the dispatcher can move it.
        """
        ...

    # -- recording ----------------------------------------------------------------------------

    def recording(self) -> contextlib.AbstractContextManager[Leftovers]:
        """A block in which operations are only recorded; the outermost trace opens it.

        Pending operations of the user's own lazy tensors are run first, and at the end everything
        recorded is discarded: see NOTE [defusing what leaks] in `xfunc.trace.tracing`. Inside,
        Python numbers become constants, and reading a value raises a RuntimeError.
        """
        ...

    def numbers_as_constants(self) -> contextlib.AbstractContextManager[None]:
        """Turn Python numbers into constants of the HLO, not transfers to the device."""
        ...

    def placeholder(self, aval: Shaped) -> torch.Tensor:
        """A tensor without data on the device."""
        ...

    def computation(self, name: str, hlo: bytes) -> Computation:
        """A handle to a serialised module whose result is a tuple."""
        ...

    def apply(
        self, name: str, inputs: Sequence[torch.Tensor], computation: Computation
    ) -> list[torch.Tensor]:
        """Record the application of a computation to at least one input, as one operation."""
        ...

    def custom_call(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[Shaped],
        target: str,
        config: str = "",
        attributes: Mapping[str, str] = ...,
    ) -> list[torch.Tensor]:
        """Record a custom call.

        Args:
            inputs: at least one value.
            outputs: the shapes and dtypes of its results.
            target: a name that the compiler knows.
            config: its configuration, in a form that depends on the target.
            attributes: frontend attributes of its instructions.
        """
        ...

    def recorded(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        names: bool = False,
    ) -> tuple[bytes, list[int | torch.Tensor]]:
        """The operations recorded between placeholders and outputs, as HLO.

        Args:
            name: of the module.
            inputs: placeholders.
            outputs: the tensors computed from them.
            names: whether instructions get the names that `stamper` put on them.

        Returns:
            The serialised module; and for each of its parameters, the index of an input, or the
            device tensor that it stands for.
        """
        ...

    # -- recorded values ----------------------------------------------------------------------

    def number_of(self, tensor: torch.Tensor) -> int:
        """The number of an unwrapped tensor of the device; later ones have larger numbers.

        It changes when the tensor is changed in place.
        """
        ...

    def stamper(self) -> Callable[[torch.Tensor, str, int], None]:
        """A function that prefixes the name of the operation that produced a tensor."""
        ...

    def as_said(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor stored in its own dtype, which a tracer may not have learnt from operands."""
        ...

    def is_recorded(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether one of these unwrapped tensors stands for an operation that has not run."""
        ...

    def refill(self, tensor: torch.Tensor) -> None:
        """Give a tensor that outlived its trace placeholder data, which is safe to compute."""
        ...


@runtime_checkable
class Printer(Protocol):
    """Prints modules in the forms that only XLA itself can write."""

    def hlo_text(self, module: Module) -> str:
        """A module as XLA prints it, whether or not it passes our own checks."""
        ...

    def stablehlo_text(self, module: Module) -> str:
        """A module as StableHLO text."""
        ...

    def stablehlo_bytecode(self, module: Module) -> bytes:
        """A module as a portable StableHLO artifact, readable by other versions and systems."""
        ...
