"""JAX as a runtime: its PJRT client, on the CPU, a GPU or a TPU."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from xfunc.backends import ffi, host_calls
from xfunc.backends.host_calls import add_end, call_once, has_host_calls, refuse_host_calls
from xfunc.backends.lapack import use_lapack
from xfunc.backends.lock import once
from xfunc.backends.pjrt import callbacks, client, gpu_arrays, profile
from xfunc.backends.pjrt.array import Array, array_of, make, sharding_of
from xfunc.backends.pjrt.executable import Executable
from xfunc.backends.pjrt.host_data import HostData
from xfunc.backends.pjrt.shardings import moved, placement_of, sharding
from xfunc.backends.placement import Placement
from xfunc.backends.protocol import Runtime
from xfunc.backends.target_passes import UNUSED, add_parameter, prepare_to_run
from xfunc.core.avals import Aval, AvalKey
from xfunc.core.weak import WeakTable
from xfunc.hlo import Module
from xfunc.hlo.edit import renumber_parameters
from xfunc.hlo.flat import inline_calls
from xfunc.hlo.passes.precise import ask_for_float32
from xfunc.hlo.passes.shardy import to_shardy
from xfunc.torchlib.functorch import any_dual, is_wrapped, top_level
from xfunc.torchlib.storageless import HELD_ELSEWHERE, with_memory

if TYPE_CHECKING:
    import jax

HELD_ELSEWHERE.add(Array)


class Pjrt:
    """See `xfunc.backends.protocol.Runtime`."""

    name = "pjrt"
    kind = Array
    holds = staticmethod(operator.attrgetter("is_pjrt"))

    def __init__(self) -> None:
        self._moved: WeakTable[Array] = WeakTable()

    @functools.cached_property
    def _count(self) -> int:
        return client.jax().device_count()

    def platform(self) -> str:
        """``"cpu"``, ``"gpu"`` or ``"tpu"``."""
        return client.platform()

    def device_count(self) -> int:
        """The number of devices that programs run on, those of other processes among them."""
        return self._count

    def process_count(self) -> int:
        """The number of processes that run programs together."""
        return client.jax().process_count()

    def process_index(self) -> int:
        """The number of this process among them."""
        return client.jax().process_index()

    def memory_stats(self, device: int) -> dict[str, int] | None:
        """See `xfunc.memory_stats`."""
        found = client.jax().devices()[device].memory_stats() or {}
        names = "bytes_in_use", "peak_bytes_in_use", "bytes_limit"
        return {name: found[name] for name in names if name in found} or None

    def calls_host(self) -> bool:
        """Whether its programs can call functions of Python."""
        return callbacks.are_possible()

    @contextlib.contextmanager
    def profile(self, folder: str) -> Iterator[None]:
        """See `xfunc.backends.protocol.Runtime.profile`."""
        profile.start(folder)
        try:
            yield
            self.block()
        finally:
            profile.stop()

    def mark(self, name: str, step_num: int | None) -> contextlib.AbstractContextManager[object]:
        """Show the host's work in a block under a name."""
        profiler = client.jax().profiler
        if step_num is None:
            return profiler.TraceAnnotation(name)
        return profiler.StepTraceAnnotation(name, step_num=step_num)

    def block(self) -> None:
        """Wait for all launched programs."""
        for array in client.jax().live_arrays():
            # If its program failed, or has taken it over, others need not know.
            with contextlib.suppress(RuntimeError):
                array.block_until_ready()

    def avals(self, leaves: Sequence[Any]) -> tuple[AvalKey, ...] | None:
        """See `xfunc.backends.protocol.Runtime.avals`."""
        try:
            return tuple([x._jax_aval for x in leaves])
        except AttributeError:
            return None

    @functools.cached_property
    def _host_data(self) -> HostData:
        return HostData()

    def taken(self, x: object) -> Array | None:
        """See `xfunc.backends.protocol.Runtime.taken`."""
        return self._host_data.taken(x)

    @property
    def takes(self) -> Collection[type]:
        """See `xfunc.backends.protocol.Runtime.takes`."""
        return self._host_data.kinds

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's value on the device, in a buffer of its own.

        Tensors that autograd or a transform watches need only be of the CPU, where their gradients
        will be: programs move them themselves.
        """
        if type(tensor) is Array:
            return tensor
        if tensor.requires_grad or top_level() is not None or any_dual(tensor):
            return tensor.cpu()
        return self._uploaded(tensor)

    def _uploaded(self, tensor: torch.Tensor) -> Array:
        if tensor.device.type != "xla":
            tensor = with_memory(tensor) if is_wrapped(tensor) else tensor
            where = sharding(None)
            shared = gpu_arrays.put(tensor, where)
            return _made(client.put(tensor.detach(), where) if shared is None else shared, tensor)
        # A constant of a program: it never changes.
        result = self._moved.get(tensor)
        if result is None:
            result = self._moved[tensor] = self._uploaded(tensor.detach().cpu())
        return result

    def all_to_device(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`to_device` of each."""
        return list(map(self.to_device, tensors))

    def placements(self, tensors: Sequence[torch.Tensor]) -> tuple[Placement | None, ...]:
        """See `xfunc.backends.protocol.Runtime.placements`."""
        return () if self._count == 1 else self.placements_of(tensors)

    def placements_of(self, tensors: Sequence[torch.Tensor]) -> tuple[Placement | None, ...]:
        """The placement of data on the devices."""
        return tuple(_placement(x) if type(x) is Array else None for x in tensors)

    def put(self, tensor: torch.Tensor, placement: Placement | None) -> torch.Tensor:
        """A tensor's value on the devices with this placement."""
        if type(tensor) is not Array:
            return _made(client.put(tensor.cpu(), sharding(placement)), tensor)
        if _placement(tensor) is placement:
            return tensor
        return _made(moved(array_of(tensor), placement), tensor)

    @functools.cached_property
    def _local(self) -> dict[Any, int]:
        """The devices of this process, in the order of their numbers."""
        local = set(client.jax().local_devices())
        return {d: k for k, d in enumerate(client.jax().devices()) if d in local}

    def local_devices(self) -> tuple[int, ...]:
        """The numbers of the devices of this process."""
        return tuple(self._local.values())

    def shards_of(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See `xfunc.backends.protocol.Runtime.shards_of`."""
        assert type(tensor) is Array
        shards = array_of(tensor).addressable_shards
        return [client.get(s.data) for s in sorted(shards, key=lambda s: self._local[s.device])]

    def from_shards(
        self, shards: Sequence[torch.Tensor], placement: Placement, shape: Sequence[int]
    ) -> torch.Tensor:
        """See `xfunc.backends.protocol.Runtime.from_shards`."""
        where, size = sharding(placement), tuple(shape)
        with client.x64()(True):
            indices = where.addressable_devices_indices_map(size)
            copies = {
                _start(indices[device]): client.copy_of(shard)
                for device, shard in zip(self._local, shards, strict=True)
            }
            found = client.jax().make_array_from_callback(
                size, where, lambda index: copies[_start(index)]
            )
        return make(found, (torch.Size(shape), shards[0].dtype))

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
        """See `xfunc.backends.protocol.Runtime.load`."""
        proto = module.proto
        on_cpu = self.platform() == "cpu"
        prepare_to_run(name, proto, self._count, on_cpu)
        if on_cpu:
            use_lapack(proto)
        if self.platform() == "gpu" and torch.get_float32_matmul_precision() == "highest":
            ask_for_float32(proto)
        # JAX pairs donated parameters with results of their shape, in the order of both.
        numbers = sorted(range(len(inputs)), key=inputs.__getitem__)
        is_empty = not inputs and self._count > 1  # JAX uses the devices of its arguments.
        if is_empty:
            add_parameter(proto)
        else:
            renumber_parameters(proto, numbers)
        calls_host = has_host_calls(proto)
        if calls_host:
            if not self.calls_host():
                refuse_host_calls(proto, name, "on the running device")
            _register_host_calls()
            # XLA (jaxlib 0.7.1) aborts the process if a call is the root of a computation with a
            # batched product: it parses the call's configuration, {name = "..."}, as JSON.
            add_end(proto, 1)
            if callbacks.are_sent():
                module = inline_calls(module)
                proto = module.proto
        mesh = None
        if self._count > 1:
            sent = calls_host and callbacks.are_sent()
            call_once(proto, every=sent)
            mesh = to_shardy(proto, self._count) if shardy and not sent else None
        flat = [inputs[k] for k in numbers]
        taken = [k for k, i in enumerate(flat) if i in donated]
        whole = [None] * len(avals) if self._count > 1 else []
        where = [(placements or whole)[i] for i in flat] if self._count > 1 else []
        of = [avals[i] for i in flat]
        if is_empty:
            of, where = [UNUSED], [None]
        return Executable(
            name, module, flat, of, taken, calls_host, self._uploaded, where, dict(options), mesh
        )


def _made(array: jax.Array, like: torch.Tensor) -> Array:
    return make(array, (like.shape, like.dtype))


def _start(index: tuple[slice, ...] | None) -> tuple[int, ...]:
    """Where a shard begins, of the part of the array that JAX gives it."""
    assert index is not None
    return tuple([part.start or 0 for part in index])


def _placement(x: Array) -> Placement | None:
    return placement_of(sharding_of(x), x.ndim)


@functools.cache
def _register_host_calls() -> None:
    capsule = ffi.capsule(host_calls.handler)
    client.jax().ffi.register_ffi_target(host_calls.TARGET, capsule, platform="cpu")
    host_calls.stop_at_exit()


@once
def make_runtime() -> Runtime:
    """The runtime of this process; its devices start when they are needed."""
    client.library()
    return Pjrt()
