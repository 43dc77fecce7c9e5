"""Plain torch as it might be as well: what it leaves open, and what is an artefact of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

from . import meaning

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
    """Where the data lies, beneath the wrappers of all levels of torch.func."""
    while _functorch.is_functorch_wrapped_tensor(t):
        t = _functorch.get_unwrapped(t)
    return t.untyped_storage().data_ptr()


class Consistent(TorchFunctionMode):
    """Where `Tensor.data` is `detach`, a trace the sum of a diagonal, and a copy one of its own.

    torch.func detaches `data` from the innermost derivative only, `detach` from all. And torch 2.9
    gives the trace of a matrix with fewer columns than rows a gradient beyond its diagonal:
    ``torch.func.grad(torch.trace)(torch.ones(3, 1))`` is ``[[1], [0], [1]]``. And its
    `diagonal_scatter` and the like copy a value with the strides that it has: those of an `unfold`
    let one element be several, which are then written at once.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _CONSISTENT.get(func, func)(*args, **(kwargs or {}))


def _on_a_copy(func: Any) -> Any:
    return lambda x, *args, **kwargs: func(x.contiguous(), *args, **kwargs)


_DATA: Any = Tensor.data
_CONSISTENT: dict[Any, Any] = {
    _DATA.__get__: lambda x, *_: x.detach(),
    torch.trace: lambda x: x.diagonal().sum(),
    Tensor.trace: lambda x: x.diagonal().sum(),
    **{f: _on_a_copy(f) for f in (torch.diagonal_scatter, torch.select_scatter)},
    torch.slice_scatter: _on_a_copy(torch.slice_scatter),
}


class SumsOfParts(TorchDispatchMode):
    """Where complex numbers are added part by part.

    torch multiplies the second by an `alpha` of 1 + 0j, which makes NaN of an infinity's other
    part: in torch ``z + inf`` is not ``inf + z``. Likewise what `addr` and the like add to, by a
    `beta`.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = _SUMS.get(func)
        kwargs = kwargs or {}
        if not any(isinstance(a, Tensor) and a.is_complex() for a in args):
            return func(*args, **kwargs)
        if func in _PRODUCTS and kwargs.get("beta", 1) == 1:
            x, product = args[0], func(*args, **{**kwargs, "beta": 0})
            return self.__torch_dispatch__(torch.ops.aten.add.Tensor, types, (x, product))
        if plain is None or kwargs:
            return func(*args, **kwargs)
        dtype = torch.result_type(*args)
        x, y = (torch.as_tensor(a, dtype=dtype) for a in args[:2])
        x, y = torch.broadcast_tensors(x, y)
        found = torch.complex(plain(x.real, y.real), plain(x.imag, y.imag))
        return args[0].copy_(found) if func in _IN_PLACE else found


_PRODUCTS = (
    torch.ops.aten.addr.default,
    torch.ops.aten.addmv.default,
    torch.ops.aten.baddbmm.default,
)
_IN_PLACE = (torch.ops.aten.add_.Tensor, torch.ops.aten.sub_.Tensor)
_SUMS: dict[Any, Any] = {
    torch.ops.aten.add.Tensor: torch.add,
    torch.ops.aten.sub.Tensor: torch.sub,
    torch.ops.aten.rsub.Scalar: torch.rsub,
    **dict(zip(_IN_PLACE, (torch.add, torch.sub), strict=True)),
}


@contextlib.contextmanager
def pairs() -> Iterator[None]:
    """Where `associative_scan` combines pairs, then pairs of these.

    In any order the values are the same, but the slope of a maximum with NaN, for one, is not.
    """
    in_turn = meaning.associative_scan

    def scan(fun: Any, xs: Tensor, reverse: bool = False, axis: int = 0) -> Tensor:
        parts = [p.unsqueeze(axis) for p in xs.unbind(axis)]
        found = _prefixes(fun, parts[::-1] if reverse else parts)
        return torch.cat(found[::-1] if reverse else found, axis)

    meaning.associative_scan = scan
    try:
        yield
    finally:
        meaning.associative_scan = in_turn


def _prefixes(fun: Any, parts: list[Tensor]) -> list[Tensor]:
    if len(parts) < 2:
        return parts
    found = parts[:1]
    odd = _prefixes(fun, [fun(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)])
    for k, prefix in enumerate(odd):
        found.append(prefix)
        found += [fun(prefix, p) for p in parts[2 * k + 2 : 2 * k + 3]]
    return found


@contextlib.contextmanager
def forward_mode() -> Iterator[None]:
    """Where a derivative along a direction is torch.func's forward mode, if that has a rule.

    It differs from the derivative of the pullback beside NaN and infinities: a zero of one is a
    missing edge of the other. And the result of a choice has a tangent, of zeros, if that of a
    branch that is not taken has one, as in JAX: which is taken shows only when a program runs.
    """
    twice, cond, switch = meaning.jvp, meaning.cond, meaning.switch

    def either(which: Tensor, yes: Any, no: Any, *operands: Any) -> Any:
        return any_of(torch.as_tensor(not which).int(), (yes, no), *operands)

    def any_of(index: Tensor, branches: Any, *operands: Any) -> Any:
        found = switch(index, branches, *operands)
        for branch in branches:
            try:
                found = tree.tree_map(_beside, found, branch(*operands))
            except RuntimeError:  # torch has no rule for what this branch does.
                for x in operands:
                    found = tree.tree_map(lambda y, x=x: _beside(y, x.real.sum()), found)
        return found

    def jvp(fun: Any, primals: Any, tangents: Any) -> Any:
        try:
            found: Any = torch.func.jvp(fun, tuple(primals), tuple(tangents))
        except RuntimeError:  # There is no rule; a loop over a test that reads has none either.
            return twice(fun, primals, tangents)
        return tuple(map(meaning.fresh, found))

    meaning.jvp, meaning.cond, meaning.switch = jvp, either, any_of
    try:
        yield
    finally:
        meaning.jvp, meaning.cond, meaning.switch = twice, cond, switch


def _beside(x: Tensor, y: Tensor) -> Tensor:
    """`x`, with a tangent if `y` has one."""
    return torch.where(torch.ones((), dtype=torch.bool), x, y).to(x.dtype)
