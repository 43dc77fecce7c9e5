"""Functions that return policies.

Policies are compared by value: re-creating one at each step still hits the cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from xfunc.errors import fail, short_repr
from xfunc.graph.node import Node
from xfunc.remat.names import names_of
from xfunc.remat.policies import Answer, Offload, Policy, dots_with_no_batch_dims_saveable

_TO_HOST = Offload()


@dataclasses.dataclass(frozen=True)
class _Names:
    """Keep or offload values by name."""

    kept: frozenset[str]
    offloaded: frozenset[str] = frozenset()
    offload: Offload = _TO_HOST

    def __call__(self, node: Node) -> Answer:
        names = names_of(node)
        if self.offloaded.intersection(names):
            return self.offload
        return not self.kept.isdisjoint(names)


def save_only_these_names(*names_which_can_be_saved: str) -> Policy:
    """Keep values that `xfunc.checkpoint_name` has given one of these names.

    Args:
        names_which_can_be_saved: the names.

    Returns:
        A policy: it answers True for values with one of these names, otherwise False.
    """
    return _Names(_names(names_which_can_be_saved, "save_only_these_names"))


@dataclasses.dataclass(frozen=True)
class _NotNames:
    """Keep all named values, or all values, except those with certain names."""

    excluded: frozenset[str]
    unnamed: bool

    def __call__(self, node: Node) -> bool:
        names = names_of(node)
        return self.excluded.isdisjoint(names) and (self.unnamed or bool(names))


def save_any_names_but_these(*names_not_to_save: str) -> Policy:
    """Keep values that `xfunc.checkpoint_name` has given a name other than these.

    Args:
        names_not_to_save: the names.

    Returns:
        A policy: it answers True for values that have a name and none of these, otherwise False.
    """
    return _NotNames(_names(names_not_to_save, "save_any_names_but_these"), unnamed=False)


def save_anything_except_these_names(*names_not_to_save: str) -> Policy:
    """Keep everything except values that `xfunc.checkpoint_name` has given one of these names.

    Values computed from such a value, such as its transpose, may be kept.

    Args:
        names_not_to_save: the names.

    Returns:
        A policy: it answers False for values with one of these names, otherwise True.
    """
    return _NotNames(_names(names_not_to_save, "save_anything_except_these_names"), unnamed=True)


@dataclasses.dataclass(frozen=True)
class _Both:
    """See `save_from_both_policies`."""

    first: Policy
    second: Policy

    def __call__(self, node: Node) -> Answer:
        return self.first(node) or self.second(node)


def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
    """Keep the values that either policy keeps; where both do, the first decides how.

    Args:
        policy_1: a function of an HLO instruction.
        policy_2: another one.

    Returns:
        A policy: it answers as the first one does, or as the second one where that answers False.
    """
    for policy in (policy_1, policy_2):
        if not callable(policy):
            fail(
                TypeError,
                f"save_from_both_policies was given {short_repr(policy)}",
                "give two functions of an HLO instruction.",
            )
    return _Both(policy_1, policy_2)


def save_and_offload_only_these_names(
    *,
    names_which_can_be_saved: Iterable[str],
    names_which_can_be_offloaded: Iterable[str],
    offload_src: str = "device",
    offload_dst: str = "pinned_host",
) -> Policy:
    """Keep values with some names; offload values with others to host memory.

    Args:
        names_which_can_be_saved: names of values to keep on the device.
        names_which_can_be_offloaded: names of values to keep in host memory.
        offload_src: where the values are computed: ``"device"``.
        offload_dst: where they are kept: ``"pinned_host"``.

    Returns:
        A policy: it answers with an `Offload` for values to offload, True for those to keep, and
        False for others.

    Raises:
        ValueError: a name is in both.
    """
    function = "save_and_offload_only_these_names"
    kept = _names(names_which_can_be_saved, function)
    offloaded = _names(names_which_can_be_offloaded, function)
    both = sorted(kept & offloaded)
    if both:
        fail(
            ValueError,
            f"{function} was given {both[0]!r} both to be saved and to be offloaded",
            "give each name once.",
        )
    return _Names(kept, offloaded, _offload(offload_src, offload_dst))


@dataclasses.dataclass(frozen=True)
class _OffloadDots:
    """See `offload_dot_with_no_batch_dims`."""

    offload: Offload

    def __call__(self, node: Node) -> Answer:
        return dots_with_no_batch_dims_saveable(node) and self.offload


def offload_dot_with_no_batch_dims(
    offload_src: Any = "device", offload_dst: str = "pinned_host"
) -> Any:
    """A policy that keeps matrix products without batch dimensions in host memory.

    It can also be used as a policy itself: ``policy=offload_dot_with_no_batch_dims``.

    Args:
        offload_src: where the values are computed: ``"device"``. A policy is given an HLO
            instruction instead.
        offload_dst: where they are kept: ``"pinned_host"``.

    Returns:
        A policy: it answers with an `Offload` for a ``dot`` without batch dimensions, otherwise
        False. Given an instruction, the function returns this answer itself.
    """
    if isinstance(offload_src, Node):
        return _OffloadDots(_TO_HOST)(offload_src)
    return _OffloadDots(_offload(offload_src, offload_dst))


def _offload(src: str, dst: str) -> Offload:
    if (src, dst) != ("device", "pinned_host"):
        fail(
            ValueError,
            f"values cannot be offloaded from {short_repr(src)} to {short_repr(dst)}",
            "offload from 'device' to 'pinned_host'.",
        )
    return Offload(src, dst)


def _names(names: Iterable[str], function: str) -> frozenset[str]:
    found = [names] if isinstance(names, str) else list(names)
    for n in found:
        if isinstance(n, Node):
            fail(
                TypeError,
                f"{function} itself was given as a policy, but it is a function that makes one",
                f"call it with names: xf.checkpoint_policies.{function}(...).",
            )
        if not isinstance(n, str):
            fail(
                TypeError,
                f"{function} was given {short_repr(n)} as a name",
                "give the strings that xf.checkpoint_name was given.",
            )
    return frozenset(found)
