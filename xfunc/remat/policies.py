"""Policies: the choice of values that a differentiated function keeps for its backward pass.

A policy is asked about a forward value that the backward pass could use: it is a function of the
node, an HLO instruction, that computes the value, and returns True (keep it), False (recompute it),
or an `Offload` (keep it in host memory). A `GraphPolicy` considers all values at once.

Functions that return policies: `xfunc.remat.policy_factories`.

Source: ``jax.checkpoint_policies``, with the same names and meanings.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from xfunc.errors import fail, short_repr
from xfunc.graph.node import Node

if TYPE_CHECKING:
    from xfunc.remat.joint_graph import JointGraph


@dataclasses.dataclass(frozen=True)
class Offload:
    """Keep the value in another memory until the backward pass.

    Attributes:
        src: the memory where it is computed, and to which it is brought back.
        dst: the memory where it is kept.
    """

    src: str = "device"
    dst: str = "pinned_host"


Answer = bool | Offload
Policy = Callable[[Node], Answer]


class GraphPolicy(abc.ABC):
    """A policy that chooses among all values of a function at once.

    Attributes:
        place: where it keeps them; None: on the device.
    """

    place: Offload | None = None

    @abc.abstractmethod
    def choose(self, graph: JointGraph) -> frozenset[Node]:
        """The values to keep."""

    def __call__(self, node: Node) -> bool:
        raise TypeError(f"{type(self).__name__} chooses among all values at once: call `choose`")


def check_policy(policy: object, label: str) -> None:
    """Raise a TypeError unless a policy is a function or None; `label` names the argument."""
    if policy is not None and not callable(policy) and not isinstance(policy, GraphPolicy):
        fail(
            TypeError,
            f"{label} was given {short_repr(policy)}",
            "give a function of a node, such as xf.checkpoint_policies.dots_saveable, or None.",
        )


def everything_saveable(node: Node) -> bool:
    """Keep every forward value that the backward pass uses: nothing is recomputed.

    Args:
        node: the HLO instruction that computes a value.

    Returns:
        True.
    """
    del node
    return True


def nothing_saveable(node: Node) -> bool:
    """Keep only the inputs: the backward pass runs the forward pass again.

    Args:
        node: the HLO instruction that computes a value.

    Returns:
        False.
    """
    del node
    return False


def dots_saveable(node: Node) -> bool:
    """Keep the results of matrix products (``dot``).

    Args:
        node: the HLO instruction that computes a value.

    Returns:
        True for a ``dot``, otherwise False.
    """
    return node.opcode == "dot"


def dots_with_no_batch_dims_saveable(node: Node) -> bool:
    """Keep the results of matrix products without batch dimensions: those with weights.

    Args:
        node: the HLO instruction that computes a value.

    Returns:
        True for a ``dot`` without batch dimensions, otherwise False.
    """
    return node.opcode == "dot" and not node.params[2]


checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable
