"""Functions of lists of tensors, ``torch._foreach_add`` and the like, as a function of each tensor.

That is how torch 2.15 documents them, as `torch.foreach`. Their kernels have no `vmap` rule, and
those of `copy_` and `zero_` no derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
Call = Callable[..., Any]

_OPERANDS = (
    "self tensor1 tensors1 tensor2 other src exponent scalar scalars weight weights value ord"
).split()
"""The names under which operands may be given, in their order."""


def _each(func: Call, name: str) -> Call:
    """`func` of each tensor, with what else there is for it; a number is for all.

    The result is NotImplemented if the lists do not fit together, which torch's function refuses.
    """
    in_place, packed = name.endswith("_"), name.startswith("addc")  # Numbers may be a tensor.

    def call(*args: Any, **kwargs: Any) -> Any:
        rest = dict(kwargs)
        operands = [*args, *(rest.pop(name) for name in _OPERANDS if name in rest)]
        if packed and isinstance(operands[-1], Tensor):
            operands[-1] = operands[-1].unbind()
        counts = {len(o) for o in operands if isinstance(o, Sequence)}
        if len(counts) != 1 or 0 in counts or any(_is_array(o) for o in operands):
            return NotImplemented
        found = [
            func(*(o[k] if isinstance(o, Sequence) else o for o in operands), **rest)
            for k in range(*counts)
        ]
        return operands[0] if in_place else tuple(found)

    return call


def _is_array(operand: object) -> bool:
    return isinstance(operand, Tensor) and operand.ndim > 0


def _norm(x: Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


def _extreme(func: Call, clamp: Call, *, in_place: bool) -> Call:
    """`torch.maximum` or `torch.minimum`, also of a number."""

    def call(x: Tensor, other: Any) -> Tensor:
        if not isinstance(other, Tensor):
            dtype = torch.result_type(x, other)
            if not dtype.is_floating_point:
                return clamp(x, other)
            other = torch.scalar_tensor(other, dtype=dtype, device=x.device)
        return func(x, other, out=x) if in_place else func(x, other)

    return call


def _with_value(func: Call) -> Call:
    """`torch.addcmul` and the like, whose factor is an operand here, and may be a tensor."""

    def call(x: Tensor, y: Tensor, z: Tensor, value: Any = 1) -> Tensor:
        if isinstance(value, Tensor):
            return func(x, y * value.to(y.dtype), z)
        return func(x, y, z, value=value)

    return call


_RULES: dict[str, Call] = {
    "norm": _norm,
    "pow": torch.pow,  # also of one number to many powers
    "maximum": _extreme(torch.maximum, Tensor.clamp_min, in_place=False),
    "minimum": _extreme(torch.minimum, Tensor.clamp_max, in_place=False),
    "maximum_": _extreme(torch.maximum, Tensor.clamp_min_, in_place=True),
    "minimum_": _extreme(torch.minimum, Tensor.clamp_max_, in_place=True),
    **{n: _with_value(getattr(Tensor, n)) for n in ("addcmul", "addcmul_", "addcdiv", "addcdiv_")},
}
"""By their names in `torch.foreach`; the others have those of methods of a tensor."""


def _functions() -> dict[object, Call]:
    found: dict[object, Call] = {}
    places = [(torch, "_foreach_"), (getattr(torch, "foreach", None), "")]
    for name in (n.removeprefix("_foreach_") for n in dir(torch) if n.startswith("_foreach_")):
        rule = _RULES.get(name) or getattr(Tensor, name, None)
        if rule is not None:
            own = [getattr(module, prefix + name, None) for module, prefix in places]
            found |= {func: _each(rule, name) for func in own if func is not None}
    return found


FOREACH = _functions()
"""The rule of each such function."""
