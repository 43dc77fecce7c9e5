"""In-place changes that torch cannot make under a transform.

NOTE [shapes changed in place]: ``x.t_()`` gives the tensor itself another shape. For a view of a
differentiated value, torch records how to recreate it from its base: on the CPU a list of
strides, elsewhere the operation that made it, which does not include the new shape. After the base
is changed in place, gradients would be those of the old shape.

NOTE [copies of views]: in torch's forward mode, the tangent of `torch.diagonal_copy(x)` is a view
of the tangent of x, so changing the copy in place changes both. torch copies a tangent whose
strides differ from those of its primal, which hides this where a view has other strides; traced
views do not. The tangent of ``x % 2`` is that of x itself, too, and so for `fmod` and `frac`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from xfunc.core.avals import short
from xfunc.errors import UnsupportedOpError, fail
from xfunc.torchlib import functorch
from xfunc.torchlib.overflow_checks import check_dtypes
from xfunc.torchlib.torch_functions import operation_name
from xfunc.torchlib.unbatched import where_mapped

Tensor = torch.Tensor
Several = Tensor | tuple[Tensor, ...] | list[Tensor]

REPLACED = (
    "Tensor.set_ or Tensor.resize_ gives a tensor other memory, which a transform cannot follow",
    "make a new tensor: x = y.clone(), or x = x.reshape(...).",
)
"""The problem and the hint."""


def _by_copy(func: Callable[..., Tensor], plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``x.lerp_(...)`` as ``x.copy_(x.lerp(...))``."""

    def call(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        new = plain(x.clone(), *args, **kwargs)  # Autograd may keep what it is given.
        if new.shape != x.shape or not torch.can_cast(new.dtype, x.dtype):
            return func(x, *args, **kwargs)  # torch's error
        return x.copy_(new)

    return call


def _functions(name: str) -> list[Callable[..., Tensor]]:
    """The method of this name, and the function ``torch.name`` if there is one."""
    return [getattr(of, name) for of in (torch.Tensor, torch) if hasattr(of, name)]


def _copied(view: Callable[..., Several]) -> Callable[..., Several]:
    """See NOTE [copies of views]."""

    def call(*args: object, **kwargs: object) -> Several:
        found = view(*args, **kwargs)
        return found.clone() if isinstance(found, Tensor) else type(found)(v.clone() for v in found)

    return call


def _diag(x: Tensor, diagonal: int = 0) -> Tensor:
    return torch.diagonal(x, diagonal).clone() if x.ndim == 2 else torch.diag(x, diagonal)


def _power(mapped: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``x.pow_(True)`` of truth values, which stay such in torch."""

    def call(x: Tensor, exponent: object) -> Tensor:
        if x.dtype is torch.bool and isinstance(exponent, bool):
            return x.logical_or_(torch.tensor(not exponent, device=x.device))
        return mapped(x, exponent)

    return call


def _reshaping(name: str) -> Callable[..., Tensor]:
    """See NOTE [shapes changed in place]."""
    func = getattr(torch.Tensor, name)

    def call(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        if name == "squeeze_" and not x.ndim:  # torch's vmap rule squeezes dimension -1.
            return x
        if x._is_view() and (x.requires_grad or functorch.levels()):
            fail(
                UnsupportedOpError,
                f"Tensor.{name} changes the shape of a view in place, which "
                "differentiation would not see",
                f"make a new tensor: x = x.{name.removesuffix('_')}(...).",
            )
        return func(x, *args, **kwargs)

    return call


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """For products, torch has no forward mode; for the others, it has gradients of complex numbers
    only in place.
    """
    func = torch.Tensor.scatter_reduce_
    func = _by_copy(func, torch.Tensor.scatter_reduce) if reduce == "prod" else func
    return func(x, dim, index, src, reduce, include_self=include_self)


def _as_strided(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    """In a vmap, where torch gives each example another shape, and not the batch."""
    fail(
        UnsupportedOpError,
        "Tensor.as_strided_ changes the shape of each example in place, which vmap would not see",
        "make a new tensor: x = x.as_strided(...).",
    )


_VIEWS = (
    "alias as_strided diagonal expand permute select slice split split_with_sizes squeeze t "
    "transpose unbind unfold unsqueeze view view_as_real view_as_complex narrow"
).split()

_NO_FORWARD_MODE = ("index_reduce_", "lerp_", "polygamma_", "xlogy_")
_NO_COMPLEX = ("nan_to_num_",)
_NO_VMAP = (
    "addbmm_ addcdiv_ addcmul_ addmm_ addmv_ addr_ baddbmm_ clamp_ clip_ conj_physical_ cumprod_ "
    "cumsum_ div_ divide_ eq_ floor_divide_ fmod_ ge_ greater_ greater_equal_ gt_ heaviside_ "
    "hypot_ igamma_ igammac_ index_copy_ index_reduce_ le_ less_ less_equal_ lt_ masked_scatter_ "
    "ne_ nextafter_ not_equal_ put_ remainder_ renorm_ scatter_ tril_ triu_"
).split()
"""Without a batching rule in torch 2.9, which changes one example after the other."""

IN_PLACE: dict[object, Callable[..., object]] = {
    **{
        func: _by_copy(func, getattr(torch.Tensor, n.removesuffix("_")))
        for n in (*_NO_FORWARD_MODE, *_NO_COMPLEX)
        for func in _functions(n)
    },
    torch.Tensor.scatter_reduce_: _scatter_reduce,
    **{
        getattr(torch.Tensor, n): _reshaping(n)
        for n in "t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_".split()
    },
    torch.Tensor.as_strided_: where_mapped(torch.Tensor.as_strided_, _as_strided),
    **{getattr(torch, f"{n}_copy"): _copied(getattr(torch.ops.aten, n)) for n in _VIEWS},
    torch.diag: _diag,
    torch.Tensor.diag: _diag,
}
"""The replacement for each function that needs one."""


def changing(replacements: Mapping[Any, Callable[..., Any]]) -> dict[object, Callable[..., Any]]:
    """For each function that needs it, a version of its replacement, or of itself."""

    def run_of(func: Callable[..., Any]) -> Callable[..., Any]:
        return replacements.get(func, func)

    plain = {n: n.removesuffix("_") for n in (*_NO_VMAP, "pow_")}
    plain |= {f"__i{n}__": f"__{n}__" for n in ("floordiv", "mod", "pow")}
    found: dict[object, Callable[..., Any]] = {}
    for name, other in plain.items():
        rule = run_of(getattr(torch.Tensor, other))
        for func in _functions(name):
            found[func] = where_mapped(run_of(func), _by_copy(run_of(func), rule))
    for name in ("pow_", "__ipow__"):
        func = getattr(torch.Tensor, name)
        found[func] = _power(found[func])
    for name in ("fmod", "remainder", "__mod__", "frac"):  # See NOTE [copies of views].
        found |= {func: _copied(run_of(func)) for func in _functions(name)}
    return found


def check_shape(x: Tensor, others: Iterable[object]) -> None:
    """Refuse what broadcasting with others would give another shape.

    torch's functionalisation only does so for some of the operations that it replaces.

    Raises:
        RuntimeError: in torch's words.
    """
    shape = x.shape
    shapes = [o.shape for o in others if isinstance(o, Tensor) and o.ndim and o.shape != shape]
    if shapes and (wide := torch.broadcast_shapes(shape, *shapes)) != shape:
        raise RuntimeError(
            f"output with shape {[*shape]} doesn't match the broadcast shape {[*wide]}"
        )


def write_into(
    func: Callable[..., Any],
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Several:
    """A call with ``out=``, for which no transform has a rule, as a call of `run` and a copy."""
    out, rest = kwargs["out"], {k: v for k, v in kwargs.items() if k != "out"}
    outs = [out] if isinstance(out, Tensor) else list(out)
    name = operation_name(func)
    # Autograd may keep what it is given.
    args = tuple(a.clone() if any(a is o for o in outs) else a for a in args)
    found = run(*_in_dtype_of(outs[0], name, args, rest), **rest)
    pairs = list(zip([found] if isinstance(found, Tensor) else found, outs, strict=True))
    for new, o in pairs:
        if new.shape == o.shape:
            continue
        if not o.numel():
            try:
                o.resize_(new.shape)
                continue
            except RuntimeError:  # a view, or an argument
                pass
        fail(
            UnsupportedOpError,
            f"{name} gives {short(new)}, but `out` has another shape ("
            f"{short(o)}), which a program cannot change",
            "omit `out`, or give it the shape of the result.",
        )
    if any(new.dtype != o.dtype for new, o in pairs):
        check_dtypes(func, args, kwargs, _SAME_DTYPE)
    for new, o in pairs:
        real = name == "torch.mean" and o.is_floating_point()
        if not torch.can_cast(new.dtype, o.dtype) and not real:
            fail(
                RuntimeError,
                f"{name} gives {short(new)}, which can't be cast to the dtype of out ({short(o)})",
                _SAME_DTYPE,
            )
        o.copy_(new.real if new.is_complex() and not o.is_complex() else new)
    return out if isinstance(found, Tensor) else type(found)(out)


_SAME_DTYPE = "give `out` the dtype of the result, or omit it."
_COMPUTED_IN = frozenset(
    f"torch.{n}"
    for n in (
        "sum nansum prod cumsum cumprod arange empty eye full linspace logspace ones zeros"
    ).split()
)
"""Functions that compute in the dtype of `out`, unless a dtype is given."""


def _in_dtype_of(
    out: Tensor, name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a function whose dtype torch takes from `out`."""
    if name in _COMPUTED_IN and options.get("dtype") is None:
        options["dtype"] = out.dtype
    if name in ("torch.all", "torch.any") and out.dtype in (torch.bool, torch.uint8):
        return args[0].to(out.dtype), *args[1:]
    return args
