"""`GradientTransformation`, and the functions that combine and apply transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from xfunc import tree
from xfunc.errors import fail
from xfunc.sharding import shard_as
from xfunc.trace import tracing
from xfunc.tree import PyTree

Mask: TypeAlias = PyTree | Callable[[PyTree], PyTree]


class Update(Protocol):
    """Type of `GradientTransformation.update`."""

    def __call__(
        self, updates: PyTree, state: PyTree, params: PyTree = None, /
    ) -> tuple[PyTree, PyTree]: ...


class GradientTransformation(NamedTuple):
    """A pair of pure functions that turns gradients into updates.

    Attributes:
        init: ``init(params) -> state``.
        update: ``update(updates, state, params=None) -> (updates, state)``. All trees have the
            structure of the weights, and each update the shape of its weight. Most
            transformations do not need `params`.

    Example:
        >>> opt = xf.optim.sgd(0.5)
        >>> updates, state = opt.update(torch.tensor([2.0]), opt.init(torch.zeros(1)))
        >>> updates
        tensor([-1.])

    Semantics: ``optax.GradientTransformation``.
    """

    init: Callable[[PyTree], PyTree]
    update: Update


class EmptyState(NamedTuple):
    """The state of a transformation that has none."""


class MaskedNode(NamedTuple):
    """Stands where `masked` leaves out a subtree."""


class MaskedState(NamedTuple):
    """The state of `masked`."""

    inner_state: PyTree


def stateless(update: Callable[[PyTree, PyTree], PyTree]) -> GradientTransformation:
    """The transformation ``update(updates, params) -> updates``, which has no state."""
    return GradientTransformation(
        lambda params: EmptyState(),
        lambda updates, state, params=None: (update(updates, params), state),
    )


def apply_updates(params: PyTree, updates: PyTree) -> PyTree:
    """Add updates to the weights.

    The sum is computed in the wider dtype of the two and rounded once, to that of the weight.

    Args:
        params: a tree of weights of any shapes.
        updates: a tree of the same structure and shapes.

    Returns:
        The new weights, with the shapes and dtypes of `params`.

    Raises:
        TreeMismatchError: the structures differ.

    Example:
        >>> xf.optim.apply_updates({"w": torch.ones(2)}, {"w": torch.tensor([0.5, -1.0])})
        {'w': tensor([1.5000, 0.0000])}

    Semantics: ``optax.apply_updates``.
    """
    return tree.map(lambda p, u: (p + u).to(p.dtype), params, updates)


def chain(*transformations: GradientTransformation) -> GradientTransformation:
    """Apply transformations one after the other.

    Args:
        *transformations: the first one gets the gradients, each other one the updates of the one
            before it.

    Returns:
        A transformation. Its state is the tuple of their states.

    Raises:
        ValueError: in `update`: the state is not one of this chain.

    Example:
        >>> opt = xf.optim.chain(xf.optim.clip_by_global_norm(1.0), xf.optim.scale(-0.1))
        >>> opt.update(torch.tensor([3.0, 4.0]), opt.init(torch.zeros(2)))[0]
        tensor([-0.0600, -0.0800])

    Semantics: ``optax.chain``.
    """

    def init(params: PyTree) -> tuple[PyTree, ...]:
        return tuple(t.init(params) for t in transformations)

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None
    ) -> tuple[PyTree, tuple[PyTree, ...]]:
        n = len(state) if isinstance(state, (tuple, list)) else 0
        if n != len(transformations):
            fail(
                ValueError,
                f"chain: the state has {n} parts for {len(transformations)} transformations",
                "pass the state that init or update of the same chain returned.",
            )
        states: list[PyTree] = []
        for t, part in zip(transformations, state, strict=True):
            updates, part = t.update(updates, part, params)
            states.append(part)
        return updates, tuple(states)

    return GradientTransformation(init, update)


def masked(inner: GradientTransformation, mask: Mask) -> GradientTransformation:
    """Transform some of the updates, and pass on the others unchanged.

    Args:
        inner: it sees the selected leaves only, and has state for no others.
        mask: a tree of bools with the structure of the weights, or a prefix of it; or a function
            from the weights, and from the updates, to such a tree.

    Returns:
        A transformation. Its state has one field, `inner_state`.

    Raises:
        TreeMismatchError: in `init` and `update`: the mask does not fit the tree.

    Example:
        >>> opt = xf.optim.masked(xf.optim.scale(-1.0), {"w": True, "b": False})
        >>> grads = {"w": torch.ones(1), "b": torch.ones(1)}
        >>> opt.update(grads, opt.init(grads))[0]
        {'w': tensor([-1.]), 'b': tensor([1.])}

    Semantics: ``optax.masked``.
    """

    def selected(flags: PyTree, values: PyTree) -> PyTree:
        return tree.map(lambda yes, x: x if yes else MaskedNode(), flags, values)

    def flags_of(values: PyTree) -> PyTree:
        return mask(values) if callable(mask) else mask

    def init(params: PyTree) -> MaskedState:
        return MaskedState(inner.init(selected(flags_of(params), params)))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, MaskedState]:
        flags = flags_of(updates)
        weights = None if params is None else selected(flags, params)
        new, inner_state = inner.update(selected(flags, updates), state.inner_state, weights)
        new = tree.map(lambda yes, u, old: u if yes else old, flags, new, updates)
        return new, MaskedState(inner_state)

    return GradientTransformation(init, update)


def optionally_masked(inner: GradientTransformation, mask: Mask | None) -> GradientTransformation:
    """`masked`, or `inner` itself if there is no mask."""
    return inner if mask is None else masked(inner, mask)


def check_params(params: PyTree, name: str) -> None:
    """Raise unless `update` was given the weights."""
    if params is None:
        fail(
            ValueError,
            f"{name} depends on the weights, but update was called without them",
            "call update(grads, state, params).",
        )


def zero_count() -> Tensor:
    """A count of steps, int32, at zero."""
    return torch.zeros((), dtype=torch.int32)


def zeros_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Zeros with the shape of `x`, and in a trace with its sharding.

    XLA chooses the sharding of a constant freely, so the trace ties it to that of `x`.
    """
    zeros = torch.zeros_like(x, dtype=dtype)
    return zeros if tracing.current() is None else shard_as(zeros, x)[0]


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of the given dtype are accumulated."""
    return torch.promote_types(dtype, torch.float32)


def running_mean(old: Tensor, new: Tensor, decay: float) -> Tensor:
    """``decay * old + (1 - decay) * new``, in the wider dtype of the two."""
    return decay * old + (1 - decay) * new.to(torch.promote_types(old.dtype, new.dtype))


def cast_like(values: PyTree, like: PyTree) -> PyTree:
    """`values` in the dtypes of `like`."""
    return tree.map(lambda x, y: x.to(y.dtype), values, like)
