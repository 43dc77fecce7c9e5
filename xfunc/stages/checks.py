"""Helpers of transforms that process their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, SupportsInt, TypeGuard, cast

import numpy as np
import torch

from xfunc import tree
from xfunc.core.avals import NUMBERS, ShapeDtypeStruct, dtype_of, short
from xfunc.core.locations import described
from xfunc.core.paths import Labels
from xfunc.core.size_questions import TRACKED_NUMBERS
from xfunc.core.types import Shaped
from xfunc.errors import TreeMismatchError, fail, hint_for, kind_of, short_repr
from xfunc.program.program import differentiable
from xfunc.torchlib.arrays import from_numpy
from xfunc.trace import recorder, tracing
from xfunc.trace.literals import literal
from xfunc.tree import Leaf, PyTree

Tensor = torch.Tensor
Fun = tree.Function


def check_callable(fun: object, name: str, usage: str) -> None:
    """Raise unless the first argument of a transform is callable; `usage` shows a call."""
    if not callable(fun):
        what = short(fun) if isinstance(fun, Tensor) else f"{short_repr(fun)} ({kind_of(fun)})"
        fail(
            TypeError,
            f"{name} was given {what} as its function, which is not callable",
            f"write {usage}.",
        )


def as_tensor(x: Leaf) -> Leaf:
    """A leaf as a tensor of the enclosing trace; leaves that are not arrays are unchanged."""
    trace = tracing.current()
    if isinstance(x, (np.ndarray, np.generic)):
        x = from_numpy(x)
        return literal(x) if trace is not None and isinstance(x, Tensor) else x
    if type(x) in NUMBERS:
        where = recorder.device() if trace is not None else None
        return torch.full((), x, dtype=dtype_of(type(cast(complex, x))), device=where)
    if isinstance(x, Tensor) and trace is not None:
        return trace.lift(x)
    return x


def as_tensors(t: object) -> PyTree:
    """`as_tensor` of each leaf of a tree."""
    return tree.map(as_tensor, t)


def as_arrays(t: object) -> PyTree:
    """`as_tensor` of each leaf of a tree that is not a Python number."""
    return tree.map(lambda x: x if type(x) in NUMBERS else as_tensor(x), t)


def as_results(t: object, name: str, root: str = "output") -> PyTree:
    """`as_tensors` of the result of a user's function.

    Args:
        t: a tree.
        name: of the function.
        root: the name of the tree, with which paths into it begin.

    Raises:
        TypeError: a leaf is not an array.
    """
    leaves, structure = tree.flatten(t)
    found = [as_tensor(x) for x in leaves]
    for i, x in enumerate(found):
        if not isinstance(x, Tensor):
            no_result(name, x, structure.accessors()[i].codify(root))
    return tree.unflatten(structure, found)


def no_result(name: str, leaf: object, path: str) -> NoReturn:
    """Raise: the result of a user's function has a leaf that is no array."""
    fail(
        TypeError,
        f"{name} returned {short_repr(leaf)} ({kind_of(leaf)}) at {path}",
        "return tensors, numbers or None, in any tree of tuples, lists, dicts and registered "
        "classes.",
    )


def arrays(leaves: Sequence[object], name: str, labels: Sequence[str]) -> list[Tensor]:
    """The leaves, all of which must be tensors."""
    result: list[Tensor] = []
    for x, label in zip(leaves, labels, strict=True):
        if not isinstance(x, Tensor):
            fail(
                TypeError,
                f"{name} was given {short_repr(x)} ({kind_of(x)}) at {label}",
                hint_for(x, label),
            )
        result.append(x)
    return result


def select(
    argnums: int | Sequence[int], args: tuple[object, ...], name: str, option: str = "argnums"
) -> tuple[int, ...]:
    """Positions of arguments, checked and counted from the front."""
    nums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for i in nums:
        if not -len(args) <= i < len(args):
            fail(
                ValueError,
                f"{name} has {option}={argnums}, but was called with {len(args)} positional "
                "arguments",
                f"pass the arguments of {option} by position.",
            )
    result = tuple(i % len(args) for i in nums)
    if len(set(result)) < len(result):
        fail(
            ValueError,
            f"{name} has {option}={argnums}, in which an argument occurs twice",
            f"name each argument once in {option}.",
        )
    return result


def chosen(
    argnums: int | Sequence[int], args: tuple[object, ...], kwargs: dict[str, object], name: str
) -> tuple[tuple[PyTree, ...], dict[str, PyTree], tuple[int, ...]]:
    """The arguments, with those at `argnums` as tensors; and `argnums`, checked.

    Elsewhere a Python number remains one, such as a size or a flag.
    """
    nums = select(argnums, args, name)
    args = tuple((as_tensors if i in nums else as_arrays)(a) for i, a in enumerate(args))
    return args, as_arrays(kwargs), nums


def not_chosen(argnums: int | Sequence[int], structure: tree.Structure) -> list[bool]:
    """For each flat argument, whether it is outside `argnums`."""
    args, kwargs = structure.children()
    sizes = [a.num_leaves for a in args.children()]
    nums = (argnums,) if isinstance(argnums, int) else argnums
    taken = {i % len(sizes) for i in nums if sizes}
    found = [i not in taken for i, n in enumerate(sizes) for _ in range(n)]
    return found + [True] * kwargs.num_leaves


