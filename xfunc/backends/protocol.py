"""The protocol between programs and runtimes.

There are two: JAX's runtime in `xfunc.backends.pjrt.backend`, and torch_xla's in
`xfunc.backends.torch_xla.backend`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from xfunc.backends.analysis import CompilerOutput
from xfunc.core.avals import Aval, AvalKey
from xfunc.hlo import Module

if TYPE_CHECKING:
    from xfunc.backends.placement import Placement


class Executable(Protocol):
    """A program that a runtime has compiled.

    Attributes:
        inputs: which of the flat inputs of the program it takes, in order.
        rejects_aliased_donation: whether it raises an error itself if a donated tensor is also
            another input.
    """

    inputs: tuple[int, ...]
    rejects_aliased_donation: bool

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on tensors that the runtime holds: those flat inputs that `inputs` lists."""
        ...

    def mark_donated(self, tensors: Sequence[torch.Tensor], /) -> None:
        """Make the donated ones among them unusable, after a call."""
        ...

    def optimised(self) -> CompilerOutput | None:
        """The compiler's analysis of the program; None if it does not provide it."""
        ...


class Runtime(Protocol):
    """Devices, the data on them, and programs that run there.

    Attributes:
        name: as `xfunc.config.set_backend` takes it.
        kind: the class of its tensors.
        holds: whether a tensor is data on its devices; raises AttributeError for anything else.
    """

    name: str
    holds: Callable[[object], bool]

    @property
    def kind(self) -> type[torch.Tensor]:  # A property, because subclasses are types too.
        ...

    def platform(self) -> str:
        """``"cpu"``, ``"gpu"`` or ``"tpu"``."""
        ...

    def device_count(self) -> int:
        """The number of devices that programs run on, those of other processes among them."""
        ...

    def process_count(self) -> int:
        """The number of processes that run programs together."""
        ...

    def process_index(self) -> int:
        """The index of this process in the group that runs programs together."""
        ...

    def memory_stats(self, device: int, /) -> dict[str, int] | None:
        """See `xfunc.memory_stats`; of a device of this process."""
        ...

    def calls_host(self) -> bool:
        """Whether its programs can call Python functions: see `xfunc.backends.host_calls`."""
        ...

    def profile(self, folder: str) -> contextlib.AbstractContextManager[None]:
        """Record the programs of a block into a folder, until all launched ones have run.

        Raises:
            RuntimeError: something is being recorded already.
        """
        ...

    def mark(self, name: str, step_num: int | None) -> contextlib.AbstractContextManager[object]:
        """Show the host's work in a block under a name while `profile` records.

        `step_num` is the number of a training step; None: it is something else.
        """
        ...

    def block(self) -> None:
        """Wait for all launched programs."""
        ...

    def avals(self, leaves: Sequence[object], /) -> tuple[AvalKey, ...] | None:
        """The shapes and dtypes of tensors; None if any of them is not data on the devices."""
        ...

    def taken(self, x: object, /) -> torch.Tensor | None:
        """A number, an array of NumPy or a tensor of the CPU as data on the only device.

        None: it is something else, or takes more than a few steps.
        """
        ...

    @property
    def takes(self) -> Collection[type]:
        """The classes of what may be `taken`."""
        ...

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's value on the device (differentiable), in a buffer of its own.

        Data that the runtime already holds is returned unchanged.
        """
        ...

    def all_to_device(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`to_device` of each, together."""
        ...

    def placements(self, tensors: Sequence[torch.Tensor]) -> tuple[Placement | None, ...]:
        """The placements of data on the devices, as `load` takes them; () if there is only one."""
        ...

    def placements_of(self, tensors: Sequence[torch.Tensor]) -> tuple[Placement | None, ...]:
        """The placement of data on the devices; None: replicated."""
        ...

    def put(self, tensor: torch.Tensor, placement: Placement | None) -> torch.Tensor:
        """A tensor's value on the devices with this placement."""
        ...

    def local_devices(self) -> tuple[int, ...]:
        """The numbers of the devices of this process, in the order of `shards_of`."""
        ...

    def shards_of(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The shards of an array on this process's devices, on the host, with their padding."""
        ...

    def from_shards(
        self, shards: Sequence[torch.Tensor], placement: Placement, shape: Sequence[int]
    ) -> torch.Tensor:
        """An array made from the shards for this process's devices, with their padding."""
        ...

    def load(
        self,
        name: str,
        module: Module,
        inputs: Sequence[int],
        avals: Sequence[Aval],
        donated: frozenset[int],
        placements: Sequence[Placement | None],
        options: Sequence[tuple[str, object]] = (),
        shardy: bool = False,
    ) -> Executable:
        """Compile a program.

        Args:
            name: of the program.
            module: its HLO, which may be changed in place.
            inputs: the flat input that each parameter of the module takes.
            avals: of the flat inputs.
            donated: flat inputs with buffers that the program may reuse.
            placements: of the flat inputs.
            options: of the compiler, by name.
            shardy: whether to partition it by Shardy, if the runtime has it.
        """
        ...
