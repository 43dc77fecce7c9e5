"""The state in a checkpoint, written by this version of the program or an earlier one."""

from collections.abc import Callable
from typing import Any

import torch

import xfunc as xf

from .. import train
from ..model import Params
from ..model.parameters import cast
from ..train import Guard, State
from ..train.train_config import Recipe
from .checkpoints import Checkpoints, Restored


def restore(
    checkpoints: Checkpoints,
    recipe: Recipe,
    step: int | None = None,
    check: Callable[[dict[str, Any]], None] | None = None,
) -> Restored:
    """Read the state of a recipe; see `Checkpoints.restore`."""
    target = train.abstract_state(recipe)
    try:
        return checkpoints.restore(target, step, check)
    except xf.errors.TreeMismatchError as error:
        try:
            found = checkpoints.restore(_with_guard_of_losses(target), step, check)
        except xf.errors.TreeMismatchError:
            raise error from None
        return found._replace(state=_with_new_guard(found.state, target))


def restore_params(
    checkpoints: Checkpoints,
    recipe: Recipe,
    step: int | None = None,
    check: Callable[[dict[str, Any]], None] | None = None,
    *,
    average: bool = False,
) -> Restored:
    """Read only the parameters, as the state, or their average: the optimizer's stays on disk."""
    state = train.abstract_state(recipe)
    target = {"average": state.average} if average else {"params": state.params}
    found = checkpoints.restore(target, step, check, partial=True)
    params = used(found.state["average"], recipe) if average else found.state["params"]
    return found._replace(state=params)


def used(average: Params | None, recipe: Recipe) -> Params:
    """The average of the weights, in their dtype."""
    kept = recipe.numbers.weights
    return xf.jit(lambda tree: cast(tree, kept))(average)


def _with_guard_of_losses(target: Any) -> State:
    """A target for states from before the guard also compared gradient norms."""
    seen, mean, _ = target.guard
    scalar: Any = xf.ShapeDtypeStruct((), mean.dtype, mean.sharding)
    return target._replace(guard=Guard(seen, scalar, scalar))


def _with_new_guard(state: State, target: Any) -> State:
    """A guard that starts from here: it only remembers the last 50 steps or so."""
    guard = xf.tree.map(lambda t: torch.zeros(t.shape, dtype=t.dtype), target.guard)
    where = xf.tree.map(lambda t: t.sharding, target.guard)
    return state._replace(guard=xf.device_put(guard, where))
