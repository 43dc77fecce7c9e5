"""`custom_root`: the root of a function, differentiated by the implicit function theorem."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar, cast

from xfunc import tree
from xfunc.core.locations import function_name
from xfunc.errors import fail
from xfunc.stages.checks import Fun, as_tensors, split_aux
from xfunc.transforms.custom_jvp import custom_jvp
from xfunc.transforms.jvp import jvp
from xfunc.transforms.linear import closure_convert
from xfunc.transforms.stop_gradient import stop_gradient
from xfunc.tree import PyTree

T = TypeVar("T")


def custom_root(
    f: Callable[[T], T],
    initial_guess: T,
    solve: Callable[[Callable[[T], T], T], PyTree],
    tangent_solve: Callable[[Callable[[T], T], T], T],
    has_aux: bool = False,
) -> PyTree:
    """Solve ``f(x) == 0`` by ``solve(f, initial_guess)``, with the derivatives of the root.

    The derivatives with respect to the values that `f` closes over follow from the implicit
    function theorem, so `solve` may be any code, such as a loop of unknown length. The guess has no
    derivative.

    Args:
        f: from a tree of floating arrays to a tree like it.
        initial_guess: a tree of floating arrays.
        solve: ``solve(f, initial_guess)`` returns a tree like it, `x`.
        tangent_solve: ``tangent_solve(g, y)`` returns the `x` of ``g(x) == y`` for a linear `g`;
            for scalars ``lambda g, y: y / g(torch.ones(()))``. Reverse mode transposes it; if it
            is a loop of unknown length, wrap it in `custom_linear_solve`.
        has_aux: whether `solve` returns ``(x, aux)``; `aux` has no derivative.

    Returns:
        `x`, or ``(x, aux)``.

    Raises:
        TypeError: a function is not callable, or `solve` does not return a pair with `has_aux`.
        TreeMismatchError: `f` returns something other than a tree like its argument.

    Example::

        >>> def root(a):
        ...     newton = lambda f, x: xf.fori_loop(0, 9, lambda _, x: (x + a / x) / 2, x)
        ...     return xf.custom_root(lambda x: x * x - a, torch.ones(()), newton,
        ...                           lambda g, y: y / g(torch.ones(())))
        >>> xf.grad(root)(torch.tensor(4.0)).item()         # 1 / (2 sqrt(4))
        0.25

    Semantics: ``jax.lax.custom_root``.
    """
    for given in (f, solve, tangent_solve):
        if not callable(given):
            fail(
                TypeError,
                f"custom_root was given {given!r} as a function, which is not callable",
                "write custom_root(f, initial_guess, solve, tangent_solve).",
            )
    name = f"custom_root of {function_name(f)}"
    guess = stop_gradient(as_tensors(initial_guess))
    converted, consts = closure_convert(cast("Fun", f), guess)

    def found_from(x: T) -> PyTree:
        return as_tensors(solve(f, x))

    solved, held = closure_convert(found_from, guess)
    n = 1 + len(consts)

    @custom_jvp
    def root(*given: PyTree) -> PyTree:
        return split_aux(solved(given[0], *given[n:]), solve, has_aux, name)

    @root.defjvp
    def rule(primals: tuple[PyTree, ...], tangents: tuple[PyTree, ...]) -> tuple[PyTree, PyTree]:
        values, dots = primals[1:n], tangents[1:n]
        x, aux = root(*primals)
        along = jvp(functools.partial(converted, x), values, dots)[1]

        def value_at(at: PyTree) -> PyTree:
            return converted(at, *values)

        slope = tangent_solve(lambda v: jvp(value_at, (x,), (v,))[1], tree.map(lambda t: -t, along))
        return (x, aux), (slope, tree.map(lambda a: a * 0, aux))

    x, aux = root(guess, *consts, *stop_gradient(held))
    return (x, stop_gradient(aux)) if has_aux else x
