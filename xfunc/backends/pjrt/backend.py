"""JAX as a runtime: its PJRT client, on the CPU, a GPU or a TPU."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch

from xfunc.backends.pjrt import client
from xfunc.backends.pjrt.array import Array, Data, make
from xfunc.backends.pjrt.executable import Executable
from xfunc.backends.torch_xla import ffi, host_calls
from xfunc.backends.torch_xla.host_calls import has_host_calls, refuse_host_calls
from xfunc.backends.torch_xla.lapack import use_lapack
from xfunc.backends.torch_xla.placement import prepare_to_run
from xfunc.core.avals import Aval
from xfunc.core.weak import WeakTable
from xfunc.hlo import Module
from xfunc.hlo.edit import renumber_parameters
from xfunc.torchlib.functorch import top_level


class Pjrt:
    """See `xfunc.backends.protocol.Runtime`."""

    name = "pjrt"
    kind = Array
    kinds = frozenset({torch.Tensor, Array})
    holds = staticmethod(operator.attrgetter("is_pjrt"))

    def __init__(self) -> None:
        self._moved: WeakTable[Array] = WeakTable()

    def platform(self) -> str:
        """``"cpu"``, ``"gpu"`` or ``"tpu"``."""
        return client.platform()

    def device_count(self) -> int:
        """One: see `client.jax`."""
        return 1

    def process_count(self) -> int:
        """The number of processes that run programs together."""
        return client.jax().process_count()

    def process_index(self) -> int:
        """The number of this process among them."""
        return client.jax().process_index()

    def memory_stats(self) -> dict[str, int] | None:
        """See `xfunc.memory_stats`."""
        found = client.jax().devices()[0].memory_stats()
        if not found:
            return None
        return {name: found[name] for name in ("bytes_in_use", "bytes_limit") if name in found}

    def block(self) -> None:
        """Wait until everything that was launched has run."""
        client.jax().block_until_ready(client.jax().live_arrays())

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's value on the device, in a buffer of its own.

        What autograd or a transform watches stays as it is: programs take it there themselves.
        """
        if type(tensor) is Array or tensor.requires_grad or top_level() is not None:
            return tensor
        return self._uploaded(tensor)

    def _uploaded(self, tensor: torch.Tensor) -> Array:
        if tensor.device.type != "xla":
            return make(Data(client.put(tensor.detach())), tensor.shape, tensor.dtype)
        # What a trace made, and a program holds: it never changes.
        found = self._moved.get(tensor)
        if found is None:
            found = self._moved[tensor] = self._uploaded(tensor.detach().cpu())
        return found

    def all_to_device(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`to_device` of each."""
        return list(map(self.to_device, tensors))

    def placements(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """()."""
        return ()

    def load(
        self,
        name: str,
        module: Module,
        inputs: Sequence[int],
        avals: Sequence[Aval],
        donated: frozenset[int],
        placements: Sequence[Any],
    ) -> Executable:
        """See `xfunc.backends.protocol.Runtime.load`."""
        proto = module.proto
        if self.platform() == "cpu":
            prepare_to_run(name, proto)
            use_lapack(proto)
        # JAX pairs donated parameters with results of their shape, in the order of both.
        numbers = sorted(range(len(inputs)), key=inputs.__getitem__)
        renumber_parameters(proto, numbers)
        calls_host = has_host_calls(proto)
        if calls_host:
            if self.platform() != "cpu":
                refuse_host_calls(proto, name, "on the running device")
            _register_host_calls()
        flat = [inputs[k] for k in numbers]
        taken = [k for k, i in enumerate(flat) if i in donated]
        return Executable(
            name, module, flat, [avals[i] for i in flat], taken, calls_host, self._uploaded
        )


@functools.cache
def _register_host_calls() -> None:
    capsule = ffi.capsule(host_calls.handler)
    client.jax().ffi.register_ffi_target(host_calls.TARGET, capsule, platform="cpu")


@functools.cache
def make_runtime() -> Pjrt:
    """The runtime of this process."""
    client.jax()
    return Pjrt()
