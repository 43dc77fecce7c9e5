"""Grouped products by JAX's kernel for TPUs, megablox. Only who lowers it imports this module.

Rows are those of one device, sorted by matrix; each matrix has `sizes` rows, whole blocks.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm

_BYTES = 2048  # of a row of a tile: two tiles of each array fit into 16 MiB of a core's memory


def product(
    x: jax.Array, weights: jax.Array, sizes: jax.Array, *, axis: int, block: int, interpret: bool
) -> jax.Array:
    """Each row times its matrix, whose `axis` is contracted; zero for rows without a matrix."""
    most = _BYTES // x.dtype.itemsize
    tiles = block, min(x.shape[1], 2 * most), min(weights.shape[3 - axis], most)
    out = gmm(x, weights, sizes, x.dtype, tiles, transpose_rhs=axis == 2, interpret=interpret)
    return jnp.where((jnp.arange(len(x)) < sizes.sum())[:, None], out, 0)


def gradient(
    ct: jax.Array, x: jax.Array, sizes: jax.Array, *, block: int, interpret: bool
) -> jax.Array:
    """The gradient of each matrix, ``[matrices, out, in]``."""
    most = _BYTES // x.dtype.itemsize
    tiles = block, min(ct.shape[1], most), min(x.shape[1], most)
    return tgmm(ct.T, x, sizes, x.dtype, tiles, interpret=interpret)
