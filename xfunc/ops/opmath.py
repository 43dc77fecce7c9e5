"""Operations on narrow dtypes that compute in float32 and round once.

NOTE [where narrow numbers are computed in float32]: torch computes each operation on bfloat16 and
float16 in float32 ("opmath") and rounds its result. A single XLA instruction does the same; but
many operations are several instructions, each of which would round. Such operations are therefore
computed entirely in float32 here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch

from xfunc.ops import registry
from xfunc.ops.registry import Kernel
from xfunc.rules.operands import HALF, result_type, rounded

_REDUCTIONS = """
    nansum std.correction std_mean.correction
    linalg_vector_norm norm.Scalar norm.ScalarOpt_dtype norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype
    logcumsumexp _logcumsumexp cov cdist pdist dist renorm index_reduce
    scatter_reduce.two _weight_norm_interface _trilinear embedding_dense_backward
    histc native_batch_norm_backward
    linalg_matrix_exp
"""
_LOSSES = """
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss
    huber_loss_backward binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits nll_loss_forward nll_loss_backward nll_loss2d_forward
    nll_loss2d_backward multi_margin_loss multilabel_margin_loss_forward soft_margin_loss
    soft_margin_loss_backward log_sigmoid_forward log_sigmoid_backward
"""
_WINDOWS = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d avg_pool2d avg_pool3d
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d
    affine_grid_generator
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward avg_pool2d_backward
    avg_pool3d_backward upsample_linear1d_backward upsample_bilinear2d_backward
    upsample_trilinear3d_backward upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward
    _upsample_bicubic2d_aa_backward upsample_nearest1d_backward upsample_nearest2d_backward
    upsample_nearest3d_backward _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
"""
_ELEMENTWISE = """
    gelu gelu_backward silu_backward mish celu elu elu_backward selu softplus softplus_backward
    hardswish hardswish_backward hardsigmoid hardsigmoid_backward glu glu_backward logit
    logit_backward xlogy.Tensor special_xlog1py special_entr sinc exp2 log2 log10 hypot angle lgamma
    digamma polygamma mvlgamma igamma igammac i0 leaky_relu leaky_relu_backward threshold
    hardtanh_backward round.decimals
"""


def narrow_dtype(args: Sequence[object], kwargs: Mapping[str, object]) -> torch.dtype | None:
    """bfloat16 or float16 if an operation returns it; otherwise None."""
    said = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype)]
    if said:
        return said[0] if said[0] in HALF else None
    found = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
    if not any(a.dtype in HALF for a in found):
        return None
    dtype = result_type(found)
    return dtype if dtype in HALF else None


# NOTE [numbers next to narrow numbers]: where torch expects a tensor but gets a Python number, or
# a 0-d array of a wider dtype, it rounds it first.


def widened(name: str, function: Kernel) -> Kernel:
    """A kernel that computes in float32 and rounds its result to the narrow dtype."""
    places = registry.tensor_places(name)

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        dtype = narrow_dtype(args, kwargs)
        if dtype is None:
            return function(*args, **kwargs)
        args = tuple(_wide(_round(a, dtype, k in places)) for k, a in enumerate(args))
        out = function(*args, **{k: _wide(_round(v, dtype)) for k, v in kwargs.items()})
        if isinstance(out, (tuple, list)):
            return type(out)(_rounded(o, dtype) for o in out)
        return _rounded(out, dtype)

    return run


def _wide(x: object) -> object:
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.to(torch.float32)
    return torch.float32 if isinstance(x, torch.dtype) else x


def _round(x: object, dtype: torch.dtype, tensor: bool = False) -> object:
    """See NOTE [numbers next to narrow numbers]."""
    if isinstance(x, torch.Tensor):
        return x.to(dtype) if x.is_floating_point() else x
    return rounded(x, dtype) if tensor and isinstance(x, (int, float, complex)) else x


def _rounded(x: object, dtype: torch.dtype) -> object:
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def none_is_narrow(*args: object) -> bool:
    """Whether none of these tensors has a narrow dtype."""
    return not any(isinstance(a, torch.Tensor) and a.dtype in HALF for a in args)


def add() -> None:
    """Make these operations compute in float32."""
    for name in " ".join((_REDUCTIONS, _LOSSES, _WINDOWS, _ELEMENTWISE)).split():
        registry.wrap(name, widened, none_is_narrow)
