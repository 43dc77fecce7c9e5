"""Options of the compiler for one program, as `jit` and `Lowered.compile` take them."""

from __future__ import annotations

from typing import Any, cast

from xfunc.errors import fail, shown

CompilerOptions = tuple[tuple[str, Any], ...]


def compiler_options(given: Any, function: str) -> CompilerOptions:
    """Options in the order of their names.

    Raises:
        ValueError: they are no dict of strings, numbers and booleans by name.
    """
    if not given:
        return ()
    if not isinstance(given, dict):
        fail(
            ValueError,
            f"{function}: compiler_options is {shown(given)}",
            "give a dict of options by name.",
        )
    options = cast("dict[Any, Any]", given)
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, (str, bool, int, float)):
            fail(
                ValueError,
                f"{function}: compiler_options has {shown(name)}: {shown(value)}",
                "give options by name, as strings, numbers or booleans.",
            )
    return tuple(sorted(options.items()))
