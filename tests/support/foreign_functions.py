"""Functions of JAX for `test_foreign.py`; only the process that lowers them imports this file."""

import importlib.util

import jax
import jax.numpy as jnp


def polar(x: jax.Array, y: jax.Array, shift: jax.Array | None, *, scale: float) -> list[jax.Array]:
    print("a line that is no part of the answer")
    angle = jnp.arctan2(y, x) if shift is None else jnp.arctan2(y, x) + shift
    return [scale * jnp.hypot(x, y), angle]


def square(x: jax.Array) -> tuple[jax.Array]:
    return (x * x,)


def double(x: jax.Array, ct: jax.Array) -> tuple[jax.Array]:
    return (2 * x * ct,)


def rows(x: jax.Array) -> tuple[jax.Array]:
    return (x.reshape(7, -1),)


def finds_libtpu(x: jax.Array) -> tuple[jax.Array]:
    return (x + (importlib.util.find_spec("libtpu") is not None),)
