"""JAX's own calls of cuDNN's attention; only the process that lowers them imports this file."""

from typing import Any
from unittest import mock

import jax
from jax._src.cudnn import fused_attention_stablehlo as library


def _attention(window: int, scale: float) -> Any:
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        return library.dot_product_attention(
            q,
            k,
            v,
            scale=scale,
            mask_type=library.MaskType.CAUSAL,
            qkv_layout="BNTH",
            sliding_window_length=window or None,
        )

    return attend


def passes(
    q: jax.Array, k: jax.Array, v: jax.Array, ct: jax.Array, *, window: int, scale: float
) -> tuple[jax.Array, ...]:
    """The output and the gradients, as if there were a GPU."""
    with (
        mock.patch.object(library, "check_cudnn_version", return_value=91200),
        mock.patch.object(library, "is_cuda_compute_capability_equal", lambda c: c == "9.0"),
        mock.patch.object(library, "check_compute_capability", return_value=True),
    ):
        out, pull = jax.vjp(_attention(window, scale), q, k, v)
        return out, *pull(ct)
