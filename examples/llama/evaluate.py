"""The loss on held-out data, and batches on the devices."""

import xfunc as xf

from . import train
from .model import Batch, Params
from .reader import Reader
from .recipe import Recipe


def put(batch: Batch, recipe: Recipe) -> Batch:
    """The batch on the devices, divided as the recipe says."""
    sharding = recipe.plan.sharding
    return xf.device_put(batch, sharding and sharding.on_mesh(sharding.batch))


def held_out_loss(
    params: Params, reader: Reader, recipe: Recipe, batches: int, base: Params | None = None
) -> float:
    """The mean loss of a token, or of a pair, in the first so many batches of held-out data."""
    losses, counts = [], []
    for i in range(min(batches, reader.held_out_batches)):
        batch = reader.held_out(i)
        counts.append(train.target_count(batch, recipe).item())
        loss = train.eval_loss(params, put(batch, recipe), base, recipe=recipe)
        losses.append(loss)
    found = xf.device_get(losses)
    return sum(float(x) * n for x, n in zip(found, counts, strict=True)) / sum(counts)
