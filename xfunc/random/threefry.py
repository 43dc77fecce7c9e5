"""Keys and the bits drawn from them: ThreeFry-2x32 as used by `jax.random`.

The numbers are those of JAX with ``jax_threefry_partitionable`` on, its default: element i of a
draw is the hash of the 64-bit number i, so the result is the same however it is sharded.

NOTE [a key is an int32 tensor of two]: it holds the two 32-bit words of JAX's key. torch has little
arithmetic of uint32, and that of int32 wraps in the same way; int64 would take twice the memory. As
an integer leaf it passes through `grad`, `vmap`, `scan`, `jit` and checkpoints untouched. It does
not refuse arithmetic, and neither do JAX's raw keys: a subclass of Tensor would lose its class in
each program, and eager torch multiplies uint32 by floats, too.

NOTE [plain torch arithmetic]: the hash is some 150 elementwise operations, which XLA fuses, so it
runs about as fast as JAX's; it needs no rules of its own under `vmap` and `disable_jit`. It is
traced once for each shape. XLA's RngBitGenerator expands to the same arithmetic, but does not
accept a batch of keys.

NOTE [keys are computed once]: a draw from the keys of a split is a hash of hashes. Without a
barrier between them, XLA fuses both, and computes the words of the key again for each number drawn;
jaxlib 0.12 takes minutes to compile three hashes in a row for the CPU.
"""

from __future__ import annotations

import math
import operator
from functools import partial

import numpy as np
import torch

from xfunc.backends.devices import to_device
from xfunc.core.avals import short
from xfunc.errors import fail, kind_of, short_repr
from xfunc.ops.single_evaluation import materialize
from xfunc.random.checks import INTEGERS, Shape, Tensor, as_key, as_shape
from xfunc.torchlib.eager import is_eager
from xfunc.trace import tracing
from xfunc.transforms.jit import jit

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def key(seed: int | Tensor) -> Tensor:
    """A key, from which random numbers are drawn.

    Args:
        seed: a 64-bit Python integer, or a 0-d integer tensor (which may be traced). Only its
            lowest 32 bits count, as in JAX unless ``jax_enable_x64`` is set: seeds from -2**31 to
            2**32 - 1 give different keys unless they differ by a multiple of 2**32.

    Returns:
        int32[2]: the words of the key.

    Raises:
        TypeError: the seed is not an integer.
        OverflowError: the seed has more than 64 bits.

    Source: ``jax.random.key``.
    """
    if isinstance(seed, Tensor):
        if seed.ndim or seed.dtype not in INTEGERS:
            fail(TypeError, f"key was given {short(seed)}", "pass a 0-d integer tensor, or an int.")
        return _key_of(seed)
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        what = type(seed).__name__
        fail(TypeError, f"key was given {seed!r} (a {what})", "pass an int, or a 0-d int tensor.")
    seed = operator.index(seed)
    if not -(2**63) <= seed < 2**63:
        fail(OverflowError, f"the seed {seed} has more than 64 bits", "pass a smaller seed.")
    low = (seed + 2**31) % 2**32 - 2**31
    made = torch.tensor([0, low], dtype=torch.int32)
    return made if is_eager() or tracing.current() is not None else to_device(made)


PRNGKey = key


def key_data(keys: Tensor) -> Tensor:
    """The words of a key, or of an array of keys: here, the key itself.

    Args:
        keys: int32 ``[..., 2]``.

    Returns:
        int32 ``[..., 2]``.

    Source: ``jax.random.key_data``, which returns unsigned words.
    """
    return wrap_key_data(keys)


def wrap_key_data(words: Tensor) -> Tensor:
    """A key, or an array of keys, from its words.

    Args:
        words: ``[..., 2]`` of int32, or of another integer dtype, of which the lowest 32 bits
            count.

    Returns:
        int32 ``[..., 2]``: a key along the last axis.

    Raises:
        TypeError: `words` has the wrong dtype or shape.

    Source: ``jax.random.wrap_key_data``.
    """
    words = torch.as_tensor(words) if isinstance(words, np.ndarray) else words
    if isinstance(words, Tensor) and words.dtype in (torch.uint16, torch.uint32, torch.uint64):
        words = words.to(torch.int64)
    if not isinstance(words, Tensor) or words.dtype not in INTEGERS or words.shape[-1:] != (2,):
        what = short(words) if isinstance(words, Tensor) else repr(words)
        fail(TypeError, f"a key cannot be made from {what}", "give integers of the shape [..., 2].")
    return words.to(torch.int32)


def clone(key: Tensor) -> Tensor:
    """A copy of the key, which gives the same numbers.

    Args:
        key: int32[2].

    Returns:
        int32[2].

    Source: ``jax.random.clone``.
    """
    return as_key(key, "clone").clone()


