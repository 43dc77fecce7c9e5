"""The small Llama, trained on 8 devices in four ways, against one device."""

import functools

import pytest
import torch

import xfunc as xf
from examples.llama import model, sharding, train
from xfunc import NamedSharding

CONFIG = model.Config.tiny(vocab=64)
RECIPE = train.Recipe(CONFIG, steps=50, warmup=10)
WAYS = {
    "data": (8, 1, 1),
    "fsdp": (1, 8, 1),
    "tensor": (1, 1, 8),
    "fsdp x tensor": (1, 4, 2),
    "all three": (2, 2, 2),
}


def batches():
    """Each token follows from the one before it."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(RECIPE.steps):
        tokens = [torch.randint(0, 64, (8,), generator=generator)]
        for _ in range(32):
            tokens.append((5 * tokens[-1] + 3) % 64)
        yield torch.stack(tokens, 1)


@functools.cache
def on_one_device():
    """Losses of plain torch, with its own AdamW."""
    params = xf.tree.map(lambda p: p.requires_grad_(), model.init(CONFIG))
    leaves = xf.tree.leaves(params)
    optimizer = torch.optim.AdamW(
        leaves, lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=RECIPE.weight_decay
    )
    losses = []
    with xf.disable_jit():
        for k, batch in enumerate(batches()):
            loss = model.loss(params, batch, CONFIG)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(leaves, RECIPE.clip)
            for group in optimizer.param_groups:
                group["lr"] = train.warmup_cosine(
                    torch.tensor(k), peak=RECIPE.peak_lr, warmup=RECIPE.warmup, total=RECIPE.steps
                ).item()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("way", WAYS)
def test_50_steps(way):
    mesh = xf.make_mesh(WAYS[way], sharding.AXES)
    shardings = sharding.state(CONFIG, mesh)
    state = xf.device_put(train.init(RECIPE), shardings)
    step = xf.jit(
        functools.partial(train.train_step, recipe=RECIPE),
        donate_argnums=0,
        in_shardings=(shardings, NamedSharding(mesh, sharding.BATCH)),
        out_shardings=(shardings, None),
    )
    losses = []
    for batch in batches():
        state, metrics = step(state, batch)
        losses.append(metrics.loss)
    got = torch.stack([x.cpu() for x in losses])
    expected = torch.tensor(on_one_device())
    assert expected[-1] < 0.5 * expected[0]
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=0)
    assert step.cache_info().compiles == 1
    assert xf.tree.map(xf.sharding_of, state) == shardings
