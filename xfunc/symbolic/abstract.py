"""The symbolic result of a function for all sizes, without computing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from xfunc import tree
from xfunc.core.avals import ShapeDtypeStruct, SymbolicSize
from xfunc.core.locations import function_name
from xfunc.core.wrappers import Part
from xfunc.errors import ShapeError, fail
from xfunc.hlo import Module
from xfunc.stages import stages
from xfunc.stages.staging import Staged
from xfunc.symbolic.bucket import explained
from xfunc.symbolic.dim import dimension, merged, size_of
from xfunc.symbolic.interpolation import NoFit, SymbolicModule, fit, fit_sizes
from xfunc.symbolic.polynomial import Env, Size, value
from xfunc.symbolic.shape_domain import ShapeDomain
from xfunc.tree import Leaf, PyTree


def is_symbolic(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether some argument has a size that is not known yet."""
    return any(_symbols(x) for x in tree.leaves((args, kwargs)))


def symbolic_hlo(
    fun: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> SymbolicModule:
    """The HLO of a function for all sizes."""

    def trace(env: Env) -> Module:
        at_args, at_kwargs = _at((args, kwargs), env)
        staged = Staged(fun, Part(fun, "HLO"), arrays_only=True)
        return stages.trace(staged, at_args, at_kwargs).lower().module

    try:
        return fit(trace, _box(args, kwargs))
    except NoFit as error:
        _refuse(fun, error)


def symbolic_result(
    fun: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Any:
    """The result of a function for all sizes, as a tree of `ShapeDtypeStruct`."""
    box = _box(args, kwargs)
    results: list[object] = []

    def shapes(env: Env) -> list[tuple[int, ...]]:
        at_args, at_kwargs = _at((args, kwargs), env)
        results.append(stages.trace(Staged(fun, Part(fun, "shapes")), at_args, at_kwargs).out_info)
        return [x.shape for x in tree.leaves(results[-1])]

    try:
        found = fit_sizes(shapes, box)
    except NoFit as error:
        _refuse(fun, error)
    leaves, structure = tree.flatten(results[0])
    made = [
        ShapeDtypeStruct(tuple(dimension(s, box) for s in sizes), x.dtype)  # type: ignore[arg-type]
        for x, sizes in zip(leaves, found, strict=True)
    ]
    return tree.unflatten(structure, made)


def _symbols(x: object) -> list[object]:
    if not isinstance(x, ShapeDtypeStruct):
        return []
    return [d for d in x.shape if isinstance(d, SymbolicSize)]


def _box(args: tuple[object, ...], kwargs: Mapping[str, object]) -> ShapeDomain:
    return ShapeDomain(merged(d for x in tree.leaves((args, kwargs)) for d in _symbols(x)))


def _at(trees: PyTree, env: Env) -> PyTree:
    """The arguments at given sizes."""

    def at(x: Leaf) -> object:
        if not _symbols(x):
            return x
        sizes: list[Size] = [size_of(d) for d in x.shape]
        return x.update(shape=tuple(value(s, env) for s in sizes))

    leaves, structure = tree.flatten(trees)
    return tree.unflatten(structure, [at(x) for x in leaves])


def _refuse(fun: Callable[..., object], error: NoFit) -> NoReturn:
    fail(
        ShapeError,
        f"{function_name(fun)} is not one program for all sizes: {explained(error)}",
        "declare the Dim with bounds (min, max) within which it is one, or with multiple_of= "
        "its divisor; or use a fixed shape.",
    )
