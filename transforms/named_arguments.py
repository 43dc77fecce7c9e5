"""Arguments of a function by position or by name: the static and the donated ones of `jit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from xfunc.core.locations import described
from xfunc.errors import fail, short_repr

Nums = int | Sequence[int] | None
Names = str | Sequence[str] | None


def resolve(
    fun: Callable[..., object], nums: Nums, names: Names
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of arguments, each completed from the other by the signature.

    Negative positions remain only where the function takes ``*args``: see `in_call`.
    """
    positions = () if nums is None else (nums,) if isinstance(nums, int) else tuple(nums)
    called = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    for i in positions:
        if isinstance(i, str):
            fail(
                TypeError,
                f"an argument of {described(fun)} was chosen by the position {short_repr(i)}",
                "choose by names with argnames in place of argnums.",
            )
    if not positions and not called:
        return (), ()
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return positions, called
    by_position = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    keywords = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for i in positions:
        if not variadic and not -len(by_position) <= i < len(by_position):
            fail(
                ValueError,
                f"{described(fun)} has {len(by_position)} positional parameters, but none at {i}",
                "give positions of parameters of the function.",
            )
    if not variadic:
        positions = tuple(i if i >= 0 else i + len(by_position) for i in positions)
    for n in called:
        if n not in {p.name for p in parameters} and not keywords:
            fail(
                ValueError,
                f"{described(fun)} has no parameter {n!r}",
                f"its parameters are {', '.join(p.name for p in parameters)}.",
            )
    all_positions = {*positions, *(by_position.index(n) for n in called if n in by_position)}
    all_names = {*called, *(by_position[i] for i in positions if 0 <= i < len(by_position))}
    return tuple(sorted(all_positions)), tuple(sorted(all_names))


def in_call(nums: Sequence[int], n: int, name: str, option: str) -> list[int]:
    """The positions that a call with n positional arguments has; negative ones count from its end.

    Raises:
        ValueError: a negative one is before its first argument.
    """
    for i in nums:
        if i < -n:
            fail(
                ValueError,
                f"{name} has {option}={i}, but was called with {n} positional arguments",
                f"pass the arguments of {option} by position.",
            )
    return [i % n for i in nums if i < n]
