"""cuDNN's attention: the fused kernels of NVIDIA's library, which XLA calls on its GPUs.

Programs with them run on such a GPU only, and are exported for it.
"""

import torch

from ..parallel.sharding import Sharding
from .attention import PLAIN, Heads, Scores, Segments
from .kernels import Kernel


def cudnn_attention(
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments = None,
    *,
    sharding: Sharding | None = None,
    window: int | None = None,
    scores: Scores = PLAIN,
) -> Heads:
    """Causal attention over one document per row, in bfloat16 or float16.

    The arguments are those of `splash.splash_attention`, but `segments` must be None, and `scores`
    without a cap.

    Raises:
        ValueError: there is no kernel for this.
    """
    wrong = None
    if segments is not None:
        wrong = "rows of several documents"
    elif scores.cap is not None:
        wrong = "scores with a cap"
    elif q.dtype not in (torch.bfloat16, torch.float16):
        wrong = f"{q.dtype}"
    elif q.shape[-1] % 8 or q.shape[-1] > 256:
        wrong = f"heads of {q.shape[-1]} features (multiples of 8 up to 256)"
    if wrong is not None:
        raise ValueError(f"cuDNN has no attention for {wrong}: use the attention 'blockwise'")
    scale = q.shape[-1] ** -0.5 if scores.scale is None else scores.scale
    settings = ("window", window or 0), ("scale", scale)
    return Kernel("cudnn_kernel", "cuda", sharding, settings)(q, k, v, None)
