"""`shard_as`: two values that XLA shards alike."""

from __future__ import annotations

from xfunc.backends.devices import to_device
from xfunc.core.avals import aval_of, short
from xfunc.core.types import ArrayLike
from xfunc.errors import ShardingError, fail
from xfunc.program.annotation import ShardGroup
from xfunc.program.bind import bind
from xfunc.stages.checks import Tensor, arrays, as_tensors
from xfunc.torchlib.eager import is_eager
from xfunc.trace import tracing


def shard_as(a: ArrayLike, b: ArrayLike) -> tuple[Tensor, Tensor]:
    """The same two values, with the same sharding, whichever XLA chooses.

    If XLA knows or infers the sharding of one, the other gets the same sharding. It is enough to
    use one of the results. Derivatives with respect to them are tied too. It has no effect in a
    program without shardings or inside a `shard_map`.

    Args:
        a: a tensor.
        b: another of the same shape.

    Returns:
        ``(a, b)``, two tensors of the same shapes, dtypes and values as the arguments.

    Raises:
        ShardingError: the shapes differ.

    Source: ``jax.experimental.shard_alike``.
    """
    a, b = arrays(as_tensors([a, b]), "shard_as", ["argument a", "argument b"])
    if a.shape != b.shape:
        fail(
            ShardingError,
            f"shard_as was given {short(a)} and {short(b)}",
            "tie values of the same shape; reshape one of them first.",
        )
    if is_eager():
        return a, b
    if tracing.current() is None:
        a, b = to_device(a), to_device(b)
    first, second = bind(ShardGroup((aval_of(a), aval_of(b))), [a, b])
    return first, second


shard_alike = shard_as