def split(key: Tensor, num: int | Shape = 2) -> Tensor:
    """Split a key into `num` new ones; the old one must not be used again.

    Args:
        key: int32[2].
        num: number of keys, or the shape of an array of keys.

    Returns:
        int32[num,2], or int32[\\*num,2].

    Source: ``jax.random.split``.
    """
    return _split(
        as_key(key, "split"), shape=as_shape((num,) if isinstance(num, int) else num, "split")
    )


def fold_in(key: Tensor, data: int | Tensor) -> Tensor:
    """A new key from a key and a number, such as a step number.

    Args:
        key: int32[2].
        data: an integer from 0 to 2**32 - 1, or a 0-d integer tensor, of which the lowest 32 bits
            count.

    Returns:
        int32[2]: the new key.

    Source: ``jax.random.fold_in``.
    """
    if isinstance(data, Tensor):
        if data.ndim or data.dtype not in INTEGERS:
            fail(
                TypeError,
                f"fold_in was given {short(data)} as data",
                "pass a 0-d integer tensor; use vmap for many.",
            )
    else:
        if not hasattr(data, "__index__"):
            fail(
                TypeError,
                f"fold_in was given {short_repr(data)} ({kind_of(data)}) as data",
                "pass an integer, such as the number of a step; a string has one, too: "
                "zlib.crc32(name.encode()).",
            )
        data = operator.index(data)
        if not 0 <= data < 2**32:
            fail(OverflowError, f"fold_in was given {data} as data", "pass 0 to 2**32 - 1.")
    return _fold_in(as_key(key, "fold_in"), data)


def bits(key: Tensor, shape: Shape = (), dtype: torch.dtype = torch.int32) -> Tensor:
    """Random bits: every value of the dtype is equally likely.

    Args:
        key: int32[2].
        shape: shape of the result.
        dtype: an integer dtype. The bits are JAX's for the unsigned type of that width:
            they come in a signed one.

    Returns:
        ``[*shape]`` of `dtype`.

    Source: ``jax.random.bits``.
    """
    if dtype not in INTEGERS:
        fail(TypeError, f"bits was given the dtype {dtype}", "choose an integer dtype.")
    return random_bits(as_key(key, "bits"), shape=as_shape(shape, "bits"), dtype=dtype)


# -- the hash -----------------------------------------------------------------------------------


def shift_right(x: Tensor, n: int, width: int = 32) -> Tensor:
    """``x >> n`` for unsigned words: torch's shift would copy the sign into the upper bits."""
    return (x >> n) & ((1 << (width - n)) - 1)


def threefry(key: Tensor, high: Tensor | int, low: Tensor) -> tuple[Tensor, Tensor]:
    """The 20-round ThreeFry-2x32 hash of a counter's two words.

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
    """
    a, b = key[0], key[1]
    words = (a, b, a ^ b ^ 0x1BD11BDA)
    x, y = high + a, low + b
    for i in range(5):
        for n in _ROTATIONS[i % 2]:
            x = x + y
            y = x ^ ((y << n) | shift_right(y, 32 - n))
        x = x + words[(i + 1) % 3]
        y = y + words[(i + 2) % 3] + (i + 1)
    return x, y


def _hash_of_positions(key: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The hashes of 0, 1, 2, ... as an array of the given shape."""
    size = math.prod(shape)
    dtype = torch.int32 if size <= 2**31 else torch.int64
    count = torch.zeros(shape, dtype=dtype, device=key.device)
    for axis, n in enumerate(shape):
        step = math.prod(shape[axis + 1 :])
        index = torch.arange(n, dtype=dtype, device=key.device) * step
        count = count + index.reshape(n, *(1 for _ in shape[axis + 1 :]))
    if size <= 2**31:
        return threefry(key, 0, count)
    return threefry(key, (count >> 32).to(torch.int32), count.to(torch.int32))


@partial(jit, static_argnames=("shape", "dtype"))
def random_bits(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """`bits`, for checked arguments."""
    high, low = _hash_of_positions(key, shape)
    if dtype is torch.int64:
        return (high.to(dtype) << 32) | (low.to(dtype) & 0xFFFFFFFF)
    return (high ^ low).to(dtype)


@partial(jit, static_argnames="shape")
def _split(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    keys = torch.stack(_hash_of_positions(key, shape), -1)
    return materialize(keys)  # NOTE [keys are computed once]


@jit
def _fold_in(key: Tensor, data: int | Tensor) -> Tensor:
    key = torch.stack(threefry(key, 0, torch.as_tensor(data).to(key.device, torch.int32)))
    return materialize(key)  # NOTE [keys are computed once]


@jit
def _key_of(seed: Tensor) -> Tensor:
    low = seed.to(torch.int32)
    return torch.stack([torch.zeros_like(low), low])
