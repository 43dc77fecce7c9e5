"""Mixed precision by ``torch.autocast``: the dtypes in which torch's functions compute.

torch has no autocast for the device of traced tensors. An autocast block for any device type
applies to them, with one list of functions: torch's list for CUDA, from its documentation
("Automatic Mixed Precision", op reference) and, for functions that are missing there, from its
`autocast_mode.h`. A function that torch implements in Python is cast once, as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xfunc.core.device import AUTOCAST
from xfunc.torchlib.torch_functions import functions
from xfunc.torchlib.values import tensors_in

_LOW = """
    __matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d
    conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d einsum gru gru_cell inner linear
    lstm lstm_cell matmul mm multi_dot multi_head_attention_forward mv prelu rnn_relu rnn_relu_cell
    rnn_tanh rnn_tanh_cell scaled_dot_product_attention vecdot
"""
_FLOAT32 = """
    __pow__ __rdiv__ __rpow__ __rtruediv__ acos arccos asin arcsin binary_cross_entropy_with_logits
    cdist cosh cosine_embedding_loss cosine_similarity cross_entropy cumprod cumsum dist erfinv exp
    expm1 gaussian_nll_loss group_norm hinge_embedding_loss huber_loss instance_norm interpolate
    kl_div l1_loss layer_norm log log10 log1p log2 log_softmax logsumexp margin_ranking_loss
    matrix_norm mse_loss multi_margin_loss multilabel_margin_loss nll_loss norm normalize
    nuclear_norm pdist poisson_nll_loss pow prod reciprocal renorm rms_norm rsqrt sinh
    smooth_l1_loss soft_margin_loss softmax softmin softplus square sum tan triplet_margin_loss
    upsample upsample_bilinear upsample_nearest vector_norm
"""
_WIDEST = """
    addcdiv addcmul atan2 arctan2 bilinear cat concat concatenate cross dot grid_sample index_put
    scatter_add stack tensordot vdot
"""


@functools.cache
def _kinds() -> dict[object, str]:
    return {
        function: kind
        for kind, names in (("low", _LOW), ("float32", _FLOAT32), ("widest", _WIDEST))
        for function in functions(*names.split())
    }


def cast(
    func: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call in the dtype in which the blocks around it have it computed."""
    enabled = filter(torch.is_autocast_enabled, AUTOCAST)
    low = next(map(torch.get_autocast_dtype, enabled), None)
    kind = None if low is None else _kinds().get(func)
    if low is None or kind is None or (kind == "float32" and kwargs.get("dtype") is not None):
        return tuple(args), dict(kwargs)
    wanted = low if kind == "low" else torch.float32
    if kind == "widest":
        found = {t.dtype for t in tensors_in(args, kwargs) if _is_cast(t)}
        if len(found) < 2:
            return tuple(args), dict(kwargs)

    def convert(a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            return a.to(wanted) if _is_cast(a) else a
        return type(a)(map(convert, a)) if type(a) in (tuple, list) else a

    return tuple(map(convert, args)), {k: convert(a) for k, a in kwargs.items()}


def _is_cast(x: torch.Tensor) -> bool:
    return x.is_floating_point() and x.dtype is not torch.float64
