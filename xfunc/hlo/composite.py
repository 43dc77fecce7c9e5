"""Composites: operations that are spelled out, but that a target may have something better for.

A composite is a call. The name of its computation, which any target can run, tells what it
computes, so that a pass can replace the call.
"""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb

_PREFIX = "xfunc_composite_"


def composite_name(operation: str) -> str:
    """The name of a computation that spells out an operation."""
    return _PREFIX + operation


def operation_of(c: pb.HloComputationProto) -> str | None:
    """The operation that a computation spells out; None if it is not a composite."""
    if not c.name.startswith(_PREFIX):
        return None
    return c.name.removeprefix(_PREFIX).partition(".")[0]
