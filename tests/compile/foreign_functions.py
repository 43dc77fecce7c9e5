"""Functions of JAX for `call_jax`."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def polar(x: jax.Array, y: jax.Array, shift: jax.Array | None, *, scale: float) -> list[jax.Array]:
    angle = jnp.arctan2(y, x) if shift is None else jnp.arctan2(y, x) + shift
    return [scale * jnp.hypot(x, y), angle]


def square(x: jax.Array) -> tuple[jax.Array]:
    return (x * x,)


def double(x: jax.Array, ct: jax.Array) -> tuple[jax.Array]:
    return (2 * x * ct,)


def turned(x: jax.Array) -> tuple[jax.Array]:
    return (x.T,)


def rows(x: jax.Array) -> tuple[jax.Array]:
    return (x.reshape(7, -1),)


def places(x: jax.Array) -> jax.Array:
    return jnp.arange(x.size)


def running_sums(x: jax.Array, *, scale: float) -> tuple[jax.Array]:
    """A Pallas kernel, interpreted: sums of rows so far, in blocks that follow each other."""

    def kernel(x, out, total):
        @pl.when(pl.program_id(0) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += x[...]
        out[...] = scale * total[...]

    row = pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))
    last = pl.BlockSpec((1, x.shape[1]), lambda i: (0, 0))
    shapes = [jax.ShapeDtypeStruct(s, x.dtype) for s in (x.shape, (1, x.shape[1]))]
    call = pl.pallas_call(
        kernel, shapes, grid=x.shape[:1], in_specs=[row], out_specs=[row, last], interpret=True
    )
    return (call(x)[0],)
