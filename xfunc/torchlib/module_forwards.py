"""The forward methods of torch's modules that read values, as traced code runs them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.modules.adaptive import AdaptiveLogSoftmaxWithLoss, _ASMoutput
from torch.nn.modules.batchnorm import _BatchNorm


def _cumulative(plain: Callable[..., Tensor], module: Any, x: Tensor) -> Tensor:
    """With ``momentum=None``, torch divides by the number of batches, as a number of Python."""
    is_average = module.momentum is None and module.training and module.track_running_stats
    if not is_average or module.num_batches_tracked is None:
        return plain(module, x)
    buffers = module.running_mean, module.running_var
    before = [b.clone() for b in buffers]
    alike = copy.copy(module)  # With the same buffers, which become the statistics of the batch.
    alike.momentum = 1.0
    result = plain(alike, x)
    for average, old in zip(buffers, before, strict=True):
        average.copy_(old + (average - old) / module.num_batches_tracked)
    return result


def _of_all_classes(
    plain: Callable[..., _ASMoutput], module: Any, x: Tensor, target: Tensor
) -> _ASMoutput:
    """torch selects the examples of each cluster by the values of the targets."""
    if target.dim() > 1 or x.shape[:-1] != target.shape:
        return plain(module, x, target)  # It says so.
    scores = module.log_prob(x if target.dim() else x[None])
    output = scores.gather(1, target.reshape(-1, 1)).reshape(target.shape)
    return _ASMoutput(output, -output.mean())


FORWARDS: tuple[tuple[type, str, Callable[..., Any]], ...] = (
    (_BatchNorm, "forward", _cumulative),
    (AdaptiveLogSoftmaxWithLoss, "forward", _of_all_classes),
)
"""Classes, the name of their method, and what runs in its place: it takes the method first."""