def check_floating(
    leaves: Sequence[object], labels: Sequence[str], name: str, real: bool = False
) -> None:
    """Raise unless every leaf is a tensor of a floating dtype, complex ones included.

    Args:
        leaves: what is differentiated with respect to.
        labels: for each leaf its name, for messages.
        name: the transform and its function.
        real: whether complex leaves are refused, too.
    """
    for i, x in enumerate(leaves):
        if not isinstance(x, Tensor):
            what, kind, hint = f"{short_repr(x)} ({kind_of(x)})", "floating", hint_for(x, labels[i])
        elif not differentiable(x):
            what, kind = short(x), "floating"
            hint = "convert it with .float(), or choose other argnums."
        elif real and x.dtype.is_complex:
            what, kind, hint = short(x), "real", "pass its parts: torch.view_as_real(z)."
        else:
            continue
        fail(
            TypeError,
            f"{name} differentiates with respect to {labels[i]}, which is {what}, not {kind}",
            hint,
        )


def check_differentiable(
    outs: Iterable[Shaped], out_tree: tree.Structure, fun: Fun, name: str
) -> None:
    """Raise unless all outputs of a function are floating or complex."""
    for o, accessor in zip(outs, out_tree.accessors(), strict=True):
        if not differentiable(o):
            fail(
                TypeError,
                f"{name}: {described(fun)} returned {short(o)} at "
                f"{accessor.codify('output')}, which is not floating",
                "return what is not differentiated through has_aux.",
            )


def labels_in(t: object, root: str) -> list[str]:
    """Key paths of the leaves of a tree."""
    return [f"{root}{path}" for path, _ in tree.leaves_with_path(t)]


def labels_of(fun: Fun, args: tuple[object, ...], nums: Sequence[int]) -> Labels:
    """Key paths of the leaves of the selected arguments of a function."""

    def made() -> list[str]:
        try:
            names = list(inspect.signature(fun).parameters)
        except (TypeError, ValueError):
            names = []
        roots = {i: names[i] if i < len(names) else f"argument {i}" for i in nums}
        return [f"{roots[i]}{path}" for i in nums for path, _ in tree.leaves_with_path(args[i])]

    return Labels(made)


def broadcast_shapes(shapes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to.

    Raises:
        RuntimeError: they do not.
    """
    broadcast = cast("Callable[..., torch.Size]", torch.broadcast_shapes)  # pyright: ignore[reportUnknownMemberType]
    return tuple(broadcast(*shapes))


def is_sequence(x: object) -> TypeGuard[Sequence[PyTree]]:
    """Whether something is a tuple or a list."""
    return isinstance(x, (tuple, list))


def is_integer(x: object) -> TypeGuard[SupportsInt]:
    """Whether something is an integer other than Python's own: NumPy's, or a tracked size."""
    return isinstance(x, np.integer) or (type(x) in TRACKED_NUMBERS and isinstance(x, int))


def is_pair(x: object) -> TypeGuard[tuple[PyTree, PyTree]]:
    """Whether something is a tuple of two."""
    return isinstance(x, tuple) and len(x) == 2  # pyright: ignore[reportUnknownArgumentType]


def split_aux(out: PyTree, fun: Fun, has_aux: bool, name: str) -> tuple[PyTree, PyTree]:
    """A function's result as ``(out, aux)``; aux is None if it has none."""
    if not has_aux:
        return out, None
    if not is_pair(out):
        fail(
            TypeError,
            f"{name} with has_aux=True needs a pair (value, aux), but {described(fun)} "
            f"returned {kind_of(out)}",
            "return (value, aux), or leave has_aux out.",
        )
    return out


def split_results(out: PyTree, fun: Fun, has_aux: bool, name: str) -> tuple[PyTree, PyTree]:
    """`split_aux`, as tensors."""
    out, aux = split_aux(out, fun, has_aux, name)
    return as_results(out, name), as_results(aux, name, "aux")


def _is_array(x: Leaf) -> bool:
    return isinstance(x, (Tensor, ShapeDtypeStruct))


def check_same(
    got: PyTree, want: PyTree, *, what: str, name: str, hint: str, root: str = ""
) -> None:
    """Raise a `TreeMismatchError` that lists every path where two trees of arrays differ.

    The one check of structures, shapes and dtypes, for all transforms that need equal trees.
    """
    if tree.structure(got) != tree.structure(want):
        have, need = (dict(tree.leaves_with_path(t)) for t in (got, want))
        lines = [f"  {root}{p}: missing" for p in need if p not in have]
        lines += [f"  {root}{p}: unexpected" for p in have if p not in need]
        if not lines:  # The leaves have the same paths: a class or its static fields differ.
            nodes = tree.different_nodes(tree.structure(got), tree.structure(want), root)
            lines = [f"  {line}" for line in nodes]
    else:
        pairs = zip(tree.leaves_with_path(got), tree.leaves(want), strict=True)
        lines = [
            f"  {root}{path}: {short(g) if _is_array(g) else short_repr(g)} instead of {short(w)}"
            for (path, g), w in pairs
            if not _is_array(g) or tuple(g.shape) != tuple(w.shape) or g.dtype != w.dtype
        ]
    if lines:
        problem = "\n".join([f"{name}: {what} differ:", *lines])
        fail(TreeMismatchError, problem, hint)
