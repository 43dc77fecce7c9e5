"""Options of the compiler for one program, as `jit` and `Lowered.compile` take them."""

from __future__ import annotations

from typing import NoReturn, TypeAlias, cast

from xfunc.errors import fail, short_repr

Option: TypeAlias = str | bool | int | float
CompilerOptions: TypeAlias = tuple[tuple[str, Option], ...]


def compiler_options(given: object, function: str) -> CompilerOptions:
    """Options in the order of their names.

    Raises:
        ValueError: they are not a dict of strings, numbers and booleans by name.
    """
    if not given:
        return ()
    if not isinstance(given, dict):
        fail(
            ValueError,
            f"{function}: compiler_options is {short_repr(given)}",
            "give a dict of options by name.",
        )
    options: list[tuple[str, Option]] = []
    for name, value in cast("dict[object, object]", given).items():
        if not isinstance(name, str) or not isinstance(value, (str, bool, int, float)):
            fail(
                ValueError,
                f"{function}: compiler_options has {short_repr(name)}: {short_repr(value)}",
                "give options by name, as strings, numbers or booleans.",
            )
        options.append((name, value))
    return tuple(sorted(options, key=lambda option: option[0]))


def refuse_inside(name: str) -> NoReturn:
    """Raise the error of a jitted function with options that is called in a traced function."""
    fail(
        ValueError,
        f"{name} has compiler_options, and is called inside of a function that is being traced",
        "give them to the outermost jit, as in xf.jit(xf.grad(f), compiler_options=...), whose "
        "program contains the call.",
    )
