"""All prefixes of an associative operation, in logarithmic depth and linear work.

NOTE [a barrier at each level]: XLA computes a value again wherever two operations read it, if it
can fuse it into both. Each level reads the one before it twice, so the code of the last one would
hold that of the first as often as there are elements, and take as long to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor
Combine = Callable[[list[Tensor], list[Tensor]], Sequence[Tensor]]


def prefixes(combine: Combine, xs: Sequence[Tensor]) -> list[Tensor]:
    """``[x0, x0 * x1, x0 * x1 * x2, ...]`` along the first axis, where * is `combine`.

    Args:
        combine: an associative function of two lists like `xs`, element by element.
        xs: tensors of one size along the first axis.
    """
    n = xs[0].shape[0]
    if n < 2:
        return list(xs)
    # The prefixes of the pairs are those at odd positions; the ones in between take a step more.
    paired = combine([x[0 : n - 1 : 2] for x in xs], [x[1:n:2] for x in xs])
    # See NOTE [a barrier at each level]; to flip nothing is one (`xfunc.ops.single_evaluation`).
    odd = prefixes(combine, [torch.ops.aten.flip.default(p, []) for p in paired])
    if n == 2:
        even = [x[:1] for x in xs]
    else:
        before = [o[: (n - 1) // 2] for o in odd]
        rest = combine(before, [x[2:n:2] for x in xs])
        even = [torch.cat([x[:1], r]) for x, r in zip(xs, rest, strict=True)]
    return [_interleave(e, o) for e, o in zip(even, odd, strict=True)]


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    m = odd.shape[0]
    mixed = torch.stack([even[:m], odd], dim=1).reshape(2 * m, *odd.shape[1:])
    return mixed if even.shape[0] == m else torch.cat([mixed, even[m:]])
