"""The two passes of splash attention, in JAX. Only the process that lowers it imports this module.

Arrays are those of one device: queries ``[batch, heads, seq, head_dim]``, scaled; keys and values
with as many heads or a divisor of that number; documents ``[batch, seq]`` or None.
"""

from typing import Any, TypeAlias

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as library
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

Array: TypeAlias = jax.Array
Segments: TypeAlias = Array | None


def forward(
    q: Array, k: Array, v: Array, segments: Segments, **settings: Any
) -> tuple[Array, Array]:
    """The output, and the logarithm of the sum of each query's weights, ``[batch, heads, seq]``."""
    kernel = _kernel(q, **settings)
    out, (log_total,) = jax.vmap(kernel)(q, k, v, _documents(segments))
    return out, log_total


def backward(
    q: Array,
    k: Array,
    v: Array,
    segments: Segments,
    out: Array,
    log_total: Array,
    ct: Array,
    **settings: Any,
) -> tuple[Array, Array, Array]:
    """The gradients of `q`, `k` and `v`."""
    kernel = _kernel(q, **settings)
    sinks = None

    def row(
        q: Array, k: Array, v: Array, documents: library.SegmentIds | None, *rest: Array
    ) -> tuple[Array, Array, Array]:
        out, log_total, ct = rest
        residuals = (q, k, v, documents, sinks, out, log_total)
        residuals += kernel.dq_mask_info, kernel.dkv_mask_info
        # The kernel's own rule, because the public one recomputes the forward pass.
        grads = library._splash_attention_bwd(res=residuals, do=ct, **kernel.kwargs)
        return grads[3:6]  # after those of the masks

    return jax.vmap(row)(q, k, v, _documents(segments), out, log_total, ct)


def _kernel(
    q: Array, *, block: int, interpret: bool, window: int, cap: float
) -> library.SplashAttentionKernel:
    """The kernel of one row; a window or cap of 0 means none."""
    seq = q.shape[2]
    causal = masks.CausalMask((seq, seq))
    if window:
        causal = masks.LocalMask((seq, seq), (window - 1, 0), 0)
    sizes = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    return library.make_splash_mha_single_device(
        masks.MultiHeadMask([causal]),  # one for all heads
        block_sizes=library.BlockSizes(**dict.fromkeys(sizes, block)),
        save_residuals=True,
        attn_logits_soft_cap=cap or None,
        interpret=interpret,
    )


def _documents(segments: Segments) -> library.SegmentIds | None:
    return None if segments is None else library.SegmentIds(segments, segments)
