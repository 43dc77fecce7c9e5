"""Splash attention: the Pallas kernel that JAX has for attention on TPUs."""

import torch

from ..parallel.sharding import Sharding
from .attention import PLAIN, Heads, Scores, Segments
from .kernels import Kernel

PLATFORM = "tpu"  # On the CPU the kernel is interpreted, which is for tests.
_LANES = 128


def splash_attention(
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments = None,
    *,
    block: int = 512,
    sharding: Sharding | None = None,
    window: int | None = None,
    scores: Scores = PLAIN,
) -> Heads:
    """Causal attention over one or several documents per row.

    Args:
        q: queries.
        k: keys, with as many heads or a divisor of that number.
        v: values, likewise.
        segments: the document of each token; None: one document per row.
        block: queries, and keys, at a time; all of a shorter sequence.
        sharding: how the arrays are sharded; None: on one device.
        window: how many tokens each sees, including itself; None: all before it.
        scores: how scores are computed from the products of queries and keys.

    Raises:
        ValueError: the sequence is not a multiple of the block, or the block not one of 128; or
            the numbers have 64 bits.
    """
    if q.dtype is torch.float64:
        raise ValueError("splash attention has no float64: use the attention 'blockwise'")
    seq, dim = q.shape[2:]
    block = min(block, seq)
    if block % _LANES or seq % block:
        raise ValueError(
            f"splash attention of a sequence of {seq} in blocks of {block}: the block must be a "
            f"multiple of {_LANES}, and the sequence a multiple of the block. Choose such sizes, "
            "or the attention 'blockwise', which takes any."
        )
    settings = {
        "block": block,
        "interpret": PLATFORM != "tpu",
        "window": window or 0,
        "cap": scores.cap or 0.0,
    }
    kernel = Kernel("splash_kernel", PLATFORM, sharding, tuple(settings.items()))
    segments = None if segments is None else segments.to(torch.int32)
    return kernel(scores.scaled(q, dim), k, v, segments)
