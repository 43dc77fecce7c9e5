"""Plain torch as it might be as well: what it leaves open, and what is an artefact of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

from xfunc.torchlib import functorch

Tensor = torch.Tensor


class Rows(TorchFunctionMode):
    """Where what is computed lies in memory row by row.

    In eager torch ``x.t() * 2`` lies column by column, so that its `reshape` is a copy. torch says
    that one should not rely on that; here, as in xfunc, it is a view.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {_memory(t) for t in tree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        return tree.tree_map_only(
            Tensor, lambda t: t if _memory(t) in given else t.contiguous(), out
        )


def _memory(t: Tensor) -> int:
    return functorch.innermost(t).untyped_storage().data_ptr()


class SumsOfParts(TorchDispatchMode):
    """Where complex numbers are added part by part.

    torch multiplies the second by an `alpha` of 1 + 0j, which makes NaN of an infinity's other
    part: in torch ``z + inf`` is not ``inf + z``.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = _SUMS.get(func)
        if (
            plain is None
            or kwargs
            or not any(isinstance(a, Tensor) and a.is_complex() for a in args)
        ):
            return func(*args, **(kwargs or {}))
        dtype = torch.result_type(*args)
        x, y = (torch.as_tensor(a, dtype=dtype) for a in args[:2])
        x, y = torch.broadcast_tensors(x, y)
        found = torch.complex(plain(x.real, y.real), plain(x.imag, y.imag))
        return args[0].copy_(found) if func in _IN_PLACE else found


_IN_PLACE = (torch.ops.aten.add_.Tensor, torch.ops.aten.sub_.Tensor)
_SUMS: dict[Any, Any] = {
    torch.ops.aten.add.Tensor: torch.add,
    torch.ops.aten.sub.Tensor: torch.sub,
    torch.ops.aten.rsub.Scalar: torch.rsub,
    **dict(zip(_IN_PLACE, (torch.add, torch.sub), strict=True)),
}
