"""Composites: operations defined by a graph, which a target may replace by a better one.

A composite is a call. Any target can run its computation; the computation's name identifies the
operation, so that a pass can replace the call.
"""

from __future__ import annotations

_PREFIX = "xfunc_composite_"
_RUNNING = "xfunc_running_"


def composite_name(operation: str) -> str:
    """The name of a computation that spells out an operation."""
    return _PREFIX + operation


def operation_of(name: str) -> str | None:
    """The operation that a computation of this name spells out; None if it is not a composite."""
    if not name.startswith(_PREFIX):
        return None
    return name.removeprefix(_PREFIX).partition(".")[0]


def running_name(operation: str, dim: int) -> str:
    """The name of a computation of all partial results along a dimension.

    It is no composite, but identifies the steps' function in programs of other sizes.
    """
    return f"{_RUNNING}{operation}_{dim}"


def running_of(name: str) -> str | None:
    """The name of a computation of partial results, without its number; None for others."""
    return name.partition(".")[0] if name.startswith(_RUNNING) else None


def is_running(operation: str) -> bool:
    """Whether this is the name of a computation of partial results."""
    return operation.startswith(_RUNNING)


def dimension_of(operation: str) -> int:
    """The dimension in the name of a computation of partial results."""
    return int(operation.rpartition("_")[2])
