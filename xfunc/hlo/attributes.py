"""Data of nodes other than their parameters: attributes, shardings and side effects."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from xfunc.graph.node import Node
from xfunc.hlo import hlo_pb2 as pb

Attributes = Mapping[str, str]

NAME = "xfunc_name"
"""The attribute with the name that the user gave to a value, for policies to refer to.

It is that of a ``copy``. Before a policy is applied, names are moved to the named values
(`xfunc.remat.names`); a whole program has none (`xfunc.hlo.final`).
"""


@functools.lru_cache(4096)
def _read(more: bytes) -> pb.HloInstructionProto:
    return pb.HloInstructionProto.FromString(more)


def attributes_of(n: Node) -> Attributes:
    """Its frontend attributes, by name."""
    return dict(_read(n.more).frontend_attributes.map) if n.more else {}


def with_attributes(more: bytes, attributes: Attributes) -> bytes:
    """`Node.more` with other frontend attributes."""
    rest = pb.HloInstructionProto.FromString(more)
    rest.ClearField("frontend_attributes")
    if attributes:
        rest.frontend_attributes.map.update(attributes)
    return rest.SerializeToString(deterministic=True)


def said(attributes: Attributes) -> bytes:
    """`Node.more` with frontend attributes alone."""
    return with_attributes(b"", {k: v for k, v in attributes.items() if v})


def acting(attributes: Attributes | None = None) -> bytes:
    """`Node.more` of a custom call that has side effects."""
    rest = pb.HloInstructionProto(custom_call_has_side_effect=True)
    if attributes:
        rest.frontend_attributes.map.update(attributes)
    return rest.SerializeToString(deterministic=True)


def acts(n: Node) -> bool:
    """Whether a custom call has side effects."""
    return bool(n.more) and _read(n.more).custom_call_has_side_effect


def has_sharding(n: Node) -> bool:
    """Whether a node other than a custom call carries a sharding."""
    return bool(n.more) and _read(n.more).HasField("sharding")
