"""`typeof`: the type of a value, and along which axes it varies in a `shard_map`."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence

from xfunc.core import ambient
from xfunc.core.avals import ShapeDtypeStruct, aval_of, short
from xfunc.core.types import ArrayLike
from xfunc.errors import UnsupportedOpError, fail, kind_of
from xfunc.hlo.spmd.vma import types
from xfunc.program import vma
from xfunc.program.bind import Tensor
from xfunc.sharding.spec import PartitionSpec
from xfunc.stages.checks import as_tensor
from xfunc.torchlib import functorch
from xfunc.trace import tracing
from xfunc.trace.lowering import lower


@dataclasses.dataclass(frozen=True)
class ArrayType(ShapeDtypeStruct):
    """The result of `typeof`.

    Attributes:
        vma: the manual axes, of several devices, along which the value varies.
    """

    vma: frozenset[str] = frozenset()


def typeof(x: ArrayLike | ShapeDtypeStruct) -> ArrayType:
    """The shape and dtype of a value, and the axes along which it varies from device to device.

    In a function given to `shard_map`, ``typeof(x).vma`` names the axes to pass to `pvary` or
    `pcast` to make another value vary as `x` does. Elsewhere, and with ``check_vma=False``, it is
    empty; and it has no axes of a single device.

    Args:
        x: a tensor, a number or a `ShapeDtypeStruct`.

    Returns:
        A `ShapeDtypeStruct` of the shape and dtype of `x`, with one more attribute: ``vma``, a
        frozenset of names.

    Raises:
        UnsupportedOpError: `x` depends on the arguments of a function that is traced separately
            inside the `shard_map`: a loop body, a branch, a jitted function. Its types are only
            known when the whole `shard_map` has been traced.

    Source: ``jax.typeof``.
    """
    x = as_tensor(x)
    if isinstance(x, ShapeDtypeStruct):
        return ArrayType(x.shape, x.dtype, x.sharding)
    if not isinstance(x, Tensor):
        fail(TypeError, f"typeof was given {kind_of(x)}", "pass a tensor or a number.")
    axes = _varying(x) if vma.checked() else frozenset[str]()
    return ArrayType(tuple(x.shape), x.dtype, vma=axes)


class _Thread(threading.local):
    known: tuple[tracing.Trace | None, tuple[frozenset[str], ...]] = (None, ())


_thread = _Thread()


@contextlib.contextmanager
def typed_arguments(specs: Sequence[PartitionSpec]) -> Iterator[None]:
    """In a block, the first inputs of the current trace have the types given by these specs."""
    before = _thread.known
    found = tuple(frozenset(n for names in s.axes for n in names) for s in specs)
    _thread.known = tracing.current(), found
    try:
        yield
    finally:
        _thread.known = before


def _varying(x: Tensor) -> frozenset[str]:
    trace, known = _thread.known
    here, region = tracing.current(), ambient.region()
    assert here is not None
    assert region is not None
    with functorch.bottom_level():
        value = functorch.innermost(x).detach()
        raw = here.raw_inputs()
        lowering = lower("typeof", raw, [aval_of(t) for t in raw], [value])
    used = [i for i in lowering.inputs if i < len(raw)]
    if used and (here is not trace or region.axes != region.own):
        fail(
            UnsupportedOpError,
            f"typeof was asked how a value ({short(x)}) varies in a function that is traced by "
            "itself: a body of a loop, a branch, a jitted function, a rule, or a shard_map in "
            "another one",
            "call typeof in the function given to shard_map itself, outside these; loops and "
            "branches infer by themselves how their values vary.",
        )
    every = frozenset(n for n in vma.checked() if region.mesh.shape[n] > 1)
    inputs = [every & known[i] if i < len(known) else frozenset() for i in lowering.inputs]
    return types(lowering.graph, inputs, every)[0]
