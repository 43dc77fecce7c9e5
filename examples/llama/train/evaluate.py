"""The loss on held-out data, and placing batches on the devices."""

import functools

from jaxtyping import Float
from torch import Tensor

import xfunc as xf

from ..data.reader import Reader
from ..model import Batch, Params
from . import steps
from .train_config import Recipe


def put(batch: Batch, recipe: Recipe) -> Batch:
    """The batch on the devices, sharded as the recipe says.

    Each of several processes passes its `local_rows`.
    """
    sharding = recipe.plan.sharding
    if sharding is not None and xf.process_count() > 1:
        where = sharding.on_mesh(sharding.batch)
        return xf.tree.map(lambda x: xf.make_array_from_process_local_data(where, x), batch)
    return xf.device_put(batch, sharding and sharding.on_mesh(sharding.batch))


def local_rows(recipe: Recipe, batch: int) -> list[int] | None:
    """The rows of a batch of size `batch` on this process's devices; None: all of them."""
    sharding = recipe.plan.sharding
    if sharding is None or xf.process_count() == 1:
        return None
    (rows,) = xf.sharding.process_local_indices(sharding.on_mesh(sharding.batch), (batch,))
    return rows.tolist()


def held_out_loss(
    params: Params, reader: Reader, recipe: Recipe, batches: int, base: Params | None = None
) -> float:
    """The mean loss per token, or per pair, over the first `batches` batches of held-out data."""
    found = []
    for i in range(min(batches, reader.held_out_batches)):
        batch = put(reader.held_out(i), recipe)
        found.append(_counted_loss(params, batch, base, recipe=recipe))
    pairs = [(float(loss), float(count)) for loss, count in xf.device_get(found)]
    return sum(loss * count for loss, count in pairs) / sum(count for _, count in pairs)


@functools.partial(xf.jit, static_argnames="recipe")
def _counted_loss(
    params: Params, batch: Batch, base: Params | None, *, recipe: Recipe
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The mean loss of a batch, and the number of targets or pairs it is taken over."""
    loss = steps.eval_loss(params, batch, base, recipe=recipe)
    return loss, steps.target_count(batch, recipe)
