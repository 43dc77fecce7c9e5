"""The two passes of cuDNN's attention, in JAX. Only the process that lowers it imports this module.

XLA knows the kernels as custom calls. `jax.nn.dot_product_attention` makes the same calls, but
only where there is a GPU. Arrays are those of one device: queries ``[batch, heads, seq,
head_dim]``, keys and values with as many heads or a divisor of that number. Rows have one document.
"""

import json
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = jax.Array

_WORKSPACE = jax.ShapeDtypeStruct((0,), jnp.uint8)  # XLA gives it the size that cuDNN asks for.


def forward(
    q: Array, k: Array, v: Array, segments: None, *, window: int, scale: float
) -> tuple[Array, Array]:
    """The output, and what the backward pass needs of the scores, ``[batch, heads, seq]``."""
    statistics = jax.ShapeDtypeStruct(q.shape[:3], jnp.float32)
    products = {"bmm1": ((3, 3), (0, 1)), "bmm2": ((3, 2), (0, 1))}
    out, statistics, _ = jax.ffi.ffi_call(
        "__cudnn$fmhaSoftmax",
        (q, statistics, _WORKSPACE),
        custom_call_api_version=2,
        legacy_backend_config=_settings(q, k, window, scale, products),
    )(q, k, v)
    return out, statistics


def backward(
    q: Array,
    k: Array,
    v: Array,
    segments: None,
    out: Array,
    statistics: Array,
    ct: Array,
    *,
    window: int,
    scale: float,
) -> tuple[Array, Array, Array]:
    """The gradients of `q`, `k` and `v`."""
    products = {
        "bmm1_grad_gemm1": ((2, 2), (0, 1)),
        "bmm1_grad_gemm2": ((3, 2), (0, 1)),
        "bmm2_grad_gemm1": ((2, 2), (0, 1)),
        "bmm2_grad_gemm2": ((3, 3), (0, 1)),
    }
    dq, dk, dv, _ = jax.ffi.ffi_call(
        "__cudnn$fmhaSoftmaxBackward",
        (q, k, v, _WORKSPACE),
        custom_call_api_version=2,
        legacy_backend_config=_settings(q, k, window, scale, products),
    )(q, k, v, statistics, ct, out)
    return dq, dk, dv


def _settings(q: Array, k: Array, window: int, scale: float, products: dict[str, Any]) -> str:
    """XLA's description of the call, a ``GpuBackendConfig`` as JSON."""
    batch, heads, seq, _ = q.shape
    dimensions = {
        f"{name}_dot_dimension_numbers": {
            "lhs_contracting_dimensions": [str(left)],
            "rhs_contracting_dimensions": [str(right)],
            "lhs_batch_dimensions": [*map(str, along)],
            "rhs_batch_dimensions": [*map(str, along)],
        }
        for name, ((left, right), along) in products.items()
    }
    call = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": scale,
        "intermediate_tensor_shape": {
            "element_type": {"bfloat16": "BF16", "float16": "F16"}[np.dtype(q.dtype).name],
            "dimensions": [*map(str, (batch, heads, seq, k.shape[2]))],
            "tuple_shapes": [],
            "layout": {"minor_to_major": ["3", "2", "1", "0"]},
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "mask_type": "CAUSAL",
        "dropout_rate": 0.0,
        "seed": 42,
        "sliding_window_length": window,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
        **dimensions,
    }
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": call})
