"""The table of rules, by aten operation.

A rule takes the arguments of its operation, with `Placeholder`s for tensors, and returns nodes.
Numerics belong to the rule: promotion, NaN, ties, integer division, sums of half precision.

An operation without a rule is computed by the kernel of `xfunc.ops` that has its name, which is
written with torch operations; then by torch's own decomposition. Such a kernel calls a `base` as
the device's own operation (`registry.original`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

R = TypeVar("R", bound=Callable[..., Any])
Rule = Callable[..., Any]


class Entry(NamedTuple):
    """How an operation is recorded.

    Attributes:
        rule: makes its nodes.
        name: of the operation, in metadata.
    """

    rule: Rule
    name: str


RULES: dict[int, Entry] = {}
"""By the id of the operation: hashing an ``OpOverload`` runs Python."""

BASES: dict[str, Rule] = {}
"""By name; the rules are bases too."""

_operations: list[object] = []  # keeps the ids from being reused


def operation(name: str) -> Any:
    """The operation ``aten::name`` of this torch, or None."""
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base, None), overload or "default", None)


def metadata_name(func: Any) -> str:
    """The name of an operation in metadata: ``aten__mul``."""
    return func.name().partition(".")[0].replace("::", "__")


def rule(*names: str) -> Callable[[R], R]:
    """A decorator: this is the rule of these operations.

    Args:
        names: without ``aten::``, with the overload after a dot. Those that this torch does not
            have are left out.
    """

    def put(function: R) -> R:
        for name in names:
            found = operation(name)
            if found is not None:
                RULES[id(found)] = Entry(function, metadata_name(found))
                _operations.append(found)
            BASES[name] = function
        return function

    return put


def base(*names: str) -> Callable[[R], R]:
    """A decorator: this is the device's own operation for the kernels of these names."""

    def put(function: R) -> R:
        BASES.update(dict.fromkeys(names, function))
        return function

    return put
