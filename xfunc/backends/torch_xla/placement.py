"""The placement of tensors' data on the devices, in torch_xla's terms."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from xfunc.backends.placement import Placement, read
from xfunc.backends.target_passes import prepare_to_run
from xfunc.backends.torch_xla import runtime, uploads
from xfunc.backends.torch_xla.executable import Executable
from xfunc.core.avals import Aval, array_of
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.hlo import Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.spmd.annotations import constrained
from xfunc.hlo.write import write

_TILED, _PARTIAL = 3, 5  # torch_xla's numbers of kinds of sharding
_MOST_DIMS = 5  # for which torch_xla 2.9 makes a sharding from Python


def _arguments(placement: Placement) -> tuple[object, ...]:
    """The arguments of torch_xla's ``OpSharding``."""
    tiles, grid = placement.tiles, placement.tiles.grid()
    if tiles.replicated == 1:
        devices = grid[..., 0].tolist()
        return devices, devices, [], _TILED
    groups = grid.reshape(-1, tiles.replicated).tolist()
    numbers = torch.arange(len(groups)).reshape(tiles.dims).tolist()
    return grid.tolist(), numbers, groups, _PARTIAL


@functools.cache
def op_sharding(placement: Placement | None) -> object:
    """torch_xla's ``OpSharding``."""
    X = runtime.xla()
    if placement is None:
        return X.OpSharding([], [], [], 0)
    dims = placement.tiles.dims
    if len(dims) <= _MOST_DIMS - (placement.tiles.replicated > 1):
        return X.OpSharding(*_arguments(placement))
    return X._get_xla_op_sharding(_moved(torch.zeros(dims, device=runtime.device()), placement))


def placements_of(tensors: Sequence[torch.Tensor]) -> tuple[Placement | None, ...]:
    """The placements of device tensors; lazy ones are computed first."""
    X = runtime.xla()
    flat = list(tensors)
    if any(X._check_tensor_need_materialization(flat)):
        runtime.materialize(flat)
    return tuple(map(read, X._get_xla_sharding_specs(flat)))


def placements(tensors: Sequence[torch.Tensor]) -> tuple[Placement | None, ...]:
    """`placements_of`, as part of an executable's key; () on a single device, where there is only
    one way.
    """
    return () if runtime.device_count() == 1 else placements_of(tensors)


def put(tensor: torch.Tensor, placement: Placement | None) -> torch.Tensor:
    """A tensor's value on the devices with this placement; each device only gets its part of a CPU
    tensor.
    """
    if placement is None or not uploads.is_data(tensor):
        return _moved(uploads.to_device(tensor), placement)
    if len(placement.tiles.dims) > _MOST_DIMS - (placement.tiles.replicated > 1):
        return _moved(tensor.to(runtime.device()), placement)
    X = runtime.xla()
    tensor = uploads.plain(tensor)
    spec = X.XlaShardingSpec(tensor, *_arguments(placement), False)
    return X._xla_tensors_from_aten([tensor], [str(runtime.device())], [spec])[0]


def _moved(tensor: torch.Tensor, placement: Placement | None) -> torch.Tensor:
    """A device tensor, resharded by XLA."""
    (before,) = placements_of([tensor])
    if before is placement:
        return tensor
    return _elementwise(("copy",), _aval(tensor), before, placement)([tensor])[0]


def _aval(tensor: torch.Tensor) -> Aval:
    return Aval(tuple(tensor.shape), tensor.dtype)


@functools.lru_cache(maxsize=1024)
def _elementwise(
    opcodes: tuple[str, ...], aval: Aval, before: Placement | None, after: Placement | None
) -> Executable:
    """A program with one result for each opcode, which is that of a unary operation."""
    name = "device_put"
    sharding = pb.OpSharding(type=pb.OpSharding.REPLICATED)
    if after is not None:
        sharding = after.tiles.to_proto()
    (x,) = build.parameters([array_of(aval)])
    values = [x if opcode == "copy" else getattr(build, opcode)(x) for opcode in opcodes]
    module = Module.from_bytes(write(Graph(name, [x], [constrained(v, sharding) for v in values])))
    prepare_to_run(name, module.proto, runtime.device_count(), runtime.is_cpu())
    handle = runtime.builder().computation_from_module_proto(name, module.to_bytes())
    return Executable(name, handle, [aval], (), (op_sharding(before),))


def shards_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The shards of an array on this process's devices, on the host, with their padding."""
    runtime.block()  # The program that computes it may still run.
    if tensor.dtype is not torch.complex128:
        return _local(tensor)
    # torch_xla 2.9 gives the shards of complex128, and of no other dtype, imaginary parts of zero.
    (where,) = placements_of([tensor])
    both = _elementwise(("real", "imag"), _aval(tensor), where, where)([tensor])
    runtime.block()
    return list(map(torch.complex, *map(_local, both)))


def _local(tensor: torch.Tensor) -> list[torch.Tensor]:
    (shards,) = runtime.xla()._get_local_shards([tensor])
    return [data for data, _ in shards]


def from_shards(
    shards: Sequence[torch.Tensor], placement: Placement, shape: Sequence[int]
) -> torch.Tensor:
    """An array made from the shards for this process's devices, with their padding."""
    return runtime.xla()._global_tensor_from_cpu_shards(
        list(shards), op_sharding(placement), list(shape)
    )
