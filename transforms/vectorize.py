"""`vectorize`: a function of small arrays as one that broadcasts, in NumPy's manner."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeAlias, TypeVar, cast

from xfunc import tree
from xfunc.core.locations import function_name
from xfunc.errors import TreeMismatchError, fail, short_repr
from xfunc.stages.checks import Fun, Tensor, arrays, as_tensor, broadcast_shapes
from xfunc.stages.transformed import CallableOrLambda
from xfunc.transforms.vmap import vmap

_DIMS = r"\([^(),]*(?:,[^(),]*)*\)"
_SIGNATURE = re.compile(rf"({_DIMS}(?:,{_DIMS})*)?->{_DIMS}(?:,{_DIMS})*")

P = ParamSpec("P")
R = TypeVar("R")
Part: TypeAlias = tuple[str, ...]  # the names in one pair of parentheses


def vectorize(
    fun: CallableOrLambda[P, R],
    *,
    excluded: Iterable[int | str] = (),
    signature: str | None = None,
) -> Callable[P, R]:
    """Map `fun` over the leading axes of its arguments; it works on the last ones.

    Args:
        fun: takes arrays by position, and returns an array or a tuple of arrays. An argument that
            is None is passed on unchanged.
        excluded: positions of arguments that are passed on unchanged. All keyword arguments are
            passed on unchanged; their names may be listed too.
        signature: the last axes of arguments and results, as in ``"(m,n),(n)->(m)"``; None: `fun`
            takes scalars, and its result may have any shape. Equal names are of equal size.

    Returns:
        A function of the same arguments, whose other axes broadcast against each other.

    Raises:
        ValueError: the signature is malformed, or does not have as many parts as `fun` arguments.
        TreeMismatchError: sizes differ, or axes do not broadcast.

    Source: ``jax.numpy.vectorize``.
    """
    skip, function = frozenset(excluded), cast("Callable[..., R]", fun)
    dims = _parsed(signature, fun) if signature is not None else None

    @functools.wraps(cast("Callable[P, R]", fun))
    def vectorized(*args: P.args, **kwargs: P.kwargs) -> R:
        given = [i for i in range(len(args)) if i not in skip]
        inputs, outputs = dims if dims is not None else ([()] * len(given), None)
        if len(inputs) != len(given):
            fail(
                ValueError,
                f"{name} has the signature {signature!r}, but was called with {len(given)} arrays",
                "give each argument a part of the signature, or exclude it.",
            )
        for i, part in zip(given, inputs, strict=True):
            if args[i] is None and part:
                fail(
                    TypeError,
                    f"{name} was given None as argument {i}, which has the axes "
                    f"({','.join(part)}) in its signature",
                    "pass an array, or make that part of the signature ().",
                )
        pairs = [(i, p) for i, p in zip(given, inputs, strict=True) if args[i] is not None]
        given, inputs = [i for i, _ in pairs], [p for _, p in pairs]
        tensors = [as_tensor(args[i]) for i in given]
        arrays(tensors, name, [f"argument {i}" for i in given])
        sizes = _sizes(tensors, inputs)

        def core(*xs: Tensor) -> R:
            full = list(args)
            for i, x in zip(given, xs, strict=True):
                full[i] = x
            out = function(*full, **kwargs)
            if outputs is not None:
                _check_outputs(out, outputs, sizes)
            return out

        loops = [tuple(x.shape[: x.ndim - len(c)]) for x, c in zip(tensors, inputs, strict=True)]
        try:
            whole = broadcast_shapes(loops)
        except RuntimeError:
            fail(
                TreeMismatchError,
                f"{name}: the loop axes {loops} do not broadcast",
                "give arrays whose axes, without those of the signature, are equal or 1.",
            )
        mapped, kept = core, list(tensors)
        plan: list[tuple[list[bool], int]] = []
        for axis in range(len(whole)):  # from the last one inwards
            inside = [len(s) > axis and s[-1 - axis] != 1 for s in loops]
            plan.append((inside, whole[-1 - axis]))
        for k, (x, s) in enumerate(zip(tensors, loops, strict=True)):
            kept[k] = x.reshape([n for n in s if n != 1] + list(x.shape[len(s) :]))
        for inside, n in plan:
            axes = tuple(0 if b else None for b in inside)
            mapped = vmap(mapped, axes, axis_size=n) if axes else mapped
        return mapped(*kept)

    def _check_outputs(out: object, outputs: Sequence[Part], sizes: dict[str, int]) -> None:
        leaves = tree.leaves(out)
        if len(leaves) != len(outputs):
            fail(
                TreeMismatchError,
                f"{name} returned {len(leaves)} arrays, and its signature has {len(outputs)}",
                "return as many as the signature says.",
            )
        for x, part in zip(leaves, outputs, strict=True):
            shape = tuple(getattr(x, "shape", ()))
            want = tuple(sizes.setdefault(d, n) for d, n in zip(part, shape, strict=False))
            if len(shape) != len(part) or shape != want:
                fail(
                    TreeMismatchError,
                    f"{name} returned the shape {shape}, where its signature has "
                    f"({','.join(part)}){_known(part, sizes)}",
                    "fix the function or the signature.",
                )

    def _sizes(tensors: list[Tensor], inputs: Sequence[Part]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for i, (x, part) in enumerate(zip(tensors, inputs, strict=True)):
            shape = tuple(x.shape[max(x.ndim - len(part), 0) :])
            want = tuple(sizes.setdefault(d, n) for d, n in zip(part, shape, strict=False))
            if len(shape) < len(part) or shape != want:
                fail(
                    TreeMismatchError,
                    f"{name}: array {i} has the shape {tuple(x.shape)}, where the signature has "
                    f"({','.join(part)}){_known(part, sizes)} at its end",
                    "give arrays that fit the signature.",
                )
        return sizes

    name = f"vectorize({function_name(fun)})"
    return vectorized


def _known(part: Part, sizes: dict[str, int]) -> str:
    known = [f"{d} = {sizes[d]}" for d in part if d in sizes]
    return f" with {', '.join(known)}" if known else ""


def _parsed(signature: object, fun: Fun) -> tuple[list[Part], list[Part]]:
    text = signature.replace(" ", "") if isinstance(signature, str) else ""
    if not _SIGNATURE.fullmatch(text):
        fail(
            ValueError,
            f"vectorize({function_name(fun)}) was given the signature {short_repr(signature)}",
            "write it like '(m,n),(n)->(m)'.",
        )
    left, right = text.split("->")

    def parts(side: str) -> list[Part]:
        found = re.findall(_DIMS, side)
        return [tuple(d for d in part[1:-1].split(",") if d) for part in found]

    return parts(left), parts(right)
