"""Derivatives of activations whose operands differ in shape.

A batch of tangents or cotangents meets inputs that are not batched, in a Jacobian for example.
torch's kernels broadcast the two; those of torch_xla 2.9 fail.
"""

from __future__ import annotations

from typing import Any

import torch

from xfunc.ops.registry import kernel, kernels, original

Tensor = torch.Tensor

_POINTWISE = """
    sigmoid_backward tanh_backward hardtanh_backward hardsigmoid_backward hardswish_backward
    gelu_backward silu_backward mish_backward leaky_relu_backward softplus_backward
    threshold_backward softshrink_backward hardshrink_backward log_sigmoid_backward
""".split()


def _of_one_shape(grad: Tensor, *operands: Any) -> bool:
    return all(x.shape == grad.shape for x in operands if isinstance(x, Tensor))


def _broadcasting(name: str) -> None:
    @kernel(name, unless=_of_one_shape)
    def backward(*operands: Any, **options: Any) -> Tensor:
        shape = torch.broadcast_shapes(*(x.shape for x in operands if isinstance(x, Tensor)))
        return original(name)(
            *(x.expand(shape).contiguous() if isinstance(x, Tensor) else x for x in operands),
            **options,
        )


@kernel("_prelu_kernel_backward")
def prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(x > 0, grad, weight * grad), torch.where(x > 0, 0, x * grad)


for _name in _POINTWISE:
    if _name not in kernels() and torch._C._dispatch_has_kernel_for_dispatch_key(
        f"aten::{_name}", "XLA"
    ):
        _broadcasting(_name)
