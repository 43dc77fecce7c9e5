"""Host calls on accelerators: they become JAX's own callbacks.

On the CPU, XLA calls `host_calls.handler`, with addresses of its own memory. On a GPU or a TPU the
arrays must be brought to the host and back, in a way that differs by device and by release: on a
GPU by a custom call, which finds its function by a number; on a TPU by send and receive. JAX has
one function for all of that, for use in the lowering of a primitive. So a program with host calls
becomes a primitive: its lowering is the program, with each host call lowered by JAX. The functions
are the same, with the same `host_calls.failures`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xfunc.backends import host_calls
from xfunc.backends.host_calls import Memory
from xfunc.backends.pjrt import client
from xfunc.hlo.spmd.annotations import SHARDING

if TYPE_CHECKING:
    from jax import export

_PLATFORMS = "cpu", "gpu", "tpu"


def are_possible() -> bool:
    """Whether programs of the running device can call functions of Python."""
    return client.platform() in _PLATFORMS


def through_jax() -> bool:
    """Whether they do so as this file says."""
    return client.platform() != "cpu"


def are_sent() -> bool:
    """Whether calls use send and receive: on a TPU.

    A channel is for one instruction, so functions that are called twice must be inlined before. And
    it is for one pair of devices, so each call needs a sharding for the partitioner.
    """
    return client.platform() == "tpu"


def calling(exported: export.Exported) -> Callable[..., Any]:
    """A program as a function for ``jax.jit``, with host calls as JAX's callbacks."""

    def call(*arguments: Any) -> Any:
        return _primitive().bind(*arguments, exported=exported)

    return call


@functools.cache
def _primitive() -> Any:
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    result = Primitive("call")
    result.multiple_results = True
    result.def_abstract_eval(lambda *_, exported: list(exported.out_avals))
    rule: Any = _lowered
    mlir.register_lowering(result, rule, cacheable=False)
    return result


def _lowered(ctx: Any, *operands: Any, exported: export.Exported) -> Any:
    from jax.interpreters import mlir

    results = mlir.lower_fun(exported.call, multiple_results=True)(ctx, *operands)
    ir: Any = mlir.ir  # Its types leave this out.
    calls: list[Any] = []

    def look(operation: Any) -> Any:
        is_call = operation.name == "stablehlo.custom_call"
        if is_call and operation.attributes["call_target_name"].value == host_calls.TARGET:
            calls.append(operation)
        return ir.WalkResult.ADVANCE

    ctx.module_context.module.operation.walk(look)
    for each in calls:
        _replace(each, ctx)
    return results


def _replace(call: Any, ctx: Any) -> None:
    """Replace a host call by a callback of JAX."""
    from jax.extend.mlir.dialects import stablehlo
    from jax.interpreters import mlir

    dialect: Any = stablehlo  # JAX's own types leave this out.
    of_type = {mlir.dtype_to_ir_type(client.numpy_dtype(d)): d for d in host_calls.DTYPES.values()}

    def avals(types: Sequence[Any]) -> tuple[list[Any], list[torch.dtype]]:
        dtypes = [of_type[t.element_type] for t in types]
        pairs = zip(types, dtypes, strict=True)
        array = client.jax().core.ShapedArray
        return [array(tuple(t.shape), client.numpy_dtype(d)) for t, d in pairs], dtypes

    whole = call.results[0].type
    several = isinstance(whole, mlir.ir.TupleType)
    types = [whole.get_type(k) for k in range(whole.num_types)] if several else [whole]
    given, takes = avals([x.type for x in call.operands])
    found, gives = avals(types)
    name = call.attributes["backend_config"]["name"].value
    effects = "has_side_effect" in call.attributes and call.attributes["has_side_effect"].value
    shown = call.attributes["mhlo.sharding"].value if "mhlo.sharding" in call.attributes else ""
    with mlir.ir.InsertionPoint(call), call.location:
        results, _, _ = mlir.emit_python_callback(
            dataclasses.replace(ctx, avals_in=given, avals_out=found),
            functools.partial(_run, name, takes, list(zip(found, gives, strict=True))),
            None,
            list(call.operands),
            given,
            found,
            has_side_effect=effects,
            sharding=_sharding(shown),
        )
        if _ONE_DEVICE in shown:  # XLA for a TPU refuses a result of the program that only one has.
            results = [_everywhere(x) for x in results]
        made = dialect.tuple(results) if several else results[0]
    call.results[0].replace_all_uses_with(made)
    call.erase()


_ONE_DEVICE = "maximal"


def _sharding(shown: str) -> Any:
    """On several devices, which of them make a call: the first, or each with its own part."""
    from jaxlib.xla_client import OpSharding

    result: Any = OpSharding()
    if _ONE_DEVICE in shown:
        result.type = OpSharding.Type.MAXIMAL
        result.tile_assignment_dimensions = [1]
        result.tile_assignment_devices = [0]
        return result
    if "manual" in shown:
        result.type = OpSharding.Type.MANUAL
        return result
    return None


def _everywhere(x: Any) -> Any:
    """The same value, which all devices have."""
    from jax.interpreters.mlir import ir

    said = {"call_target_name": SHARDING, "mhlo.sharding": "{replicated}"}
    attributes: dict[str, Any] = {name: ir.StringAttr.get(x) for name, x in said.items()}
    return ir.Operation.create("stablehlo.custom_call", [x.type], [x], attributes=attributes).result


def _run(name: str, takes: Sequence[torch.dtype], gives: Any, *operands: Any) -> _Results:
    arrays = [np.asarray(x, order="C") for x in operands]
    results = [np.empty(a.shape, a.dtype) for a, _ in gives]
    try:
        host_calls.call(
            name,
            [_memory(x, d) for x, d in zip(arrays, takes, strict=True)],
            [_memory(x, d) for x, (_, d) in zip(results, gives, strict=True)],
        )
    except BaseException as error:
        if host_calls.ends_program(error):
            raise RuntimeError(repr(error)) from None
    return _Results(results)


def _memory(array: np.ndarray[Any, Any], dtype: torch.dtype) -> Memory:
    return Memory(array.ctypes.data, dtype, list(array.shape))


@dataclasses.dataclass
class _Results:
    """Results for JAX, which reads 64-bit values as such only while its setting says so.

    The setting is that of the thread that makes the call: XLA's, not the one of the program's call.
    """

    arrays: Sequence[np.ndarray[Any, Any]]

    def __len__(self) -> int:
        return len(self.arrays)

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        with client.x64()(True):
            yield from self.arrays
